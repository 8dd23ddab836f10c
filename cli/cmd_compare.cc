// varve compare: several caches on one text, against f16: quality, bits that are really held,
// speed.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "llm/model.h"
#include "llm/plugin.h"
#include "measure/comparison.h"
#include "measure/estimate.h"
#include "report/html.h"
#include "support/failure.h"
#include "support/methods.h"
#include "support/output.h"
#include "support/table.h"
#include "support/units.h"

namespace varve::cli {
namespace {

struct Options {
  ModelOptions model;
  std::string text;
  std::string ctx = "1024";
  int chunks = 2;
  int step = 32;
  int score_from = -1;
  std::string methods = "f16,q8_0,q4_0,safe,balanced,small";
  std::vector<std::string> sets;
  int error_layers = 6;
  int decode = 32;
  int speed_runs = 2;
  std::string html;
  std::string state;
  bool fresh = false;
  bool json = false;
};

/// Reference first: f16 is put in front, or moved there.
std::vector<CacheSpec> WithReference(std::vector<CacheSpec> caches) {
  const auto reference = std::find_if(caches.begin(), caches.end(),
                                      [](const CacheSpec& c) { return c.label == "f16"; });
  if (reference == caches.end()) {
    caches.insert(caches.begin(), ParseCache("f16", {}));
  } else {
    std::rotate(caches.begin(), reference, reference + 1);
  }
  return caches;
}

/// Size and time of change, so that a changed file is another comparison.
Json FileIdentity(const std::string& path) {
  struct stat status {};
  if (path == "-" || stat(path.c_str(), &status) != 0) return path;
  return {path, status.st_size, status.st_mtime};
}

Json Identity(const ComparisonPlan& plan, const Options& options, size_t n_tokens) {
  Json caches = Json::array();
  for (const CacheSpec& cache : plan.caches)
    caches.push_back({cache.label, cache.method, cache.settings});
  return {{"comparison", 1},
          {"varve_version", varve_version()},
          {"llama_version", llama_version()},
          {"isa", varve_isa()},
          {"model", FileIdentity(plan.model_path)},
          {"text", FileIdentity(plan.text_path)},
          {"n_tokens", n_tokens},
          {"n_ctx", plan.n_ctx},
          {"step", plan.step},
          {"error_layers", plan.n_error_layers},
          {"n_decode", plan.n_decode},
          {"speed_runs", plan.speed_runs},
          {"threads", options.model.threads},
          {"caches", caches}};
}

std::string WithInterval(double mean, double half_width) {
  const int digits = mean < 0.0995 ? 4 : 3;
  return fmt::format("{:.{}f} ±{:.{}f}", mean, digits, half_width, digits);
}

std::string QualityTable(const Json& result) {
  Table table({"<cache", "bits", "held", "KLD mean", "median", "p99", "same top %", "perplexity",
               "vs f16 %"});
  for (const Json& row : result.at("methods")) {
    const Json& kld = row.at("kld");
    const Json& perplexity = row.at("perplexity");
    const Json& ratio = row.at("perplexity_ratio");
    const double value = perplexity.at("value");
    const double half =
        (perplexity.at("high").get<double>() - perplexity.at("low").get<double>()) / 2;
    const double excess = 100 * (ratio.at("value").get<double>() - 1);
    const double excess_half =
        50 * (ratio.at("high").get<double>() - ratio.at("low").get<double>());
    const bool reference = row.at("reference");
    table.AddRow(
        {row.at("name"), fmt::format("{:.2f}", row.at("bits_per_element").get<double>()),
         FormatBytes(row.at("bytes")),
         reference ? "-" : WithInterval(kld.at("mean"), kld.at("half_width_95")),
         reference ? "-" : fmt::format("{:.4f}", kld.at("median").get<double>()),
         reference ? "-" : fmt::format("{:.3f}", kld.at("p99").get<double>()),
         reference
             ? "-"
             : fmt::format("{:.1f} ±{:.1f}", 100 * row.at("same_top").at("share").get<double>(),
                           100 * row.at("same_top").at("half_width_95").get<double>()),
         fmt::format("{:.2f} ±{:.2f}", value, half),
         reference ? "-" : fmt::format("{:+.2f} ±{:.2f}", excess, excess_half)});
  }
  return table.ToString();
}

std::string CostTable(const Json& result) {
  Table table({"<cache", "K error", "V error", "output error", "steps tok/s", "prefill tok/s",
               "decode tok/s"});
  const auto speed = [](const Json& row, const char* key) {
    return row.at("speed").is_null() ? std::string("-")
                                     : fmt::format("{:.1f}", row.at("speed").at(key).get<double>());
  };
  const auto error = [](const Json& row, const char* key) {
    return row.at("errors").is_null()
               ? std::string("-")
               : fmt::format("{:.4f}", row.at("errors").at(key).get<double>());
  };
  for (const Json& row : result.at("methods")) {
    table.AddRow({row.at("name"), error(row, "k"), error(row, "v"), error(row, "output"),
                  fmt::format("{:.1f}", row.at("step_tokens_per_second").get<double>()),
                  speed(row, "prefill_tokens_per_second"), speed(row, "decode_tokens_per_second")});
  }
  return table.ToString();
}

void Print(const Json& result) {
  const Json& first = result.at("methods").front();
  std::string out = fmt::format(
      "{}, {}\n{} chunk{} of {} tokens in steps of {}; {} predictions scored, from position {} "
      "on\n\n",
      result.at("model").at("description").get<std::string>(), result.at("text").get<std::string>(),
      result.at("n_chunks").get<int>(), result.at("n_chunks") == 1 ? "" : "s",
      result.at("n_ctx").get<int>(), result.at("step").get<int>(),
      first.at("n_scored").get<size_t>(), result.at("score_from").get<int>());
  out += QualityTable(result) + "\n" + CostTable(result);
  out +=
      "\nbits: bytes held / elements of K and V, all included. KLD: of the next token, against "
      "f16.\n"
      "±: 95 % interval that allows for neighbours being alike. Errors: relative, on the same "
      "keys,\n"
      "values and queries for all.\n";
  WriteStdout(out);
}

void Run(const Options& options) {
  CatchInterrupt();
  ComparisonPlan plan;
  plan.model_path = options.model.model;
  plan.text_path = options.text;
  plan.n_ctx = ParseTokens("--ctx", options.ctx);
  plan.step = std::min(options.step, plan.n_ctx);
  plan.n_error_layers = options.error_layers;
  plan.n_decode = options.decode;
  plan.speed_runs = options.speed_runs;
  plan.n_threads = options.model.threads;
  plan.score_from = options.score_from >= 0 ? options.score_from : plan.n_ctx / 2;
  plan.caches = WithReference(ParseCaches(options.methods, options.sets));
  if (plan.n_ctx < 16)
    Fail(ExitCode::kUsage, "--ctx {}: at least 16 tokens are needed", plan.n_ctx);
  if (plan.score_from > plan.n_ctx - 2) {
    Fail(ExitCode::kUsage, "--score-from {}: must be below --ctx {} minus 1", plan.score_from,
         plan.n_ctx);
  }
  if (!options.html.empty()) CheckWritable("--html", options.html);
  const std::string text = ReadText("--text", options.text);
  const ModelShape shape = ReadModelShape(plan.model_path, plan.n_ctx, plan.step);
  if (plan.n_ctx > shape.n_ctx_train) {
    Fail(ExitCode::kUsage, "--ctx {}: the model was trained for {} tokens", plan.n_ctx,
         shape.n_ctx_train);
  }
  Plugin* plugin = nullptr;
  for (const CacheSpec& cache : plan.caches) {
    if (cache.stock) continue;
    const CacheEstimate estimate = EstimateCache(cache, shape, 0);
    if (!estimate.reason.empty())
      Fail(ExitCode::kUsage, "{} cannot run inside llama.cpp: {}", cache.label, estimate.reason);
    plugin = &Plugin::Get(options.model.plugin);
  }
  const ModelPtr model = LoadModel(plan.model_path, plugin ? plugin->device() : nullptr);
  std::vector<llama_token> tokens = Tokenize(model.get(), text, true);
  const int n_available = static_cast<int>(tokens.size()) / plan.n_ctx;
  if (n_available == 0) {
    Fail(ExitCode::kFailed,
         "--text {}: has {} tokens, fewer than one chunk of --ctx {}; give a longer text or --ctx "
         "{}",
         options.text, tokens.size(), plan.n_ctx, std::max<size_t>(16, tokens.size() / 16 * 16));
  }
  plan.n_chunks = std::min(options.chunks, n_available);
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  for (int chunk = 0; chunk < plan.n_chunks && llama_vocab_get_add_bos(vocab); ++chunk) {
    tokens[static_cast<size_t>(chunk) * static_cast<size_t>(plan.n_ctx)] = llama_vocab_bos(vocab);
  }

  Checkpoint checkpoint(options.state, Identity(plan, options, tokens.size()), options.fresh);
  if (checkpoint.n_found() > 0) {
    fmt::print(stderr, "varve: going on with {} finished pieces from {}\n", checkpoint.n_found(),
               checkpoint.path());
  }
  const std::vector<CacheFigures> figures =
      RunComparison(plan, model.get(), shape, plugin, tokens, checkpoint);
  const Json result = ComparisonJson(plan, shape, figures);
  if (!options.html.empty()) WriteFile(options.html, MakeHtmlReport(result));
  if (options.json) {
    WriteJson(result);
  } else {
    Print(result);
  }
  checkpoint.Remove();
}

}  // namespace

void AddCompare(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, "compare", "quality, bits and speed of several caches on a text, against f16",
                 "  varve compare --model smollm2.gguf --text book.txt --ctx 2k \\\n"
                 "      --methods q8_0,q4_0,balanced,age_tiered:age_bits_old=3 --html report.html");
  AddModelOptions(command, &options->model, true);
  command->add_option("--text", options->text, "text to evaluate on; - is stdin")
      ->required()
      ->type_name("FILE");
  command->add_option("-c,--ctx", options->ctx, "tokens a chunk, like 1024 or 4k")
      ->capture_default_str();
  command->add_option("--chunks", options->chunks, "chunks at most")
      ->capture_default_str()
      ->check(InRange(1, 1 << 20));
  command
      ->add_option("--step", options->step, "tokens decoded at a time; 1 is what generation does")
      ->capture_default_str()
      ->check(InRange(1, 4096));
  command
      ->add_option("--score-from", options->score_from,
                   "first position that counts (default: half of --ctx)")
      ->check(InRange(0, 1 << 30));
  command
      ->add_option("--methods", options->methods,
                   "comma list; METHOD:FIELD=VALUE+FIELD=VALUE sets fields of one")
      ->capture_default_str();
  AddSetOption(command, &options->sets);
  command
      ->add_option("--error-layers", options->error_layers,
                   "layers whose K, V and output errors are measured; 0: none")
      ->capture_default_str()
      ->check(InRange(0, 100000));
  command
      ->add_option("--decode", options->decode,
                   "tokens decoded singly for the speed; 0: no speed measurement")
      ->capture_default_str()
      ->check(InRange(0, 1 << 20));
  command->add_option("--speed-runs", options->speed_runs, "the best of so many runs counts")
      ->capture_default_str()
      ->check(InRange(1, 1000));
  command->add_option("--html", options->html, "write a report with plots to this file")
      ->type_name("FILE");
  command
      ->add_option("--state", options->state,
                   "file that keeps finished pieces until the end (default: in the user's cache)")
      ->type_name("FILE");
  command->add_flag("--fresh", options->fresh, "forget pieces of an interrupted run");
  command->add_flag("--json", options->json, "JSON (schema docs/cli/schema/compare.json)");
  command->callback([options] { Run(*options); });
}

}  // namespace varve::cli
