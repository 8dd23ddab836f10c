// varve doctor: does this machine have what varve needs? Each failure with its cure.
#include <fmt/format.h>
#include <ggml-backend.h>
#include <ggml.h>
#include <llama.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "commands.h"
#include "llm/host_program.h"
#include "llm/model.h"
#include "llm/plugin.h"
#include "llm/tiny_model.h"
#include "measure/quality.h"
#include "support/failure.h"
#include "support/methods.h"
#include "support/output.h"
#include "support/subprocess.h"
#include "support/table.h"
#include "support/units.h"

namespace varve::cli {
namespace {

constexpr int kSchemaVersion = 1;
constexpr int kProbeTokens = 192;      // past the first tier boundary of every method's defaults
constexpr double kLargestShare = 0.1;  // of the divergence that losing the whole context makes

struct Options {
  std::string model;
  std::string plugin;
  std::string program = "llama-server";
  bool json = false;
};

enum class State { kOk, kWarning, kFailed };

struct Check {
  std::string name;
  State state = State::kOk;
  std::string detail;
  std::string cure;
};

const char* StateName(State state) {
  return state == State::kOk ? "ok" : state == State::kWarning ? "warning" : "failed";
}

Check CheckCpu() {
  const std::string isa = varve_isa();
  Check check{"CPU kernels", State::kOk, isa, ""};
  if (isa == "scalar") {
    check.state = State::kWarning;
    check.detail = "scalar: right but slow";
    check.cure = std::getenv("VARVE_ISA")
                     ? "unset VARVE_ISA"
                     : "a CPU with AVX2 or AVX-512 VNNI is 10 to 30 times faster";
  }
  return check;
}

Check CheckLlama() {
  return {"llama.cpp", State::kOk, fmt::format("{}, ggml {}", llama_version(), ggml_version()), ""};
}

Check CheckEnvironment() {
  Check check{"environment", State::kOk, "no VARVE_METHOD or VARVE_SET", ""};
  const char* method = std::getenv("VARVE_METHOD");
  const char* set = std::getenv("VARVE_SET");
  if (!method && !set) return check;
  check.detail = fmt::format("VARVE_METHOD={} VARVE_SET={}", method ? method : "", set ? set : "");
  varve_config* raw = nullptr;
  varve_status status = varve_config_create(&raw);
  const ConfigPtr config(raw);
  if (status == VARVE_OK && method && *method) {
    const std::vector<std::string>& presets = PresetNames();
    status = std::find(presets.begin(), presets.end(), method) != presets.end()
                 ? varve_config_preset(raw, method)
                 : varve_config_set(raw, "method", method);
  }
  if (status == VARVE_OK && set && *set) status = varve_config_set_list(raw, set);
  if (status == VARVE_OK) status = varve_config_check(raw);
  if (status != VARVE_OK) {
    check.state = State::kFailed;
    check.detail += fmt::format(": {}", varve_last_error());
    check.cure = "unset them, or set what `varve methods` lists";
  }
  return check;
}

Check CheckPlugin(const Options& options, Plugin** plugin) {
  Check check{"plugin", State::kOk, "", ""};
  try {
    *plugin = &Plugin::Get(options.plugin);
    check.detail = (*plugin)->path();
  } catch (const Failure& failure) {
    check.state = State::kFailed;
    check.detail = failure.what();
    check.cure = "build it from this tree with -DVARVE_BUILD_GGML=ON and the llama.cpp in use";
  }
  return check;
}

Check CheckDevice(const Plugin& plugin) {
  ggml_backend_dev_props props{};
  ggml_backend_dev_get_props(plugin.device(), &props);
  Check check{"device", State::kOk, "", ""};
  check.detail = fmt::format("{} ({}), {} free as f16 counts", props.name, props.description,
                             FormatBytes(props.memory_free));
  if (props.type != GGML_BACKEND_DEVICE_TYPE_GPU) {
    check.state = State::kFailed;
    check.cure =
        "llama.cpp places a KV cache on GPU-type devices only; install the plugin of this version";
  } else if (props.memory_free == 0) {
    check.state = State::kFailed;
    check.cure = "the device reports no free memory; close other programs";
  }
  return check;
}

/// Logits of the last of kProbeTokens tokens, with the `n_context` before it in the cache.
std::vector<float> RunProbe(llama_model* model, bool on_device, int n_context) {
  ContextOptions options;
  options.n_ctx = 256;
  options.n_batch = 32;
  options.n_threads = std::min(4, DefaultThreads());
  options.kv_on_device = on_device;
  const ContextPtr context = MakeContext(model, options);
  const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
  std::vector<llama_token> tokens;
  for (int i = kProbeTokens - 1 - n_context; i < kProbeTokens; ++i) {
    tokens.push_back((i * 37 + 11) % std::min(n_vocab, kTinyModelVocab));
  }
  for (size_t first = 0; first < tokens.size(); first += static_cast<size_t>(options.n_batch)) {
    const size_t n = std::min(tokens.size() - first, static_cast<size_t>(options.n_batch));
    Decode(context.get(), std::span(tokens).subspan(first, n), static_cast<int>(first), false);
  }
  const float* logits = llama_get_logits_ith(context.get(), -1);
  return {logits, logits + n_vocab};
}

Check CheckModelRuns(const Options& options, Plugin& plugin) {
  Check check{options.model.empty() ? "tiny model" : "model", State::kOk, "", ""};
  std::string path = options.model;
  try {
    if (options.model.empty()) path = WriteTinyModel();
    plugin.Configure("age_tiered", "");
    const ModelPtr model = LoadModel(path, plugin.device());
    const ReferenceRow reference = MakeReference(RunProbe(model.get(), false, kProbeTokens - 1));
    const double divergence =
        ScoreRow(reference, RunProbe(model.get(), true, kProbeTokens - 1), 0).kld;
    const double without_context = ScoreRow(reference, RunProbe(model.get(), false, 0), 0).kld;
    check.detail = fmt::format(
        "{} tokens through age_tiered: KLD {:.2g} to the f16 cache (without a context: {:.2g})",
        kProbeTokens, divergence, without_context);
    if (!(divergence < kLargestShare * without_context)) {
      check.state = State::kFailed;
      check.cure =
          "please report this with the output of varve doctor --json; VARVE_ISA=scalar may work "
          "meanwhile";
    }
  } catch (const Failure& failure) {
    check.state = State::kFailed;
    check.detail = failure.what();
    check.cure = options.model.empty() ? "check free memory and the temporary folder"
                                       : "try without --model";
  }
  if (options.model.empty() && !path.empty()) unlink(path.c_str());
  return check;
}

Check CheckProgram(const Options& options, const std::string& plugin_path) {
  Check check{options.program, State::kOk, "", ""};
  const std::string program = FindProgram(options.program, VARVE_CLI_LLAMA_BIN_DIR);
  if (program.empty()) {
    check.state = State::kWarning;
    check.detail = "not on the PATH";
    check.cure =
        "put your llama.cpp's programs on the PATH, or give --program with the path of one";
    return check;
  }
  const HostCheck host = CheckHostProgram(program, plugin_path);
  check.state = host.loads ? State::kOk : State::kFailed;
  check.detail = fmt::format("{}: {}", program, host.detail);
  check.cure = host.cure;
  return check;
}

void Run(const Options& options) {
  std::vector<Check> checks = {CheckCpu(), CheckLlama(), CheckEnvironment()};
  Plugin* plugin = nullptr;
  checks.push_back(CheckPlugin(options, &plugin));
  if (plugin) {
    checks.push_back(CheckDevice(*plugin));
    checks.push_back(CheckModelRuns(options, *plugin));
    checks.push_back(CheckProgram(options, plugin->path()));
  }
  size_t n_failed = 0;
  Json json = MakeResult("doctor", kSchemaVersion);
  json["checks"] = Json::array();
  Table table({"<check", "<state", "<detail"});
  for (const Check& check : checks) {
    n_failed += check.state == State::kFailed;
    json["checks"].push_back({{"name", check.name},
                              {"state", StateName(check.state)},
                              {"detail", check.detail},
                              {"cure", check.cure}});
    table.AddRow({check.name, StateName(check.state), check.detail});
    if (!check.cure.empty()) table.AddRow({"", "", "cure: " + check.cure});
  }
  json["n_failed"] = n_failed;
  if (options.json) {
    WriteJson(json);
  } else {
    WriteStdout(table.ToString());
  }
  if (n_failed > 0) {
    Fail(ExitCode::kNothingFits, "{} of {} checks failed; see the cure under each", n_failed,
         checks.size());
  }
}

}  // namespace

void AddDoctor(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command =
      AddCommand(app, "doctor", "check CPU, llama.cpp, plugin and device; say what to do",
                 "  varve doctor\n  varve doctor --program ~/llama.cpp/build/bin/llama-server");
  command
      ->add_option("-m,--model", options->model,
                   "a model to run (default: a tiny one made for the check)")
      ->type_name("FILE");
  command
      ->add_option("--plugin", options->plugin,
                   "libggml-varve.so to check (default: found next to this program)")
      ->type_name("FILE");
  command->add_option("--program", options->program, "the llama.cpp program to check")
      ->capture_default_str();
  command->add_flag("--json", options->json, "JSON (schema docs/cli/schema/doctor.json)");
  command->callback([options] { Run(*options); });
}

}  // namespace varve::cli
