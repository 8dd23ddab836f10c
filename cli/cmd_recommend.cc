// varve recommend: the best cache that fits a machine and a context, what it loses, and what to do
// when nothing fits.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "llm/model.h"
#include "llm/model_shape.h"
#include "llm/plugin.h"
#include "measure/estimate.h"
#include "measure/key_bits.h"
#include "measure/lockstep.h"
#include "measure/quality.h"
#include "support/failure.h"
#include "support/methods.h"
#include "support/output.h"
#include "support/table.h"
#include "support/units.h"

namespace varve::cli {
namespace {

constexpr int kSchemaVersion = 1;
constexpr int kMeasuredTokens = 1024;
constexpr int kMeasuredStep = 32;
constexpr int kBatch = 512;

struct Candidate {
  const char* name;
  const char* expectation;  ///< the range over the models of docs/quality.md
};

// Best quality first. q4_0 is not among them: it breaks models with a large key bias, and `small`
// is smaller.
constexpr std::array<Candidate, 5> kCandidates = {{
    {"f16", "exact"},
    {"q8_0", "KLD 0.004 to 0.009 on three small models"},
    {"safe", "KLD 0.007 to 0.013 on three small models"},
    {"balanced", "KLD 0.012 to 0.023 on three small models"},
    {"small", "KLD 0.018 to 0.032 on three small models"},
}};

struct Options {
  ModelOptions model;
  std::string ram;
  std::string ctx = "0";
  std::string text;
  bool json = false;
};

struct Row {
  Candidate candidate;
  CacheSpec cache;
  std::optional<KeyBits> key_bits;  ///< measured
  uint64_t kv_bytes = 0;            ///< the most it can be as long as key_bits are not known
  uint64_t total_bytes = 0;
  bool fits = false;
  std::optional<Interval> kld;  ///< measured
};

/// MemAvailable of /proc/meminfo.
uint64_t AvailableRam() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kField = "MemAvailable:";
    if (line.rfind(kField, 0) == 0)
      return 1024 * std::strtoull(line.c_str() + kField.size(), nullptr, 10);
  }
  Fail(ExitCode::kUsage,
       "--ram: this system does not tell its free memory; give it, like --ram 8G");
}

uint64_t OtherBytes(const ModelShape& shape) { return shape.weight_bytes + shape.compute_bytes; }

uint64_t KvBytes(const Row& row, const ModelShape& shape) {
  return EstimateCache(row.cache, shape, shape.n_ctx, row.key_bits ? &*row.key_bits : nullptr)
      .most_bytes;
}

void FillSizes(std::vector<Row>& rows, const ModelShape& shape, uint64_t ram) {
  for (Row& row : rows) {
    row.kv_bytes = KvBytes(row, shape);
    row.total_bytes = row.kv_bytes + OtherBytes(shape);
    row.fits = row.total_bytes <= ram;
  }
}

/// The longest context, in steps of 256 tokens, for which a cache fits into ram; 0 if none does.
int LongestContext(const Row& row, const std::string& path, int longest, uint64_t ram) {
  const ModelPtr model = LoadModelWithoutWeights(path);
  int fits = 0;
  int too_long = longest / 256 + 1;
  while (fits + 1 < too_long) {
    const int middle = (fits + too_long) / 2;
    const ModelShape shape = ReadModelShape(model.get(), path, middle * 256, kBatch);
    const bool ok = KvBytes(row, shape) + OtherBytes(shape) <= ram;
    (ok ? fits : too_long) = middle;
  }
  return fits * 256;
}

