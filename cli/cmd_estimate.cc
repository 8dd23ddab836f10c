// varve estimate: bytes of the KV cache for each method and preset, before anything is loaded.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "llm/model.h"
#include "llm/plugin.h"
#include "measure/estimate.h"
#include "measure/key_bits.h"
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
  std::string decoded = "0";
  int batch = 512;
  bool measure = false;
  std::string text;
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

/// Where the keys of each cache end; nothing for those that every layer ends alike in.
std::vector<KeyBits> MeasureAll(const Options& options, const ModelShape& shape,
                                const std::vector<CacheSpec>& caches, int n_tokens, int n_decoded) {
  const std::string text = options.text.empty() ? "" : ReadText("--text", options.text);
  std::vector<KeyBits> key_bits(caches.size());
  ModelPtr model;
  Progress progress("estimate");
  for (size_t c = 0; c < caches.size(); ++c) {
    const CacheEstimate estimate = EstimateCache(caches[c], shape, n_tokens, nullptr, n_decoded);
    if (estimate.bytes == estimate.most_bytes) continue;
    Plugin& plugin = Plugin::Get(options.model.plugin);
    if (!model) model = LoadModel(options.model.model, plugin.device());
    key_bits[c] =
        MeasureKeyBits(model.get(), caches[c], plugin, text, options.model.threads, [&](int done) {
          CheckInterrupt();
          progress.Update(static_cast<double>(c) + done / static_cast<double>(kKeyBitsTokens),
                          static_cast<double>(caches.size()), caches[c].label);
        });
  }
  return key_bits;
}

/// "keys of layers 0, 3-5 wider" for those whose keys end wider than most layers' do.
std::string WiderKeys(const KeyBits& key_bits) {
  int least = INT_MAX;
  for (const auto& [layer, bits] : key_bits) least = std::min(least, bits);
  std::vector<int> wider;
  for (const auto& [layer, bits] : key_bits) {
    if (bits > least) wider.push_back(layer);
  }
  if (wider.empty()) return "";
  return fmt::format("wider keys in {} layer{}: {}", wider.size(), wider.size() == 1 ? "" : "s",
                     fmt::join(wider, ", "));
}

/// ", by a prompt in batches of 512, the last 200 decoded"
std::string HowTheyCame(int n_tokens, int n_decoded, int n_batch) {
  if (n_decoded == n_tokens) return ", all decoded";
  std::string text = fmt::format(", by a prompt in batches of {}", n_batch);
  if (n_decoded > 0) text += fmt::format(", the last {} decoded", n_decoded);
  return text;
}

