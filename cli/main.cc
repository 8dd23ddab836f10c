// varve: what a KV cache in tiers costs and gains, for people who have a .gguf and a question.
#include <fmt/format.h>
#include <ggml-backend.h>
#include <llama.h>
#include <signal.h>
#include <varve/varve.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <new>
#include <string>

#include "commands.h"
#include "llm/log.h"
#include "support/failure.h"
#include "support/output.h"

namespace varve::cli {

CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& summary,
                     std::string_view example) {
  CLI::App* command = app.add_subcommand(name, summary);
  command->footer(fmt::format("Example:\n{}", example));
  command->fallthrough();
  return command;
}

void AddModelOptions(CLI::App* command, ModelOptions* options, bool computes) {
  command->add_option("-m,--model", options->model, "the model, a .gguf file")
      ->required()
      ->type_name("FILE");
  if (!computes) return;
  command
      ->add_option("--plugin", options->plugin,
                   "libggml-varve.so to load (default: found next to this program)")
      ->type_name("FILE");
  command->add_option("-t,--threads", options->threads, "threads; 0 is one a core")
      ->capture_default_str()
      ->check(InRange(0, 1024));
}

void AddSetOption(CLI::App* command, std::vector<std::string>* sets) {
  command->add_option("--set", *sets, "a setting of the method; may be given several times")
      ->type_name("FIELD=VALUE")
      ->allow_extra_args(false);
}

namespace {

int Report(ExitCode code, const std::string& text) {
  fmt::print(stderr, "varve: {}\n", text);
  return static_cast<int>(code);
}

int Main(int argc, char** argv) {
  CLI::App app(
      "varve holds the KV cache of a language model in tiers of packed codes: recent tokens in 8 "
      "bits, old\n"
      "ones in 4 to 2. These commands say what that costs and gains with your model.",
      "varve");
  bool verbose = false;
  app.add_flag("--verbose", verbose, "show the log of llama.cpp on stderr");
  app.set_version_flag("--version", fmt::format("varve {} (kernels: {}; llama.cpp {})",
                                                varve_version(), varve_isa(), llama_version()));
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 failed, 2 bad usage, 3 nothing fits or a check failed, 4 no plugin,\n"
      "130 interrupted. `varve COMMAND --help` has an example.");
  app.get_formatter()->column_width(34);
  AddProfile(app);
  AddCompare(app);
  AddRun(app);
  AddMethods(app);
  AddEstimate(app);
  AddRecommend(app);
  AddDoctor(app);
  AddLayers(app);
  app.parse_complete_callback([&] {
    CaptureLog(verbose);
    llama_backend_init();
  });
  signal(SIGPIPE, SIG_IGN);
  try {
    app.parse(argc, argv);
    return static_cast<int>(ExitCode::kOk);
  } catch (const CLI::Success& help_or_version) {
    return app.exit(help_or_version);
  } catch (const CLI::ParseError& error) {
    const CLI::App* command = app.get_subcommands().empty() ? &app : app.get_subcommands().front();
    const std::string name = command == &app ? "varve" : "varve " + command->get_name();
    return Report(ExitCode::kUsage, fmt::format("{}; see {} --help", error.what(), name));
  } catch (const Failure& failure) {
    return Report(failure.code(), failure.what());
  } catch (const std::bad_alloc&) {
    return Report(ExitCode::kFailed, "out of memory; use a shorter --ctx or fewer --methods");
  } catch (const std::exception& error) {
    return Report(ExitCode::kFailed, error.what());
  }
}

}  // namespace
}  // namespace varve::cli

// NOLINTNEXTLINE(bugprone-exception-escape): Main catches all but what reporting an error throws.
int main(int argc, char** argv) { return varve::cli::Main(argc, argv); }
