// varve profile: generates with one cache and tells, layer by layer, what it held and what it cost.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "llm/cache_context.h"
#include "llm/model.h"
#include "llm/model_shape.h"
#include "llm/plugin.h"
#include "support/failure.h"
#include "support/methods.h"
#include "support/output.h"
#include "support/table.h"
#include "support/units.h"

namespace varve::cli {
namespace {

using std::chrono::steady_clock;

constexpr int kSchemaVersion = 1;
constexpr int kPrefillBatch = 512;

struct Options {
  ModelOptions model;
  std::string method = "age_tiered";
  std::vector<std::string> sets;
  std::string prompt = "The history of the river begins in the mountains, where";
  std::string prompt_file;
  int max_tokens = 64;
  std::string ctx = "0";
  double temperature = 0;
  uint32_t seed = 42;
  bool json = false;
};

struct Generation {
  std::string text;
  int n_prompt = 0;
  int n_generated = 0;
  int n_calls = 0;  ///< of llama_decode
  double prefill_seconds = 0;
  double decode_seconds = 0;
};

struct SamplerDeleter {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};
using SamplerPtr = std::unique_ptr<llama_sampler, SamplerDeleter>;

SamplerPtr MakeSampler(const Options& options) {
  SamplerPtr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  if (options.temperature > 0) {
    llama_sampler_chain_add(chain.get(),
                            llama_sampler_init_temp(static_cast<float>(options.temperature)));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(options.seed));
  } else {
    llama_sampler_chain_add(chain.get(), llama_sampler_init_greedy());
  }
  return chain;
}

double SecondsSince(steady_clock::time_point start) {
  return std::chrono::duration<double>(steady_clock::now() - start).count();
}

Generation Generate(const Options& options, llama_model* model, llama_context* context,
                    const std::vector<llama_token>& prompt) {
  Generation generation;
  generation.n_prompt = static_cast<int>(prompt.size());
  Progress progress("profile");
  const int total = generation.n_prompt + options.max_tokens;
  auto start = steady_clock::now();
  for (int first = 0; first < generation.n_prompt; first += kPrefillBatch) {
    CheckInterrupt();
    const int n = std::min(kPrefillBatch, generation.n_prompt - first);
    Decode(context, std::span(prompt).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
           first, false);
    ++generation.n_calls;
    progress.Update(first + n, total, "prompt");
  }
  generation.prefill_seconds = SecondsSince(start);
  const SamplerPtr sampler = MakeSampler(options);
  const llama_vocab* vocab = llama_model_get_vocab(model);
  start = steady_clock::now();
  for (int i = 0; i < options.max_tokens && !Interrupted(); ++i) {
    const llama_token token = llama_sampler_sample(sampler.get(), context, -1);
    if (llama_vocab_is_eog(vocab, token)) break;
    generation.text += TokenText(model, token);
    ++generation.n_generated;
    if (i + 1 == options.max_tokens) break;
    Decode(context, {&token, 1}, generation.n_prompt + i, false);
    ++generation.n_calls;
    progress.Update(generation.n_prompt + i, total, "generating");
  }
  generation.decode_seconds = SecondsSince(start);
  return generation;
}

uint64_t PeakRss() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;
}

/// The seeds' compression_ratio of age_tiered: full_seq_bytes / age_tiered_bytes, without scales; 0
/// for other methods.
double NominalRatio(const CacheSpec& cache, const LayerShape& layer, int64_t n_tokens) {
  if (cache.method != "age_tiered") return 0;
  const auto value = [&](const char* key) {
    return std::stoll(ConfigValue(cache.config.get(), key));
  };
  const int64_t recent = std::min<int64_t>(n_tokens, value("age_recent_boundary"));
  const int64_t mid = std::min<int64_t>(n_tokens, value("age_mid_boundary")) - recent;
  const int64_t old = n_tokens - recent - mid;
  const auto row_bytes = [&](const char* key) {
    return (layer.head_dim_k * value(key) + 7) / 8 * 2;
  };
  const int64_t bytes = recent * row_bytes("age_bits_recent") + mid * row_bytes("age_bits_mid") +
                        old * row_bytes("age_bits_old");
  return bytes == 0
             ? 1.0
             : static_cast<double>(n_tokens * layer.head_dim_k * 4) / static_cast<double>(bytes);
}