void Run(const Options& options) {
  CatchInterrupt();
  const bool measure = options.measure || !options.text.empty();
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
  const int n_decoded = options.decoded == "0" ? 0 : ParseTokens("--decoded", options.decoded);
  if (n_decoded > n_tokens) {
    Fail(ExitCode::kUsage, "--decoded {}: at most the {} tokens in the cache", n_decoded, n_tokens);
  }
  const uint64_t f16_bytes = shape.StockBytes(GGML_TYPE_F16, GGML_TYPE_F16);

  Json json = MakeResult("estimate", kSchemaVersion);
  json["model"] = ShapeJson(shape);
  json["n_ctx"] = shape.n_ctx;
  json["n_tokens"] = n_tokens;
  json["n_decoded"] = n_decoded;
  json["n_batch"] = shape.n_batch;
  json["f16_bytes"] = f16_bytes;
  json["methods"] = Json::array();
  const std::vector<KeyBits> key_bits =
      measure ? MeasureAll(options, shape, caches, n_tokens, n_decoded)
              : std::vector<KeyBits>(caches.size());
  std::vector<CacheEstimate> estimates;
  for (size_t c = 0; c < caches.size(); ++c) {
    estimates.push_back(
        EstimateCache(caches[c], shape, n_tokens, measure ? &key_bits[c] : nullptr, n_decoded));
  }
  const bool ranges = std::any_of(estimates.begin(), estimates.end(),
                                  [](const CacheEstimate& e) { return e.bytes != e.most_bytes; });
  Table table(
      {"<cache", "bytes", "bits/element", "of f16", "with weights", ranges ? "at most" : "<note"});
  for (size_t c = 0; c < caches.size(); ++c) {
    const CacheSpec& cache = caches[c];
    const CacheEstimate& estimate = estimates[c];
    Json row = {{"name", cache.label}, {"stock", cache.stock}, {"settings", cache.settings}};
    if (!estimate.reason.empty()) {
      row["unsupported_reason"] = estimate.reason;
      table.AddRow({cache.label, "library only", "-", "-", "-"});
    } else {
      const double ratio = static_cast<double>(estimate.bytes) / static_cast<double>(f16_bytes);
      row["bytes"] = estimate.bytes;
      row["bits_per_element"] = estimate.bits;
      row["ratio_to_f16"] = ratio;
      row["most_bytes"] = estimate.most_bytes;
      row["most_bits_per_element"] = estimate.most_bits;
      const bool known = estimate.bytes == estimate.most_bytes;
      table.AddRow({cache.label, FormatBytes(estimate.bytes), fmt::format("{:.2f}", estimate.bits),
                    fmt::format("{:.1f} %", 100 * ratio),
                    FormatBytes(estimate.bytes + shape.weight_bytes),
                    !known ? FormatBytes(estimate.most_bytes) : WiderKeys(key_bits[c])});
    }
    json["methods"].push_back(row);
  }
  if (options.json) {
    WriteJson(json);
    return;
  }
  std::string out = fmt::format(
      "{}\n{}: {} layers with a KV cache of {}, {}\ncontext {} tokens, {} used{}; "
      "weights {}\n\n{}",
      shape.path, shape.description, shape.layers.size(), shape.n_layers, KindOf(shape),
      shape.n_ctx, n_tokens == shape.n_ctx ? "all" : std::to_string(n_tokens),
      HowTheyCame(n_tokens, n_decoded, shape.n_batch), FormatBytes(shape.weight_bytes),
      table.ToString());
  if (ranges) {
    out += fmt::format(
        "\nat most: if key_error_limit held back the keys of every layer. Which it does depends on "
        "the\nmodel; --measure runs {} tokens of it to see.\n",
        kKeyBitsTokens);
  }
  WriteStdout(out);
}

}  // namespace

void AddEstimate(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, "estimate", "bytes of the KV cache for each method and preset",
                 "  varve estimate --model smollm2.gguf --ctx 8k\n"
                 "  varve estimate --model smollm2.gguf --ctx 32k --methods q4_0,age_tiered \\\n"
                 "      --set age_bits_old=3");
  AddModelOptions(command, &options->model, true);
  command
      ->add_option("-c,--ctx", options->ctx,
                   "context in tokens, like 4096 or 32k; 0 is the model's own")
      ->capture_default_str();
  command->add_option("--methods", options->methods,
                      "comma list of caches (default: the usual ones)");
  command->add_option("--tokens", options->tokens, "tokens in the cache; 0: the context is full")
      ->capture_default_str();
  command
      ->add_option("--decoded", options->decoded,
                   "how many of them came one by one after the prompt, like 200")
      ->capture_default_str();
  AddSetOption(command, &options->sets);
  command
      ->add_option("--batch", options->batch,
                   "physical batch: a prompt's last one is still in finer tiers, and a sliding "
                   "window's cache grows with it")
      ->capture_default_str()
      ->check(InRange(1, 1 << 20));
  command->add_flag("--measure", options->measure,
                    "run a short text to see which layers' keys key_error_limit holds back");
  command
      ->add_option("--text", options->text,
                   "--measure on the start of this text, since it can make a difference")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "JSON (schema docs/cli/schema/estimate.json)");
  command->callback([options] { Run(*options); });
}

}  // namespace varve::cli
