#include "measure/reconstruction.h"

#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "support/failure.h"

namespace varve::cli {
namespace {

constexpr int kSmallestRotation = 64;

/// Rows of all cells, by cell: k [n_cells][n_kv_heads * head_dim_k], v likewise.
struct Rows {
  std::vector<float> k;
  std::vector<float> v;
};

size_t KeyWidth(const LayerShape& shape) {
  return static_cast<size_t>(shape.n_kv_heads) * static_cast<size_t>(shape.head_dim_k);
}
size_t ValueWidth(const LayerShape& shape) {
  return shape.is_mla
             ? 0
             : static_cast<size_t>(shape.n_kv_heads) * static_cast<size_t>(shape.head_dim_v);
}

/// Last rows written to each cell.
Rows ExactRows(const LayerShape& shape, const CapturedLayer& captured) {
  Rows rows;
  const auto n_cells = static_cast<size_t>(captured.steps.back().n_cells);
  rows.k.resize(n_cells * KeyWidth(shape));
  rows.v.resize(n_cells * ValueWidth(shape));
  for (const CapturedStep& step : captured.steps) {
    for (int i = 0; i < step.n; ++i) {
      const auto cell = static_cast<size_t>(step.cells[static_cast<size_t>(i)]);
      if (cell >= n_cells) continue;
      std::copy_n(&step.k[static_cast<size_t>(i) * KeyWidth(shape)], KeyWidth(shape),
                  &rows.k[cell * KeyWidth(shape)]);
      if (ValueWidth(shape) == 0) continue;
      std::copy_n(&step.v[static_cast<size_t>(i) * ValueWidth(shape)], ValueWidth(shape),
                  &rows.v[cell * ValueWidth(shape)]);
    }
  }
  return rows;
}

/// softmax(q K^T * scale + mask) V of the last step in double precision;
/// [n_rows][n_heads][head_dim_v].
std::vector<double> Attend(const LayerShape& shape, const CapturedLayer& captured,
                           const Rows& rows) {
  const CapturedStep& step = captured.steps.back();
  const auto n_rows = static_cast<size_t>(step.n);
  const auto n_heads = static_cast<size_t>(shape.n_heads);
  const size_t n_rep = n_heads / static_cast<size_t>(shape.n_kv_heads);
  const auto dim_k = static_cast<size_t>(shape.head_dim_k);
  const auto dim_v = static_cast<size_t>(shape.head_dim_v);
  const auto n_cells = static_cast<size_t>(captured.steps.back().n_cells);
  const std::vector<float>& values = shape.is_mla ? rows.k : rows.v;
  const size_t value_width = shape.is_mla ? KeyWidth(shape) : ValueWidth(shape);
  const size_t value_head = shape.is_mla ? dim_k : dim_v;
  std::vector<double> out(n_rows * n_heads * dim_v);
  std::vector<double> logits(n_cells);
  for (size_t row = 0; row < n_rows; ++row) {
    for (size_t head = 0; head < n_heads; ++head) {
      const size_t kv_head = head / n_rep;
      const float* q = &step.q[(row * n_heads + head) * dim_k];
      double largest = -INFINITY;
      for (size_t cell = 0; cell < n_cells; ++cell) {
        const float bias = ggml_fp16_to_fp32(step.mask[row * n_cells + cell]);
        logits[cell] = -INFINITY;
        if (bias == -INFINITY) continue;
        const float* k = &rows.k[cell * KeyWidth(shape) + kv_head * dim_k];
        const double dot = std::inner_product(q, q + dim_k, k, 0.0) * captured.scale;
        const double cap = captured.logit_softcap;
        logits[cell] = (cap > 0 ? cap * std::tanh(dot / cap) : dot) + bias;
        largest = std::max(largest, logits[cell]);
      }
      double sum = 0;
      double* to = &out[(row * n_heads + head) * dim_v];
      for (size_t cell = 0; cell < n_cells; ++cell) {
        if (logits[cell] == -INFINITY) continue;
        const double weight = std::exp(logits[cell] - largest);
        sum += weight;
        const float* v = &values[cell * value_width + kv_head * value_head];
        for (size_t d = 0; d < dim_v; ++d) to[d] += weight * v[d];
      }
      for (size_t d = 0; d < dim_v; ++d) to[d] /= sum;
    }
  }
  return out;
}

template <typename A, typename B>
double RelativeError(const std::vector<A>& exact, const std::vector<B>& approximate) {
  double error = 0;
  double energy = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    const double difference = static_cast<double>(approximate[i]) - exact[i];
    error += difference * difference;
    energy += static_cast<double>(exact[i]) * exact[i];
  }
  return energy > 0 ? std::sqrt(error / energy) : 0;
}

/// Orthonormal Walsh-Hadamard transform of each run of n values (its own inverse).
void Rotate(std::vector<float>& values, size_t n) {
  const float norm = 1.0F / std::sqrt(static_cast<float>(n));
  for (size_t begin = 0; begin + n <= values.size(); begin += n) {
    float* x = &values[begin];
    for (size_t half = 1; half < n; half *= 2) {
      for (size_t i = 0; i < n; i += 2 * half) {
        for (size_t j = i; j < i + half; ++j) {
          const float a = x[j];
          const float b = x[j + half];
          x[j] = a + b;
          x[j + half] = a - b;
        }
      }
    }
    for (size_t i = 0; i < n; ++i) x[i] *= norm;
  }
}

/// Size of llama.cpp's rotation of a quantised cache (llama_kv_cache::build_input_k_rot,
/// build_input_v_rot); 0: none.
size_t RotationSize(ggml_type type, int head_dim, bool is_key) {
  if (!ggml_is_quantized(type) || head_dim % kSmallestRotation != 0) return 0;
  int n = kSmallestRotation;
  while (is_key && head_dim % (2 * n) == 0) n *= 2;
  return static_cast<size_t>(n);
}

/// Through a ggml type and back.
void RoundTrip(std::vector<float>& values, size_t width, ggml_type type, size_t rotation) {
  if (type == GGML_TYPE_F32 || values.empty()) return;
  if (rotation > 0) Rotate(values, rotation);
  const auto n_rows = static_cast<int64_t>(values.size() / width);
  std::vector<char> packed(static_cast<size_t>(n_rows) *
                           ggml_row_size(type, static_cast<int64_t>(width)));
  ggml_quantize_chunk(type, values.data(), packed.data(), 0, n_rows, static_cast<int64_t>(width),
                      nullptr);
  ggml_get_type_traits(type)->to_float(packed.data(), values.data(),
                                       static_cast<int64_t>(values.size()));
  if (rotation > 0) Rotate(values, rotation);
}

ReconstructionError MeasureStock(const CacheSpec& cache, const LayerShape& shape,
                                 const CapturedLayer& captured,
                                 const std::vector<double>& exact_output) {
  const Rows exact = ExactRows(shape, captured);
  Rows rows = exact;
  RoundTrip(rows.k, KeyWidth(shape), cache.type_k,
            RotationSize(cache.type_k, shape.head_dim_k, true));
  RoundTrip(rows.v, ValueWidth(shape), cache.type_v,
            RotationSize(cache.type_v, shape.head_dim_v, false));
  return {shape.layer, RelativeError(exact.k, rows.k), RelativeError(exact.v, rows.v),
          RelativeError(exact_output, Attend(shape, captured, rows))};
}

void Check(varve_status status, const CacheSpec& cache) {
  if (status != VARVE_OK) Fail(ExitCode::kFailed, "{}: {}", cache.label, varve_last_error());
}

struct CellsDeleter {
  void operator()(varve_cells* cells) const { varve_cells_destroy(cells); }
};

ReconstructionError MeasureCells(const CacheSpec& cache, const ModelShape& model,
                                 const LayerShape& shape, const CapturedLayer& captured,
                                 const std::vector<double>& exact_output, int n_threads) {
  varve_cells_params params = shape.CellsParams(model.n_layers);
  params.n_streams = 1;
  varve_cells* raw = nullptr;
  Check(varve_cells_create(cache.config.get(), &params, &raw), cache);
  const std::unique_ptr<varve_cells, CellsDeleter> cells(raw);

  varve_attend_args attend{};
  attend.struct_size = sizeof(attend);
  attend.n_heads = shape.n_heads;
  attend.head_dim_v = shape.head_dim_v;
  attend.q_head_stride = static_cast<size_t>(shape.head_dim_k) * sizeof(float);
  attend.q_row_stride = attend.q_head_stride * static_cast<size_t>(shape.n_heads);
  attend.mask_heads = 1;
  attend.scale = captured.scale;
  attend.logit_softcap = captured.logit_softcap;
  attend.out_head_stride = static_cast<size_t>(shape.head_dim_v) * sizeof(float);
  attend.out_row_stride = attend.out_head_stride * static_cast<size_t>(shape.n_heads);
  attend.n_threads = n_threads;
  std::vector<float> out;
  for (const CapturedStep& step : captured.steps) {
    std::vector<int32_t> positions(static_cast<size_t>(step.n));
    std::iota(positions.begin(), positions.end(), step.first);
    Check(varve_cells_write(raw, VARVE_KEY, step.cells.data(), positions.data(), step.k.data(),
                            VARVE_F32, KeyWidth(shape) * sizeof(float), step.n, n_threads),
          cache);
    if (ValueWidth(shape) > 0) {
      Check(varve_cells_write(raw, VARVE_VALUE, step.cells.data(), positions.data(), step.v.data(),
                              VARVE_F32, ValueWidth(shape) * sizeof(float), step.n, n_threads),
            cache);
    }
    out.resize(static_cast<size_t>(step.n) * attend.out_row_stride / sizeof(float));
    attend.n_cells = step.n_cells;
    attend.n_rows = step.n;
    attend.q = step.q.data();
    attend.mask = step.mask.data();
    attend.mask_row_stride = static_cast<size_t>(step.n_cells) * sizeof(uint16_t);
    attend.out = out.data();
    Check(varve_cells_attend(raw, &attend), cache);
  }
  const Rows exact = ExactRows(shape, captured);
  Rows rows = exact;
  Check(
      varve_cells_read(raw, VARVE_KEY, 0, captured.steps.back().n_cells, rows.k.data(), VARVE_F32),
      cache);
  if (ValueWidth(shape) > 0) {
    Check(varve_cells_read(raw, VARVE_VALUE, 0, captured.steps.back().n_cells, rows.v.data(),
                           VARVE_F32),
          cache);
  }
  return {shape.layer, RelativeError(exact.k, rows.k), RelativeError(exact.v, rows.v),
          RelativeError(exact_output, out)};
}

}  // namespace

std::vector<double> ExactOutput(const LayerShape& shape, const CapturedLayer& captured) {
  return Attend(shape, captured, ExactRows(shape, captured));
}

ReconstructionError MeasureReconstruction(const CacheSpec& cache, const ModelShape& model,
                                          const LayerShape& shape, const CapturedLayer& captured,
                                          const std::vector<double>& exact_output, int n_threads) {
  return cache.stock ? MeasureStock(cache, shape, captured, exact_output)
                     : MeasureCells(cache, model, shape, captured, exact_output, n_threads);
}

}  // namespace varve::cli