/// One layer, stock or not, as both outputs show it.
struct LayerReport {
  LayerFigures figures;
  bool stock = false;
  double ratio = 1;
  double nominal = 0;
};

std::vector<LayerReport> MakeReports(const CacheSpec& cache, const ModelShape& shape,
                                     const CacheContext& context, int64_t n_tokens) {
  std::vector<LayerReport> reports;
  const std::vector<LayerFigures> held = context.Figures();
  for (const LayerShape& layer : shape.layers) {
    LayerReport report;
    report.stock = cache.stock;
    if (cache.stock) {
      const int64_t cells = int64_t{layer.n_cells} * layer.n_streams;
      report.figures.layer = layer.layer;
      report.figures.n_tokens = std::min<int64_t>(n_tokens, layer.n_cells);
      report.figures.packed_bytes =
          static_cast<uint64_t>(cells) *
          (ggml_row_size(cache.type_k, int64_t{layer.n_kv_heads} * layer.head_dim_k) +
           (layer.is_mla
                ? 0
                : ggml_row_size(cache.type_v, int64_t{layer.n_kv_heads} * layer.head_dim_v)));
      report.figures.f16_bytes = static_cast<uint64_t>(cells * layer.ElementsPerToken()) * 2;
    } else {
      const auto found = std::find_if(
          held.begin(), held.end(), [&](const LayerFigures& f) { return f.layer == layer.layer; });
      if (found == held.end())
        Fail(ExitCode::kFailed, "the plugin reports nothing about layer {}", layer.layer);
      report.figures = *found;
      report.nominal = NominalRatio(cache, layer, found->n_tokens);
    }
    const auto bytes = static_cast<double>(std::max<uint64_t>(report.figures.packed_bytes, 1));
    report.ratio = static_cast<double>(report.figures.f16_bytes) / bytes;
    reports.push_back(report);
  }
  return reports;
}

LayerFigures Total(const std::vector<LayerReport>& reports) {
  LayerFigures total;
  for (const LayerReport& report : reports) {
    const LayerFigures& layer = report.figures;
    total.n_tokens += layer.n_tokens;
    for (int tier = 0; tier < VARVE_MAX_TIERS; ++tier)
      total.tier_tokens[tier] += layer.tier_tokens[tier];
    total.packed_bytes += layer.packed_bytes;
    total.f16_bytes += layer.f16_bytes;
    total.append_seconds += layer.append_seconds;
    total.retier_seconds += layer.retier_seconds;
    total.attend_seconds += layer.attend_seconds;
  }
  return total;
}

Json TierJson(const LayerFigures& layer) {
  return {{"recent", layer.tier_tokens[0]},
          {"mid", layer.tier_tokens[1]},
          {"old", layer.tier_tokens[2]},
          {"sink", layer.tier_tokens[3]}};
}

