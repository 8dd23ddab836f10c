// Attention over packed tiers beside ggml's own flash attention on f16, q8_0 and q4_0, in one
// process: time a step, its ratio, packed bytes a second. Everything is warm (touched just before)
// unless said otherwise; times are minima, medians go to the JSON.
//
//   kernels_bench [--rows N] [--threads N] [--tokens N]... [--shape H,KV,D]... [--tiers
//   default|k3v2|k8v8|...] [--json FILE]
#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "base/cpu_isa.h"
#include "bench_cache.h"

namespace varve::bench {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of calls.
struct Times {
  std::vector<double> seconds;

  double least() const { return *std::min_element(seconds.begin(), seconds.end()); }
  double median() const {
    std::vector<double> sorted = seconds;
    const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
    std::nth_element(sorted.begin(), middle, sorted.end());
    return *middle;
  }
};

/// Adds the times of at least `rounds` calls and 30 ms, after one that is not counted.
void Measure(const std::function<void()>& call, int rounds, Times& times) {
  double total = 0;
  call();
  for (int i = 0; i < rounds || (total < 0.03 && i < 2000); ++i) {
    const double start = Now();
    call();
    times.seconds.push_back(Now() - start);
    total += times.seconds.back();
  }
}

/// ggml's flash attention over a cache of one layer, K and V rows of all heads side by side as
/// llama.cpp keeps them.
class Stock {
 public:
  Stock(const Shape& shape, int n_tokens, int n_rows, ggml_type type, int n_threads)
      : n_threads_(n_threads) {
    const int64_t dim = shape.head_dim;
    const int64_t width = dim * shape.n_kv_heads;
    const int64_t mask_rows = (n_rows + 63) / 64 * 64;
    const size_t row = ggml_row_size(type, width);
    const size_t bytes = 2 * row * static_cast<size_t>(n_tokens) +
                         static_cast<size_t>(2 * n_rows * shape.n_heads * dim) * 4 +
                         static_cast<size_t>(mask_rows * n_tokens) * 2 + (size_t{1} << 20);
    memory_.resize(bytes);
    ctx_ = ggml_init({bytes, memory_.data(), false});
    ggml_tensor* q = ggml_new_tensor_3d(ctx_, GGML_TYPE_F32, dim, n_rows, shape.n_heads);
    ggml_tensor* k_rows = ggml_new_tensor_2d(ctx_, type, width, n_tokens);
    ggml_tensor* v_rows = ggml_new_tensor_2d(ctx_, type, width, n_tokens);
    ggml_tensor* mask = ggml_new_tensor_2d(ctx_, GGML_TYPE_F16, n_tokens, mask_rows);
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < ggml_nelements(q); ++i)
      static_cast<float*>(q->data)[i] = normal(random);
    std::memset(mask->data, 0, ggml_nbytes(mask));
    std::vector<float> rows(static_cast<size_t>(width) * 1024);
    for (float& x : rows) x = normal(random);
    for (ggml_tensor* t : {k_rows, v_rows}) {
      for (int64_t first = 0; first < n_tokens; first += 1024) {
        const int64_t n = std::min<int64_t>(1024, n_tokens - first);
        auto* at = static_cast<char*>(t->data) + static_cast<size_t>(first) * row;
        if (type == GGML_TYPE_F16) {
          ggml_fp32_to_fp16_row(rows.data(), reinterpret_cast<ggml_fp16_t*>(at), n * width);
        } else {
          ggml_quantize_chunk(type, rows.data(), at, 0, n, width, nullptr);
        }
      }
    }
    const auto heads = [&](ggml_tensor* t) {
      return ggml_view_3d(ctx_, t, dim, n_tokens, shape.n_kv_heads, row, ggml_row_size(type, dim),
                          0);
    };
    ggml_tensor* out = ggml_flash_attn_ext(ctx_, q, heads(k_rows), heads(v_rows), mask,
                                           1.0f / std::sqrt(static_cast<float>(dim)), 0, 0);
    graph_ = ggml_new_graph(ctx_);
    ggml_build_forward_expand(graph_, out);
    plan_ = ggml_graph_plan(graph_, n_threads_, nullptr);
    work_.resize(plan_.work_size + 64);
    plan_.work_data = work_.data();
  }
  ~Stock() { ggml_free(ctx_); }
  Stock(const Stock&) = delete;
  Stock& operator=(const Stock&) = delete;

