// varve run: starts a llama.cpp program of the user's with its KV cache in varve.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "commands.h"
#include "llm/host_program.h"
#include "llm/plugin.h"
#include "support/failure.h"
#include "support/methods.h"
#include "support/output.h"
#include "support/subprocess.h"

namespace varve::cli {
namespace {

constexpr int kSchemaVersion = 1;

struct Options {
  std::string method = "balanced";
  std::vector<std::string> sets;
  std::string plugin;
  bool no_check = false;
  bool dry_run = false;
  bool json = false;
  std::vector<std::string> command;
};

bool NamesDevice(const std::string& argument) {
  return argument == "--device" || argument == "-dev" || argument.rfind("--device=", 0) == 0;
}

std::string Quoted(const std::string& text) {
  const bool plain = !text.empty() && text.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789_-./=:,+@%") == std::string::npos;
  if (plain) return text;
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

void Run(const Options& options) {
  const CacheSpec cache = ParseCache(options.method, options.sets);
  if (cache.stock) {
    Fail(
        ExitCode::kUsage,
        "--method {}: this is llama.cpp's own cache; start the program itself with -ctk {} -ctv {}",
        cache.label, ggml_type_name(cache.type_k), ggml_type_name(cache.type_v));
  }
  const std::string plugin = FindPlugin(options.plugin);
  if (plugin.empty()) {
    Fail(ExitCode::kNoPlugin,
         "libggml-varve.so not found (looked at {}); set VARVE_PLUGIN or give --plugin",
         fmt::join(PluginCandidates(options.plugin), ", "));
  }
  const std::string program = FindProgram(options.command.front(), VARVE_CLI_LLAMA_BIN_DIR);
  if (program.empty()) {
    Fail(ExitCode::kFailed, "{}: no such program on the PATH; give the path of your llama.cpp's",
         options.command.front());
  }
  if (!options.no_check) {
    const HostCheck check = CheckHostProgram(program, plugin);
    if (!check.loads) {
      Fail(ExitCode::kNoPlugin, "{} would not use the plugin: {}; {}", program, check.detail,
           check.cure);
    }
  }
  std::vector<std::string> arguments = options.command;
  arguments.front() = program;
  if (std::none_of(arguments.begin() + 1, arguments.end(), NamesDevice)) {
    arguments.insert(arguments.begin() + 1, {"--device", kDeviceName});
  }
  // Empty ones, so that what the caller's environment says does not come on top.
  const Environment environment = {{"GGML_BACKEND_PATH", plugin},
                                   {"VARVE_PRESET", ""},
                                   {"VARVE_METHOD", cache.method},
                                   {"VARVE_SET", cache.settings}};
  if (options.json) {
    Json json = MakeResult("run", kSchemaVersion);
    json["environment"] = Json::object();
    for (const auto& [name, value] : environment) json["environment"][name] = value;
    json["command"] = arguments;
    WriteJson(json);
  } else if (options.dry_run) {
    std::string line;
    for (const auto& [name, value] : environment) {
      if (value.empty() && !std::getenv(name.c_str())) continue;
      line += fmt::format("{}={} ", name, Quoted(value));
    }
    for (const std::string& argument : arguments) line += Quoted(argument) + " ";
    line.back() = '\n';
    WriteStdout(line);
  }
  if (!options.dry_run && !options.json) BecomeProgram(arguments, environment);
}

}  // namespace

void AddRun(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* command = AddCommand(
      app, "run", "start a llama.cpp program with its KV cache in varve",
      "  varve run -- llama-server -m smollm2.gguf -c 32768\n"
      "  varve run --method age_tiered --set age_bits_old=3 -- llama-cli -m smollm2.gguf");
  command->add_option("--method", options->method, "method or preset")->capture_default_str();
  AddSetOption(command, &options->sets);
  command
      ->add_option("--plugin", options->plugin,
                   "libggml-varve.so to load (default: found next to this program)")
      ->type_name("FILE");
  command->add_flag("--no-check", options->no_check,
                    "do not ask the program first whether it would load the plugin");
  command->add_flag("--dry-run", options->dry_run, "print the command line instead of starting it");
  command->add_flag("--json", options->json,
                    "print environment and command as JSON instead of starting it");
  command->add_option("command", options->command, "the program and its arguments, after --")
      ->required()
      ->type_name("PROGRAM ARGUMENTS");
  command->callback([options] { Run(*options); });
}

}  // namespace varve::cli
