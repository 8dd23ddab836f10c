#include "measure/comparison.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "measure/capture.h"
#include "measure/estimate.h"
#include "measure/quality.h"
#include "support/failure.h"

namespace varve::cli {
namespace {

constexpr int kSchemaVersion = 1;
constexpr int kCurvePoints = 32;
constexpr int64_t kShortestContext = 512;
constexpr const char* kKeepsHint = "finished chunks are kept, the same command goes on from there";

Json LayersJson(const std::vector<LayerFigures>& layers) {
  Json json = Json::array();
  for (const LayerFigures& layer : layers) {
    json.push_back({{"layer", layer.layer},
                    {"tokens", layer.n_tokens},
                    {"tier_tokens", layer.tier_tokens},
                    {"last_key_bits", layer.last_key_bits},
                    {"packed_bytes", layer.packed_bytes},
                    {"f16_bytes", layer.f16_bytes}});
  }
  return json;
}

Json ToJson(const ChunkScores& scores) {
  return {{"kld", scores.kld},
          {"nll", scores.nll},
          {"same_top", scores.same_top},
          {"seconds", scores.seconds},
          {"layers", LayersJson(scores.layers)}};
}

ChunkScores ChunkFromJson(const Json& json) {
  ChunkScores scores;
  scores.kld = json.at("kld").get<std::vector<double>>();
  scores.nll = json.at("nll").get<std::vector<double>>();
  scores.same_top = json.at("same_top").get<std::vector<double>>();
  scores.seconds = json.at("seconds");
  for (const Json& entry : json.at("layers")) {
    LayerFigures layer;
    layer.layer = entry.at("layer");
    layer.n_tokens = entry.at("tokens");
    const auto tiers = entry.at("tier_tokens").get<std::vector<int64_t>>();
    std::copy_n(tiers.begin(), std::min<size_t>(tiers.size(), VARVE_MAX_TIERS), layer.tier_tokens);
    layer.last_key_bits = entry.at("last_key_bits");
    layer.packed_bytes = entry.at("packed_bytes");
    layer.f16_bytes = entry.at("f16_bytes");
    scores.layers.push_back(layer);
  }
  return scores;
}

Json ToJson(const std::vector<ReconstructionError>& errors) {
  Json json = Json::array();
  for (const ReconstructionError& error : errors) {
    json.push_back(
        {{"layer", error.layer}, {"k", error.k}, {"v", error.v}, {"output", error.output}});
  }
  return json;
}

std::vector<ReconstructionError> ErrorsFromJson(const Json& json) {
  std::vector<ReconstructionError> errors;
  for (const Json& entry : json)
    errors.push_back({entry.at("layer"), entry.at("k"), entry.at("v"), entry.at("output")});
  return errors;
}

Json ToJson(const Speed& speed) {
  return {{"prefill_tokens_per_second", speed.prefill_tokens_per_second},
          {"decode_tokens_per_second", speed.decode_tokens_per_second},
          {"n_prefill", speed.n_prefill},
          {"n_decode", speed.n_decode}};
}

Speed SpeedFromJson(const Json& json) {
  return {json.at("prefill_tokens_per_second"), json.at("decode_tokens_per_second"),
          json.at("n_prefill"), json.at("n_decode")};
}

/// Up to n layers with a cache of their own, evenly spread, first and last among them.
std::vector<int> SpreadLayers(const ModelShape& shape, int n) {
  const int n_layers = static_cast<int>(shape.layers.size());
  n = std::min(n, n_layers);
  std::vector<int> layers;
  for (int i = 0; i < n; ++i) {
    const int at = n == 1 ? n_layers - 1 : i * (n_layers - 1) / (n - 1);
    layers.push_back(shape.layers[static_cast<size_t>(at)].layer);
  }
  return layers;
}

void RunErrors(const ComparisonPlan& plan, llama_model* model, const ModelShape& shape,
               std::span<const llama_token> tokens, Checkpoint& checkpoint, Progress& progress,
               std::vector<CacheFigures>& figures) {
  bool all_known = true;
  for (const CacheSpec& cache : plan.caches)
    all_known = all_known && checkpoint.Find("errors " + cache.label);
  if (!all_known) {
    const std::vector<int> layers = SpreadLayers(shape, plan.n_error_layers);
    const std::map<int, CapturedLayer> captured = CaptureLayers(
        model, shape, layers, tokens, plan.n_ctx, plan.step, plan.n_threads, [&](int done) {
          CheckInterrupt(kKeepsHint);
          progress.Update(done, plan.n_ctx, "keys, values and queries");
        });
    std::map<int, std::vector<double>> exact;
    std::vector<std::vector<ReconstructionError>> errors(plan.caches.size());
    for (const LayerShape& layer : shape.layers) {
      const auto found = captured.find(layer.layer);
      if (found == captured.end()) continue;
      const std::vector<double> exact_output = ExactOutput(layer, found->second);
      for (size_t c = 0; c < plan.caches.size(); ++c) {
        CheckInterrupt(kKeepsHint);
        errors[c].push_back(
            MeasureReconstruction(plan.caches[c], shape, layer, found->second, exact_output,
                                  plan.n_threads > 0 ? plan.n_threads : DefaultThreads()));
      }
    }
    for (size_t c = 0; c < plan.caches.size(); ++c) {
      checkpoint.Add("errors " + plan.caches[c].label, ToJson(errors[c]));
    }
  }
  for (size_t c = 0; c < plan.caches.size(); ++c) {
    figures[c].errors = ErrorsFromJson(*checkpoint.Find("errors " + plan.caches[c].label));
  }
}

/// Scores of one kind from all chunks, positions [from, end).
std::vector<double> Collect(const CacheFigures& figures, std::vector<double> ChunkScores::*scores,
                            int from) {
  std::vector<double> all;
  for (const ChunkScores& chunk : figures.chunks) {
    const std::vector<double>& values = chunk.*scores;
    all.insert(all.end(),
               values.begin() + std::min<ptrdiff_t>(from, static_cast<ptrdiff_t>(values.size())),
               values.end());
  }
  return all;
}

Json ExpIntervalJson(const Interval& log) {
  return {{"value", std::exp(log.mean)},
          {"low", std::exp(log.mean - log.half_width)},
          {"high", std::exp(log.mean + log.half_width)}};
}

Json CurveJson(const CacheFigures& figures) {
  const size_t n = figures.chunks.front().kld.size();
  const size_t width = std::max<size_t>(1, (n + kCurvePoints - 1) / kCurvePoints);
  Json curve = Json::array();
  for (size_t begin = 0; begin < n; begin += width) {
    const size_t end = std::min(n, begin + width);
    double sum = 0;
    for (const ChunkScores& chunk : figures.chunks) {
      for (size_t i = begin; i < end; ++i) sum += chunk.kld[i];
    }
    curve.push_back({{"position", (begin + end) / 2},
                     {"kld", sum / static_cast<double>((end - begin) * figures.chunks.size())}});
  }
  return curve;
}

/// Shapes for contexts of powers of two, as long as the model was trained for.
std::vector<ModelShape> ContextShapes(const ModelShape& shape, int step) {
  const ModelPtr model = LoadModelWithoutWeights(shape.path);
  std::vector<ModelShape> shapes;
  for (int64_t n = kShortestContext; n <= shape.n_ctx_train; n *= 2) {
    shapes.push_back(ReadModelShape(model.get(), shape.path, static_cast<int>(n), step));
  }
  if (shapes.empty()) shapes.push_back(shape);
  return shapes;
}

Json MemoryJson(const CacheSpec& cache, const std::vector<ModelShape>& shapes,
                const KeyBits& key_bits) {
  Json curve = Json::array();
  for (const ModelShape& shape : shapes) {
    const CacheEstimate estimate = EstimateCache(cache, shape, shape.n_ctx, &key_bits);
    curve.push_back({{"n_ctx", shape.n_ctx}, {"bytes", estimate.bytes}});
  }
  return curve;
}

Json QualityJson(const ComparisonPlan& plan, const CacheFigures& figures,
                 const CacheFigures& reference) {
  const std::vector<double> kld = Collect(figures, &ChunkScores::kld, plan.score_from);
  const std::vector<double> nll = Collect(figures, &ChunkScores::nll, plan.score_from);
  const std::vector<double> same_top = Collect(figures, &ChunkScores::same_top, plan.score_from);
  std::vector<double> nll_excess = Collect(reference, &ChunkScores::nll, plan.score_from);
  for (size_t i = 0; i < nll.size(); ++i) nll_excess[i] = nll[i] - nll_excess[i];
  const Interval kld_interval = MeanInterval(kld);
  const Interval top_interval = MeanInterval(same_top);
  return {{"kld",
           {{"mean", kld_interval.mean},
            {"half_width_95", kld_interval.half_width},
            {"median", Quantile(kld, 0.5)},
            {"p99", Quantile(kld, 0.99)},
            {"max", Quantile(kld, 1.0)}}},
          {"same_top", {{"share", top_interval.mean}, {"half_width_95", top_interval.half_width}}},
          {"perplexity", ExpIntervalJson(MeanInterval(nll))},
          {"perplexity_ratio", ExpIntervalJson(MeanInterval(nll_excess))},
          {"n_scored", kld.size()}};
}

Json ErrorJson(const std::vector<ReconstructionError>& errors) {
  if (errors.empty()) return nullptr;
  ReconstructionError mean;
  for (const ReconstructionError& error : errors) {
    mean.k += error.k / static_cast<double>(errors.size());
    mean.v += error.v / static_cast<double>(errors.size());
    mean.output += error.output / static_cast<double>(errors.size());
  }
  return {{"k", mean.k}, {"v", mean.v}, {"output", mean.output}, {"layers", ToJson(errors)}};
}

}  // namespace

std::vector<CacheFigures> RunComparison(const ComparisonPlan& plan, llama_model* model,
                                        const ModelShape& shape, Plugin* plugin,
                                        const std::vector<llama_token>& tokens,
                                        Checkpoint& checkpoint) {
  std::vector<CacheFigures> figures(plan.caches.size());
  Progress progress("compare");
  const auto chunk_tokens = [&](int chunk) {
    return std::span(tokens).subspan(static_cast<size_t>(chunk) * static_cast<size_t>(plan.n_ctx),
                                     static_cast<size_t>(plan.n_ctx));
  };
  LockstepOptions options{plan.n_ctx, plan.step, plan.n_threads};
  for (int chunk = 0; chunk < plan.n_chunks; ++chunk) {
    const std::string name = fmt::format("chunk {}", chunk);
    if (!checkpoint.Find(name)) {
      const std::vector<ChunkScores> scores =
          RunChunk(model, plan.caches, plugin, chunk_tokens(chunk), options, [&](int done) {
            CheckInterrupt(kKeepsHint);
            progress.Update(chunk * plan.n_ctx + done,
                            static_cast<double>(plan.n_chunks) * plan.n_ctx,
                            fmt::format("chunk {} of {}", chunk + 1, plan.n_chunks));
          });
      Json piece = Json::array();
      for (const ChunkScores& score : scores) piece.push_back(ToJson(score));
      checkpoint.Add(name, piece);
    }
    const Json& piece = *checkpoint.Find(name);
    for (size_t c = 0; c < plan.caches.size(); ++c)
      figures[c].chunks.push_back(ChunkFromJson(piece.at(c)));
  }
  if (plan.n_error_layers > 0)
    RunErrors(plan, model, shape, chunk_tokens(0), checkpoint, progress, figures);
  for (size_t c = 0; c < plan.caches.size() && plan.n_decode > 0; ++c) {
    const std::string name = "speed " + plan.caches[c].label;
    if (!checkpoint.Find(name)) {
      progress.Update(static_cast<double>(c), static_cast<double>(plan.caches.size()),
                      "speed of " + plan.caches[c].label);
      const Speed speed =
          MeasureSpeed(model, plan.caches[c], plugin, chunk_tokens(0), plan.n_decode,
                       plan.speed_runs, plan.n_threads, [] { CheckInterrupt(kKeepsHint); });
      checkpoint.Add(name, ToJson(speed));
    }
    figures[c].speed = SpeedFromJson(*checkpoint.Find(name));
  }
  return figures;
}

Json ComparisonJson(const ComparisonPlan& plan, const ModelShape& shape,
                    const std::vector<CacheFigures>& figures) {
  Json json = MakeResult("compare", kSchemaVersion);
  json["model"] = {{"path", plan.model_path},
                   {"description", shape.description},
                   {"weight_bytes", shape.weight_bytes}};
  json["text"] = plan.text_path;
  json["n_ctx"] = plan.n_ctx;
  json["n_chunks"] = plan.n_chunks;
  json["step"] = plan.step;
  json["score_from"] = plan.score_from;
  json["f16_bytes"] = shape.StockBytes(GGML_TYPE_F16, GGML_TYPE_F16);
  json["methods"] = Json::array();
  const std::vector<ModelShape> shapes = ContextShapes(shape, plan.step);
  for (size_t c = 0; c < plan.caches.size(); ++c) {
    const CacheSpec& cache = plan.caches[c];
    const CacheFigures& figure = figures[c];
    const std::vector<LayerFigures>& layers = figure.chunks.back().layers;
    const uint64_t bytes =
        cache.stock ? shape.StockBytes(cache.type_k, cache.type_v) : HeldBytes(layers);
    const int64_t elements = shape.Elements(cache.stock ? shape.n_ctx : plan.n_ctx);
    Json row = {
        {"name", cache.label},
        {"stock", cache.stock},
        {"reference", c == 0},
        {"settings", cache.settings},
        {"bytes", bytes},
        {"bits_per_element", 8.0 * static_cast<double>(bytes) / static_cast<double>(elements)}};
    row.update(QualityJson(plan, figure, figures.front()));
    double step_seconds = 0;
    for (const ChunkScores& chunk : figure.chunks) step_seconds += chunk.seconds;
    row["step_tokens_per_second"] = static_cast<double>(plan.n_chunks) * plan.n_ctx / step_seconds;
    row["errors"] = ErrorJson(figure.errors);
    row["speed"] = plan.n_decode > 0 ? ToJson(figure.speed) : Json(nullptr);
    row["kld_by_position"] = CurveJson(figure);
    row["memory_by_context"] = MemoryJson(cache, shapes, KeyBitsOf(layers));
    row["layers"] = LayersJson(layers);
    json["methods"].push_back(row);
  }
  return json;
}

}  // namespace varve::cli