  void Step() { ggml_graph_compute(graph_, &plan_); }

 private:
  int n_threads_;
  std::vector<char> memory_;
  std::vector<uint8_t> work_;
  ggml_context* ctx_ = nullptr;
  ggml_cgraph* graph_ = nullptr;
  ggml_cplan plan_{};
};

/// Bytes a second that one core reads of a buffer of this size, again and again.
double ReadBandwidth(size_t bytes) {
  Arena arena(bytes);
  auto* data = reinterpret_cast<uint64_t*>(arena.Take(bytes));
  const size_t n = bytes / 8;
  for (size_t i = 0; i < n; ++i) data[i] = i;
  volatile uint64_t sink = 0;
  Times times;
  Measure(
      [&] {
        uint64_t a = 0;
        uint64_t b = 0;
        uint64_t c = 0;
        uint64_t d = 0;
        // One load a line: the rest of the line comes with it.
        for (size_t i = 0; i + 32 <= n; i += 32) {
          a += data[i];
          b += data[i + 8];
          c += data[i + 16];
          d += data[i + 24];
        }
        sink = a + b + c + d;
      },
      5, times);
  return static_cast<double>(bytes) / times.least();
}

std::vector<Tier> TiersOf(const std::string& name, int n) {
  if (name == "k3v2") return OneTier({Codec::kRopePair, 3}, {Codec::kRotated, 2}, n);
  if (name == "k4v4") return OneTier({Codec::kRopePair, 4}, {Codec::kRotated, 4}, n);
  if (name == "k4v3") return OneTier({Codec::kRopePair, 4}, {Codec::kRotated, 3}, n);
  if (name == "k8v8") return OneTier({Codec::kRotated, 8}, {Codec::kRotated, 8}, n);
  if (name == "f16") return OneTier({Codec::kF16, 16}, {Codec::kF16, 16}, n);
  return DefaultLadder(n);
}

struct Options {
  std::vector<Shape> shapes;
  std::vector<int> tokens;
  std::string tiers = "default";
  std::string json;
  int n_rows = 1;
  int n_threads = 1;
  int rounds = 30;
  int n_stock = 3;  ///< of f16, q8_0, q4_0
};

