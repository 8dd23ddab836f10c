// varve layers: how much each layer alone costs when it is packed, and settings that spare the
// worst.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "commands.h"
#include "llm/model.h"
#include "llm/model_shape.h"
#include "llm/plugin.h"
#include "measure/checkpoint.h"
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
constexpr int kLayersAtOnce = 8;  // contexts alive together
constexpr double kSensitiveFactor =
    3.0;  // times the median, and above the noise, is worth protecting
constexpr const char* kKeepsHint = "finished layers are kept, the same command goes on from there";

struct Options {
  ModelOptions model;
  std::string text;
  std::string ctx = "512";
  int step = 32;
  std::string method = "small";
  std::vector<std::string> sets;
  std::string protect = "age_bits_old=4";
  int max_protected = 4;
  std::string state;
  bool fresh = false;
  bool json = false;
};

/// What one cache lost on the text and held at its end.
struct Outcome {
  Interval kld;
  double bits = 0;  ///< an element
};

struct LayerCost {
  int layer = 0;
  Interval kld;
};

double MeanOf(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

class Sweep {
 public:
  Sweep(const Options& options, const ModelShape& shape, llama_model* model, Plugin& plugin,
        std::vector<llama_token> tokens, Checkpoint& checkpoint)
      : options_(options),
        shape_(shape),
        model_(model),
        plugin_(plugin),
        tokens_(std::move(tokens)),
        checkpoint_(checkpoint) {}

  /// Mean KLD to f16 of each cache over the second half of the text; kept under `name`.
  std::vector<Outcome> Measure(const std::string& name, std::vector<CacheSpec> caches,
                               const std::string& note) {
    if (!checkpoint_.Find(name)) {
      caches.insert(caches.begin(), ParseCache("f16", {}));
      const LockstepOptions lockstep{shape_.n_ctx, options_.step, options_.model.threads};
      const std::vector<ChunkScores> scores =
          RunChunk(model_, caches, &plugin_, tokens_, lockstep, [&](int done) {
            CheckInterrupt(kKeepsHint);
            progress_.Update(done_ + done / static_cast<double>(tokens_.size()), n_pieces_, note);
          });
      Json piece = Json::array();
      for (size_t c = 1; c < scores.size(); ++c) {
        const std::vector<double>& kld = scores[c].kld;
        const std::span<const double> half = std::span(kld).subspan(kld.size() / 2);
        const Interval interval = MeanInterval(half);
        const double bits = 8.0 * static_cast<double>(HeldBytes(scores[c].layers)) /
                            static_cast<double>(shape_.Elements(shape_.n_ctx));
        piece.push_back({interval.mean, interval.half_width, bits});
      }
      checkpoint_.Add(name, piece);
    }
    ++done_;
    std::vector<Outcome> outcomes;
    for (const Json& entry : *checkpoint_.Find(name))
      outcomes.push_back({{entry.at(0), entry.at(1)}, entry.at(2)});
    return outcomes;
  }

  void set_pieces(int n_pieces) { n_pieces_ = n_pieces; }

 private:
  const Options& options_;
  const ModelShape& shape_;
  llama_model* model_;
  Plugin& plugin_;
  std::vector<llama_token> tokens_;
  Checkpoint& checkpoint_;
  Progress progress_{"layers"};
  double done_ = 0;
  int n_pieces_ = 1;
};

/// All layers exact but one, which is packed as `cache` says.
CacheSpec OnlyLayer(const CacheSpec& cache, int layer) {
  std::vector<std::string> sets = {fmt::format("l{}.method={}", layer, cache.method)};
  std::string rest = cache.settings;
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    sets.push_back(fmt::format("l{}.{}", layer, rest.substr(0, comma)));
    rest.erase(0, comma + 1);
  }
  return ParseCache("fp16", sets);
}

Json CostJson(const LayerCost& cost) {
  return {{"layer", cost.layer}, {"kld", cost.kld.mean}, {"half_width_95", cost.kld.half_width}};
}

