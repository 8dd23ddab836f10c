// varve estimate: bytes of the KV cache for each method and preset, before anything is loaded.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "measure/estimate.h"
#include "support/failure.h"
#include "support/output.h"
#include "support/table.h"
#include "support/units.h"

namespace varve::cli {
namespace {

constexpr int kSchemaVersion = 1;

struct Options {
  ModelOptions model;
  std::string ctx = "0";
  std::string tokens = "0";
  std::string methods;
  std::vector<std::string> sets;
  int batch = 512;
  bool json = false;
};

std::string KindOf(const ModelShape& shape) {
  const LayerShape& first = shape.layers.front();
  std::vector<std::string> kinds;
  if (first.is_mla) kinds.emplace_back("MLA");
  if (first.n_kv_heads < first.n_heads && !first.is_mla) kinds.emplace_back("grouped queries");
  if (std::any_of(shape.layers.begin(), shape.layers.end(),
                  [](const LayerShape& l) { return l.is_sliding; })) {
    kinds.push_back(fmt::format("sliding window {}", shape.n_swa));
  }
  std::string text;
  for (const std::string& kind : kinds) text += (text.empty() ? "" : ", ") + kind;
  return text.empty() ? "full attention" : text;
}

Json ShapeJson(const ModelShape& shape) {
  Json layers = Json::array();
  for (const LayerShape& layer : shape.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"n_cells", layer.n_cells},
                      {"n_heads", layer.n_heads},
                      {"n_kv_heads", layer.n_kv_heads},
                      {"head_dim_k", layer.head_dim_k},
                      {"head_dim_v", layer.head_dim_v},
                      {"is_mla", layer.is_mla},
                      {"is_sliding", layer.is_sliding}});
  }
  return {{"path", shape.path},
          {"description", shape.description},
          {"kind", KindOf(shape)},
          {"n_layers", shape.n_layers},
          {"n_ctx_train", shape.n_ctx_train},
          {"weight_bytes", shape.weight_bytes},
          {"compute_bytes", shape.compute_bytes},
          {"kv_layers", layers}};
}

void Run(const Options& options) {
  const int n_ctx = options.ctx == "0" ? 0 : ParseTokens("--ctx", options.ctx);
  const std::vector<CacheSpec> caches =
      options.methods.empty() ? UsualCaches() : ParseCaches(options.methods, options.sets);
  if (options.methods.empty() && !options.sets.empty()) {
    Fail(ExitCode::kUsage, "--set needs --methods, to say which cache it is for");
  }
  const ModelShape shape = ReadModelShape(options.model.model, n_ctx, options.batch);
  const int n_tokens =
      options.tokens == "0" ? shape.n_ctx : ParseTokens("--tokens", options.tokens);
  if (n_tokens > shape.n_ctx) {
    Fail(ExitCode::kUsage, "--tokens {}: the context has room for {}", n_tokens, shape.n_ctx);
  }
  const uint64_t f16_bytes = shape.StockBytes(GGML_TYPE_F16, GGML_TYPE_F16);

  Json json = MakeResult("estimate", kSchemaVersion);
  json["model"] = ShapeJson(shape);
  json["n_ctx"] = shape.n_ctx;
  json["n_tokens"] = n_tokens;
  json["f16_bytes"] = f16_bytes;
  json["methods"] = Json::array();
  Table table({"<cache", "bytes", "bits/element", "of f16", "with weights", "<note"});
  for (const CacheSpec& cache : caches) {
    const CacheEstimate estimate = EstimateCache(cache, shape, n_tokens);
    Json row = {{"name", cache.label}, {"stock", cache.stock}, {"settings", cache.settings}};
    if (!estimate.reason.empty()) {
      row["unsupported_reason"] = estimate.reason;
      table.AddRow({cache.label, "-", "-", "-", "-", "library only"});
    } else {
      const double ratio = static_cast<double>(estimate.bytes) / static_cast<double>(f16_bytes);
      row["bytes"] = estimate.bytes;
      row["bits_per_element"] = estimate.bits;
      row["ratio_to_f16"] = ratio;
      table.AddRow({cache.label, FormatBytes(estimate.bytes), fmt::format("{:.2f}", estimate.bits),
                    fmt::format("{:.1f} %", 100 * ratio),
                    FormatBytes(estimate.bytes + shape.weight_bytes),
                    cache.stock ? "llama.cpp's own" : ""});
    }
    json["methods"].push_back(row);
  }
  if (options.json) {
    WriteJson(json);
    return;
  }
  WriteStdout(
      fmt::format("{}\n{}: {} layers with a KV cache of {}, {}\ncontext {} tokens, all cells used; "
                  "weights {}\n\n{}",
                  shape.path, shape.description, shape.layers.size(), shape.n_layers, KindOf(shape),
                  shape.n_ctx, n_tokens, FormatBytes(shape.weight_bytes), table.ToString()));
}

}  // namespace

void AddEstimate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, "estimate", "bytes of the KV cache for each method and preset",
                 "  varve estimate --model smollm2.gguf --ctx 8k\n"
                 "  varve estimate --model smollm2.gguf --ctx 32k --methods q4_0,age_tiered \\\n"
                 "      --set age_bits_old=3");
  AddModelOptions(command, &options->model, false);
  command
      ->add_option("-c,--ctx", options->ctx,
                   "context in tokens, like 4096 or 32k; 0 is the model's own")
      ->capture_default_str();
  command->add_option("--methods", options->methods,
                      "comma list of caches (default: the usual ones)");
  command->add_option("--tokens", options->tokens, "tokens in the cache; 0: the context is full")
      ->capture_default_str();
  AddSetOption(command, &options->sets);
  command
      ->add_option("--batch", options->batch,
                   "physical batch; a sliding window's cache grows with it")
      ->capture_default_str()
      ->check(InRange(1, 1 << 20));
  command->add_flag("--json", options->json, "JSON (schema docs/cli/schema/estimate.json)");
  command->callback([options] { Run(*options); });
}

}  // namespace varve::cli