/// Where the keys of each candidate end. Worth running the model for only if the answer hangs on
/// it: no cache of llama.cpp's own is taken, and the weights fit.
void MeasureKeys(const Options& options, const ModelShape& shape, uint64_t ram,
                 std::vector<Row>& rows) {
  const bool stock_fits = std::any_of(rows.begin(), rows.end(),
                                      [](const Row& row) { return row.cache.stock && row.fits; });
  const std::string text = options.text.empty() ? "" : ReadText("--text", options.text);
  if (stock_fits || OtherBytes(shape) > ram || FindPlugin(options.model.plugin).empty()) return;
  Plugin& plugin = Plugin::Get(options.model.plugin);
  const ModelPtr model = LoadModel(options.model.model, plugin.device());
  Progress progress("recommend");
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].cache.stock) continue;
    rows[i].key_bits = MeasureKeyBits(
        model.get(), rows[i].cache, plugin, text, options.model.threads, [&](int done) {
          CheckInterrupt();
          progress.Update(static_cast<double>(i) + done / static_cast<double>(kKeyBitsTokens),
                          static_cast<double>(rows.size()), rows[i].candidate.name);
        });
  }
}

void MeasureQuality(const Options& options, std::vector<Row>& rows) {
  const std::string text = ReadText("--text", options.text);
  Plugin& plugin = Plugin::Get(options.model.plugin);
  const ModelPtr model = LoadModel(options.model.model, plugin.device());
  std::vector<llama_token> tokens = Tokenize(model.get(), text, true);
  if (tokens.size() < 2 * kMeasuredStep) {
    Fail(ExitCode::kFailed, "--text {}: has {} tokens; at least {} are needed", options.text,
         tokens.size(), 2 * kMeasuredStep);
  }
  tokens.resize(std::min<size_t>(tokens.size(), kMeasuredTokens));
  std::vector<CacheSpec> caches;
  caches.reserve(rows.size());
  for (const Row& row : rows) caches.push_back(ParseCache(row.candidate.name, {}));
  Progress progress("recommend");
  const LockstepOptions lockstep{static_cast<int>(tokens.size()), kMeasuredStep,
                                 options.model.threads};
  const std::vector<ChunkScores> scores =
      RunChunk(model.get(), caches, &plugin, tokens, lockstep, [&](int done) {
        CheckInterrupt();
        progress.Update(done, static_cast<double>(tokens.size()), "measuring");
      });
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].kld = MeanInterval(std::span(scores[i].kld).subspan(scores[i].kld.size() / 2));
  }
}

std::string Quality(const Row& row) {
  if (!row.kld) return row.candidate.expectation;
  return fmt::format("KLD {:.4f} ±{:.4f}, measured", row.kld->mean, row.kld->half_width);
}

std::string RunLine(const std::string& name, const std::string& model, int n_ctx) {
  if (name == "f16" || name == "q8_0")
    return fmt::format("llama-server -m {} -c {} -fa on -ctk {} -ctv {}", model, n_ctx, name, name);
  return fmt::format("varve run --method {} -- llama-server -m {} -c {}", name, model, n_ctx);
}

/// What would fit: a shorter context with the smallest cache, or so much memory.
Json Advice(const Options& options, const ModelShape& shape, const std::vector<Row>& rows,
            uint64_t ram) {
  const Row& smallest = *std::min_element(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.total_bytes < b.total_bytes;
  });
  const int context = LongestContext(smallest, options.model.model, shape.n_ctx, ram);
  std::string text;
  if (OtherBytes(shape) > ram) {
    text = fmt::format(
        "the weights and llama.cpp's scratch alone take {}: use a smaller quantisation of the "
        "model",
        FormatBytes(OtherBytes(shape)));
  } else if (context > 0) {
    text = fmt::format("{} fits with --ctx {}, or give {} for --ctx {}", smallest.candidate.name,
                       context, FormatBytes(smallest.total_bytes), shape.n_ctx);
  } else {
    text = fmt::format("even {} needs {} for --ctx {}", smallest.candidate.name,
                       FormatBytes(smallest.total_bytes), shape.n_ctx);
  }
  return {{"text", text},
          {"longest_ctx", context},
          {"ram_needed", smallest.total_bytes},
          {"method", smallest.candidate.name}};
}