void Run(const Options& options) {
  CatchInterrupt();
  const CacheSpec cache = ParseCache(options.method, options.sets);
  if (cache.stock)
    Fail(ExitCode::kUsage, "--method {}: llama.cpp's own caches have no settings a layer",
         cache.label);
  const int n_ctx = ParseTokens("--ctx", options.ctx);
  const std::string text = ReadText("--text", options.text);
  const ModelShape shape = ReadModelShape(options.model.model, n_ctx, options.step);
  Plugin& plugin = Plugin::Get(options.model.plugin);
  const ModelPtr model = LoadModel(options.model.model, plugin.device());
  std::vector<llama_token> tokens = Tokenize(model.get(), text, true);
  if (static_cast<int>(tokens.size()) < n_ctx) {
    Fail(ExitCode::kFailed,
         "--text {}: has {} tokens, fewer than --ctx {}; give a longer text or a smaller --ctx",
         options.text, tokens.size(), n_ctx);
  }
  tokens.resize(static_cast<size_t>(n_ctx));
  const Json identity = {{"layers", 2},
                         {"varve_version", varve_version()},
                         {"model", options.model.model},
                         {"tokens", MeanOf(std::vector<double>(tokens.begin(), tokens.end()))},
                         {"n_ctx", n_ctx},
                         {"step", options.step},
                         {"method", cache.method},
                         {"settings", cache.settings}};
  Checkpoint checkpoint(options.state, identity, options.fresh);
  Sweep sweep(options, shape, model.get(), plugin, tokens, checkpoint);
  const int n_layers = static_cast<int>(shape.layers.size());
  sweep.set_pieces((n_layers + kLayersAtOnce - 1) / kLayersAtOnce + 2);

  std::vector<CacheSpec> whole;
  whole.push_back(ParseCache("fp16", {}));
  whole.push_back(ParseCache(options.method, options.sets));
  const std::vector<Outcome> bounds =
      sweep.Measure("whole", std::move(whole), "no layer, all layers");
  std::vector<LayerCost> costs;
  for (int first = 0; first < n_layers; first += kLayersAtOnce) {
    std::vector<CacheSpec> caches;
    for (int i = first; i < std::min(n_layers, first + kLayersAtOnce); ++i) {
      caches.push_back(OnlyLayer(cache, shape.layers[static_cast<size_t>(i)].layer));
    }
    const size_t n = caches.size();
    const std::vector<Outcome> outcomes =
        sweep.Measure(fmt::format("layers from {}", first), std::move(caches),
                      fmt::format("layers {} to {}", first, first + static_cast<int>(n) - 1));
    for (size_t i = 0; i < n; ++i)
      costs.push_back({shape.layers[static_cast<size_t>(first) + i].layer, outcomes[i].kld});
  }

  const double noise = bounds[0].kld.mean;
  std::vector<double> excess;
  excess.reserve(costs.size());
  for (const LayerCost& cost : costs) excess.push_back(std::max(0.0, cost.kld.mean - noise));
  const double threshold = kSensitiveFactor * Quantile(excess, 0.5);
  std::vector<LayerCost> worst = costs;
  std::sort(worst.begin(), worst.end(),
            [](const LayerCost& a, const LayerCost& b) { return a.kld.mean > b.kld.mean; });
  std::erase_if(worst, [&](const LayerCost& cost) {
    return cost.kld.mean - noise <= threshold || cost.kld.mean - cost.kld.half_width <= noise;
  });
  worst.resize(std::min(worst.size(), static_cast<size_t>(options.max_protected)));

  Json json = MakeResult("layers", kSchemaVersion);
  json["model"] = options.model.model;
  json["method"] = cache.label;
  json["settings"] = cache.settings;
  json["n_ctx"] = n_ctx;
  json["noise_kld"] = noise;
  json["all_layers_kld"] = bounds[1].kld.mean;
  json["layers"] = Json::array();
  for (const LayerCost& cost : costs) json["layers"].push_back(CostJson(cost));
  json["proposal"] = nullptr;

  Table table({"layer", "KLD when it alone is packed", "above noise", "<share of the worst"});
  const double largest = std::max(1e-12, *std::max_element(excess.begin(), excess.end()));
  for (size_t i = 0; i < costs.size(); ++i) {
    const auto width = static_cast<size_t>(std::lround(40 * excess[i] / largest));
    table.AddRow({std::to_string(costs[i].layer),
                  fmt::format("{:.5f} ±{:.5f}", costs[i].kld.mean, costs[i].kld.half_width),
                  fmt::format("{:.5f}", excess[i]), std::string(width, '#')});
  }
  std::string out = fmt::format(
      "{}, {} tokens; all layers with {}{}{}: KLD {:.4f}; all exact (noise): {:.5f}\n\n{}\n",
      shape.description, n_ctx, cache.label, cache.settings.empty() ? "" : " ", cache.settings,
      bounds[1].kld.mean, noise, table.ToString());
  if (worst.empty()) {
    out +=
        "No layer stands out (more than three times the median and above the noise): one setting "
        "for all is right.\n";
  } else {
    std::vector<std::string> sets = options.sets;
    std::string line;
    for (const LayerCost& cost : worst) {
      sets.push_back(fmt::format("l{}.{}", cost.layer, options.protect));
      line += fmt::format(" --set {}", sets.back());
    }
    std::vector<CacheSpec> proposal;
    proposal.push_back(ParseCache(options.method, sets));
    const std::string settings = proposal.front().settings;
    const Outcome after =
        sweep.Measure("proposal " + settings, std::move(proposal), "proposal").front();
    json["proposal"] = {{"settings", settings},
                        {"kld", after.kld.mean},
                        {"half_width_95", after.kld.half_width},
                        {"bits_per_element", after.bits},
                        {"bits_per_element_before", bounds[1].bits}};
    out += fmt::format(
        "Proposal: --method {}{}\nmeasured: KLD {:.4f} ±{:.4f} at {:.2f} bits, instead of {:.4f} "
        "at {:.2f} bits\n",
        options.method, line, after.kld.mean, after.kld.half_width, after.bits, bounds[1].kld.mean,
        bounds[1].bits);
  }
  if (options.json) {
    WriteJson(json);
  } else {
    WriteStdout(out);
  }
  checkpoint.Remove();
}

}  // namespace