Json ToJson(const Options& options, const CacheSpec& cache, const Generation& generation,
            const std::vector<LayerReport>& reports) {
  const LayerFigures total = Total(reports);
  Json json = MakeResult("profile", kSchemaVersion);
  json["model"] = options.model.model;
  json["method"] = cache.label;
  json["settings"] = cache.settings;
  json["bits"] = 16.0 * static_cast<double>(total.packed_bytes) /
                 static_cast<double>(std::max<uint64_t>(total.f16_bytes, 1));
  json["accounting_only"] = false;
  json["accounting_note"] =
      "bytes are those held by the cache: codes, scales, tables, exact rows and slack";
  json["text"] = generation.text;
  json["n_prompt_tokens"] = generation.n_prompt;
  json["n_generated_tokens"] = generation.n_generated;
  json["layers"] = Json::array();
  double ratios = 0;
  for (const LayerReport& report : reports) {
    const LayerFigures& layer = report.figures;
    ratios += report.ratio;
    Json row = {{"layer_index", layer.layer},
                {"compute_latency_ms", nullptr},
                {"is_fused", true},
                {"peak_memory_bytes", layer.packed_bytes},
                {"compression_ratio", report.ratio},
                {"nominal_ratio", nullptr},
                {"f16_bytes", layer.f16_bytes},
                {"tokens", layer.n_tokens},
                {"tier_tokens", nullptr},
                {"last_key_bits", nullptr},
                {"append_seconds", nullptr},
                {"retier_seconds", nullptr},
                {"attend_seconds", nullptr}};
    if (!report.stock) {
      row["compute_latency_ms"] =
          1e3 * (layer.append_seconds + layer.retier_seconds) / std::max(1, generation.n_calls);
      row["tier_tokens"] = TierJson(layer);
      row["last_key_bits"] = layer.last_key_bits;
      row["append_seconds"] = layer.append_seconds;
      row["retier_seconds"] = layer.retier_seconds;
      row["attend_seconds"] = layer.attend_seconds;
      if (report.nominal > 0) row["nominal_ratio"] = report.nominal;
    }
    json["layers"].push_back(row);
  }
  const double seconds = generation.prefill_seconds + generation.decode_seconds;
  json["summary"] = {
      {"total_latency_ms", 1e3 * seconds},
      {"peak_memory_bytes", total.packed_bytes},
      {"mean_compression_ratio", ratios / static_cast<double>(reports.size())},
      {"tokens_per_second", (generation.n_prompt + generation.n_generated) / seconds},
      {"prefill_tokens_per_second", generation.n_prompt / generation.prefill_seconds},
      {"decode_tokens_per_second",
       generation.n_generated > 1 ? Json((generation.n_generated - 1) / generation.decode_seconds)
                                  : Json(nullptr)},
      {"f16_bytes", total.f16_bytes},
      {"peak_rss_bytes", PeakRss()}};
  return json;
}

void PrintTables(const CacheSpec& cache, const Generation& generation,
                 const std::vector<LayerReport>& reports) {
  Table table({"layer", "recent", "mid", "old", "sink", "K bits", "held", "as f16", "ratio",
               "append", "demote", "attend"});
  const auto add = [&](const std::string& name, const LayerFigures& layer) {
    std::vector<std::string> row = {name};
    for (int64_t tokens : layer.tier_tokens)
      row.push_back(cache.stock ? "-" : fmt::format("{}", tokens));
    row.push_back(layer.last_key_bits > 0 ? std::to_string(layer.last_key_bits) : "");
    const double ratio = static_cast<double>(layer.f16_bytes) /
                         static_cast<double>(std::max<uint64_t>(layer.packed_bytes, 1));
    row.insert(row.end(), {FormatBytes(layer.packed_bytes), FormatBytes(layer.f16_bytes),
                           fmt::format("{:.2f}x", ratio)});
    for (double seconds : {layer.append_seconds, layer.retier_seconds, layer.attend_seconds}) {
      row.push_back(cache.stock ? "-" : FormatSeconds(seconds));
    }
    table.AddRow(row);
  };
  for (const LayerReport& report : reports)
    add(std::to_string(report.figures.layer), report.figures);
  const LayerFigures total = Total(reports);
  add("all", total);
  std::string text = generation.text;
  if (text.empty() || text.back() != '\n') text += '\n';
  text += "\n" + table.ToString();
  text += fmt::format(
      "\n{}{}{}: {} held for {}, {:.2f} bits an element, scales and slack included\n", cache.label,
      cache.settings.empty() ? "" : " with ", cache.settings, FormatBytes(total.packed_bytes),
      FormatBytes(total.f16_bytes),
      16.0 * static_cast<double>(total.packed_bytes) / static_cast<double>(total.f16_bytes));
  if (reports.front().nominal > 0) {
    text += fmt::format("nominal ratio as the original counts it, without scales: {:.2f}x\n",
                        reports.front().nominal);
  }
  text += fmt::format("prompt {} tokens at {:.1f} tokens/s", generation.n_prompt,
                      generation.n_prompt / generation.prefill_seconds);
  if (generation.n_generated > 1) {
    text += fmt::format(", generated {} at {:.1f} tokens/s", generation.n_generated,
                        (generation.n_generated - 1) / generation.decode_seconds);
  }
  text += fmt::format("; peak RSS of the process {}\n", FormatBytes(PeakRss()));
  WriteStdout(text);
}

