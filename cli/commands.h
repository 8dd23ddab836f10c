// The commands of the varve program. Each adds itself to the application; its callback does the
// work and fails by throwing Failure.
#ifndef VARVE_CLI_COMMANDS_H_
#define VARVE_CLI_COMMANDS_H_

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace varve::cli {

void AddProfile(CLI::App& app);
void AddCompare(CLI::App& app);
void AddRun(CLI::App& app);
void AddMethods(CLI::App& app);
void AddEstimate(CLI::App& app);
void AddRecommend(CLI::App& app);
void AddDoctor(CLI::App& app);
void AddLayers(CLI::App& app);

/// Options that several commands have.
struct ModelOptions {
  std::string model;
  std::string plugin;
  int threads = 0;
};
void AddModelOptions(CLI::App* command, ModelOptions* options, bool computes);

/// --set FIELD=VALUE, repeatable.
void AddSetOption(CLI::App* command, std::vector<std::string>* sets);

/// Accepts numbers from low to high; --help shows them as "low..high".
template <typename Number>
CLI::Range InRange(Number low, Number high) {
  return CLI::Range(low, high, fmt::format("{}..{}", low, high));
}

/// Adds a command with an example under its --help.
CLI::App* AddCommand(CLI::App& app, const std::string& name, const std::string& summary,
                     std::string_view example);

}  // namespace varve::cli

#endif  // VARVE_CLI_COMMANDS_H_