void AddLayers(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, "layers", "which layers suffer most when packed; settings that spare them",
                 "  varve layers --model smollm2.gguf --text book.txt --method small");
  AddModelOptions(command, &options->model, true);
  command->add_option("--text", options->text, "text to evaluate on; - is stdin")
      ->required()
      ->type_name("FILE");
  command->add_option("-c,--ctx", options->ctx, "tokens of the text to use, like 512 or 2k")
      ->capture_default_str();
  command->add_option("--step", options->step, "tokens decoded at a time")
      ->capture_default_str()
      ->check(InRange(1, 4096));
  command->add_option("--method", options->method, "method or preset whose layers to look at")
      ->capture_default_str();
  AddSetOption(command, &options->sets);
  command->add_option("--protect", options->protect, "what a sensitive layer gets instead")
      ->capture_default_str()
      ->type_name("FIELD=VALUE");
  command->add_option("--max-protected", options->max_protected, "sensitive layers at most")
      ->capture_default_str()
      ->check(InRange(1, 100000));
  command
      ->add_option("--state", options->state,
                   "file that keeps finished layers until the end (default: in the user's cache)")
      ->type_name("FILE");
  command->add_flag("--fresh", options->fresh, "forget pieces of an interrupted run");
  command->add_flag("--json", options->json, "JSON (schema docs/cli/schema/layers.json)");
  command->callback([options] { Run(*options); });
}

}  // namespace varve::cli