void Run(const Options& options) {
  std::FILE* json = options.json.empty() ? nullptr : std::fopen(options.json.c_str(), "w");
  if (json != nullptr) std::fprintf(json, "[\n");
  const double read = ReadBandwidth(size_t{24} << 20) / 1e9;
  std::printf("isa %s, %d thread(s), %d row(s), tiers %s; L3 read %.1f GB/s a core\n",
              IsaName(ActiveIsa()), options.n_threads, options.n_rows, options.tiers.c_str(), read);
  std::printf("%-12s %7s %9s %8s %7s | %9s %9s %9s | %6s %6s %6s\n", "heads,kv,dim", "tokens",
              "varve ms", "ns/tok*kv", "GB/s", "f16 ms", "q8_0 ms", "q4_0 ms", "f16/x", "q8/x",
              "q4/x");
  bool first = true;
  for (const Shape& shape : options.shapes) {
    for (const int n : options.tokens) {
      PackedCache cache(shape, TiersOf(options.tiers, n), 4);
      const size_t width =
          static_cast<size_t>(options.n_rows) * static_cast<size_t>(shape.n_heads * shape.head_dim);
      std::mt19937 random(3);
      std::normal_distribution<float> normal;
      std::vector<float> q(width);
      std::vector<float> out(width);
      for (float& x : q) x = cache.q_size() * normal(random);
      const std::vector<uint16_t> mask(
          static_cast<size_t>(options.n_rows) * static_cast<size_t>(cache.n_cells()), 0);
      const AttendProblem problem =
          cache.Problem(options.n_rows, q.data(), mask.data(), out.data());
      std::vector<std::byte> scratch;
      const int rounds = options.rounds;
      const auto ours = [&] { Attend(problem, options.n_threads, scratch); };
      Times our_times;
      Measure(ours, rounds, our_times);
      double stock[3] = {0, 0, 0};
      double stock_median[3] = {0, 0, 0};
      const ggml_type types[3] = {GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0};
      for (int t = 0; t < options.n_stock; ++t) {
        Stock reference(shape, n, options.n_rows, types[t], options.n_threads);
        Times times;
        Measure([&] { reference.Step(); }, 3, times);
        stock[t] = times.least();
        stock_median[t] = times.median();
        Measure(ours, rounds, our_times);
      }
      const double varve = our_times.least();
      const double per_token = varve * 1e9 / n / shape.n_kv_heads;
      const double bandwidth = static_cast<double>(cache.packed_bytes()) / varve / 1e9;
      std::printf("%2d,%d,%-7d %7d %9.4f %8.2f %7.1f | %9.3f %9.3f %9.3f | %6.1f %6.1f %6.1f\n",
                  shape.n_heads, shape.n_kv_heads, shape.head_dim, n, varve * 1e3, per_token,
                  bandwidth, stock[0] * 1e3, stock[1] * 1e3, stock[2] * 1e3, stock[0] / varve,
                  stock[1] / varve, stock[2] / varve);
      std::fflush(stdout);
      if (json != nullptr) {
        std::fprintf(json,
                     "%s{\"n_heads\":%d,\"n_kv_heads\":%d,\"head_dim\":%d,\"n_tokens\":%d,\"n_"
                     "rows\":%d,\"n_threads\":%d,"
                     "\"isa\":\"%s\",\"tiers\":\"%s\",\"varve_ms\":%.5f,\"f16_ms\":%.5f,\"q8_0_"
                     "ms\":%.5f,\"q4_0_ms\":%.5f,"
                     "\"varve_median_ms\":%.5f,\"f16_median_ms\":%.5f,"
                     "\"packed_bytes\":%zu,\"l3_read_gb_per_s\":%.2f}",
                     first ? "" : ",\n", shape.n_heads, shape.n_kv_heads, shape.head_dim, n,
                     options.n_rows, options.n_threads, IsaName(ActiveIsa()), options.tiers.c_str(),
                     varve * 1e3, stock[0] * 1e3, stock[1] * 1e3, stock[2] * 1e3,
                     our_times.median() * 1e3, stock_median[0] * 1e3, cache.packed_bytes(), read);
      }
      first = false;
    }
  }
  if (json != nullptr) {
    std::fprintf(json, "\n]\n");
    std::fclose(json);
  }
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string key = argv[i];
    const char* value = argv[i + 1];
    if (key == "--rows") options.n_rows = std::atoi(value);
    if (key == "--threads") options.n_threads = std::atoi(value);
    if (key == "--tokens") options.tokens.push_back(std::atoi(value));
    if (key == "--tiers") options.tiers = value;
    if (key == "--rounds") options.rounds = std::atoi(value);
    if (key == "--json") options.json = value;
    if (key == "--stock") options.n_stock = std::atoi(value);
    Shape shape{};
    if (key == "--shape" &&
        std::sscanf(value, "%d,%d,%d", &shape.n_heads, &shape.n_kv_heads, &shape.head_dim) == 3) {
      options.shapes.push_back(shape);
    }
  }
  if (options.shapes.empty())
    options.shapes = {{8, 8, 128}, {32, 8, 128}, {9, 3, 64}, {14, 2, 64}, {4, 1, 256}};
  if (options.tokens.empty()) options.tokens = {1024, 4096};
  ggml_cpu_init();
  Run(options);
  return 0;
}

}  // namespace
}  // namespace varve::bench

int main(int argc, char** argv) { return varve::bench::Main(argc, argv); }