void Run(const Options& options) {
  CatchInterrupt();
  const int wanted = options.ctx == "0" ? 0 : ParseTokens("--ctx", options.ctx);
  const uint64_t ram = options.ram.empty() ? AvailableRam() : ParseBytes("--ram", options.ram);
  const ModelShape shape = ReadModelShape(options.model.model, wanted, kBatch);
  if (wanted > shape.n_ctx_train) {
    Fail(ExitCode::kUsage, "--ctx {}: the model was trained for {} tokens", wanted,
         shape.n_ctx_train);
  }
  std::vector<Row> rows;
  for (const Candidate& candidate : kCandidates) {
    Row row;
    row.candidate = candidate;
    row.cache = ParseCache(candidate.name, {});
    rows.push_back(std::move(row));
  }
  FillSizes(rows, shape, ram);
  MeasureKeys(options, shape, ram, rows);
  if (!options.text.empty()) MeasureQuality(options, rows);
  FillSizes(rows, shape, ram);
  const auto chosen =
      std::find_if(rows.begin(), rows.end(), [](const Row& row) { return row.fits; });

  Json json = MakeResult("recommend", kSchemaVersion);
  json["model"] = options.model.model;
  json["n_ctx"] = shape.n_ctx;
  json["ram_bytes"] = ram;
  json["weight_bytes"] = shape.weight_bytes;
  json["compute_bytes"] = shape.compute_bytes;
  json["fits"] = chosen != rows.end();
  json["candidates"] = Json::array();
  Table table({"<cache", "KV cache", "with weights and scratch", "<fits", "<quality"});
  for (const Row& row : rows) {
    const bool known = row.cache.stock || row.key_bits;
    table.AddRow({row.candidate.name, (known ? "" : "at most ") + FormatBytes(row.kv_bytes),
                  FormatBytes(row.total_bytes), row.fits ? "yes" : "no", Quality(row)});
    json["candidates"].push_back({{"name", row.candidate.name},
                                  {"kv_bytes", row.kv_bytes},
                                  {"kv_bytes_known", row.cache.stock || row.key_bits.has_value()},
                                  {"total_bytes", row.total_bytes},
                                  {"fits", row.fits},
                                  {"quality", Quality(row)},
                                  {"kld", row.kld ? Json(row.kld->mean) : Json(nullptr)}});
  }
  std::string out = fmt::format("{}, context {} tokens, {} of memory\n\n{}\n", shape.description,
                                shape.n_ctx, FormatBytes(ram), table.ToString());
  if (chosen != rows.end()) {
    const std::string why = chosen == rows.begin()
                                ? "it is exact and fits"
                                : fmt::format("the best quality that fits; {} would need {}",
                                              std::prev(chosen)->candidate.name,
                                              FormatBytes(std::prev(chosen)->total_bytes));
    const std::string line = RunLine(chosen->candidate.name, options.model.model, shape.n_ctx);
    json["recommendation"] = {{"name", chosen->candidate.name}, {"why", why}, {"command", line}};
    json["advice"] = nullptr;
    out += fmt::format("Use {}: {}.\n  {}\n", chosen->candidate.name, why, line);
  } else {
    json["recommendation"] = nullptr;
    json["advice"] = Advice(options, shape, rows, ram);
  }
  if (options.json) {
    WriteJson(json);
  } else {
    WriteStdout(out);
  }
  if (chosen == rows.end()) {
    Fail(ExitCode::kNothingFits, "nothing fits into {}: {}", FormatBytes(ram),
         json["advice"]["text"].get<std::string>());
  }
}

}  // namespace

void AddRecommend(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, "recommend", "the best cache that fits a memory and a context",
                 "  varve recommend --model smollm2.gguf --ram 4G --ctx 32k\n"
                 "  varve recommend --model smollm2.gguf --ram 2G --ctx 8k --text book.txt");
  AddModelOptions(command, &options->model, true);
  command->add_option("--ram", options->ram, "memory to use, like 4G (default: what is free now)")
      ->type_name("SIZE");
  command
      ->add_option("-c,--ctx", options->ctx,
                   "context in tokens, like 4096 or 32k; 0 is the model's own")
      ->capture_default_str();
  command
      ->add_option("--text", options->text,
                   "measure the quality on this text (default: say what is expected)")
      ->type_name("FILE");
  command->add_flag("--json", options->json, "JSON (schema docs/cli/schema/recommend.json)");
  command->callback([options] { Run(*options); });
}

}  // namespace varve::cli