void Run(const Options& options) {
  CatchInterrupt();
  const CacheSpec cache = ParseCache(options.method, options.sets);
  const std::string text =
      options.prompt_file.empty() ? options.prompt : ReadText("--prompt-file", options.prompt_file);
  CheckModelFile(options.model.model);
  Plugin* plugin = cache.stock ? nullptr : &Plugin::Get(options.model.plugin);
  const ModelPtr model = LoadModel(options.model.model, plugin ? plugin->device() : nullptr);
  const std::vector<llama_token> prompt = Tokenize(model.get(), text, true);
  if (prompt.empty()) Fail(ExitCode::kUsage, "--prompt: the text is empty");
  const int needed = static_cast<int>(prompt.size()) + options.max_tokens;
  const int n_ctx = options.ctx == "0" ? needed : ParseTokens("--ctx", options.ctx);
  if (n_ctx < needed) {
    Fail(ExitCode::kUsage, "--ctx {}: the prompt's {} tokens and --max-tokens {} need {}", n_ctx,
         prompt.size(), options.max_tokens, needed);
  }
  ContextOptions context_options;
  context_options.n_ctx = n_ctx;
  context_options.n_batch = std::min(kPrefillBatch, n_ctx);
  context_options.n_threads = options.model.threads;
  const CacheContext context(model.get(), cache, plugin, context_options);
  const Generation generation = Generate(options, model.get(), context.get(), prompt);
  const ModelShape shape = ReadModelShape(options.model.model, n_ctx, context_options.n_batch);
  const std::vector<LayerReport> reports = MakeReports(
      cache, shape, context, generation.n_prompt + std::max(0, generation.n_generated - 1));
  if (options.json) {
    WriteJson(ToJson(options, cache, generation, reports));
  } else {
    PrintTables(cache, generation, reports);
  }
  CheckInterrupt("the figures are those of the part that was generated");
}

}  // namespace

void AddProfile(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      app, "profile", "generate with one cache; bytes, tiers and times of every layer",
      "  varve profile --model smollm2.gguf --method age_tiered --set age_bits_old=3 \\\n"
      "      --prompt-file chapter.txt --max-tokens 64");
  AddModelOptions(command, &options->model, true);
  command
      ->add_option("--method", options->method,
                   "method, preset or type of llama.cpp; see `varve methods`")
      ->capture_default_str();
  AddSetOption(command, &options->sets);
  CLI::Option* prompt = command->add_option("-p,--prompt", options->prompt, "text to continue");
  command
      ->add_option("-f,--prompt-file", options->prompt_file,
                   "file with the text to continue; - is stdin")
      ->type_name("FILE")
      ->excludes(prompt);
  command->add_option("-n,--max-tokens", options->max_tokens, "tokens to generate")
      ->capture_default_str()
      ->check(InRange(1, 1 << 20));
  command
      ->add_option("-c,--ctx", options->ctx,
                   "context in tokens, like 4096 or 32k; 0 is what is needed")
      ->capture_default_str();
  command
      ->add_option("--temp", options->temperature,
                   "sampling temperature; 0 takes the likeliest token")
      ->capture_default_str()
      ->check(InRange(0.0, 100.0));
  command->add_option("--seed", options->seed, "seed of the sampling")->capture_default_str();
  command->add_flag("--json", options->json, "JSON (schema docs/cli/schema/profile.json)");
  command->callback([options] { Run(*options); });
}

}  // namespace varve::cli
