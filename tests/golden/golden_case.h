// A golden case: what the original computed, run through the public API of varve.
#ifndef VARVE_TESTS_GOLDEN_GOLDEN_CASE_H_
#define VARVE_TESTS_GOLDEN_GOLDEN_CASE_H_

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "golden/npy.h"

namespace golden {

using Json = nlohmann::json;

/// Why a case fails.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// The array that a manifest entry {file, shape, dtype} names, its shape checked.
NpyArray LoadArray(const std::string& folder, const Json& entry);

/// Throws Failure unless |got - want| <= relative * |want|; two NaN agree.
void ExpectNear(double got, double want, double relative, const std::string& what);

/// Text of a JSON value as a setting takes it.
std::string SettingText(const Json& value);

/// Each runs one case of its type; throws Failure. The result is a remark for the report, usually
/// "".
std::string RunCacheCase(const std::string& folder, const Json& one);
std::string RunGroupQuant(const std::string& folder, const Json& one);
std::string RunKiviQuantizer(const std::string& folder, const Json& one);
std::string RunAmcCalibration(const std::string& folder, const Json& one);
std::string RunAmcThresholds(const std::string& folder, const Json& one);
std::string RunBitpack(const std::string& folder, const Json& one);
std::string RunFormulas(const std::string& folder, const Json& one);
std::string RunConfigErrors(const std::string& folder, const Json& one);

}  // namespace golden

#endif  // VARVE_TESTS_GOLDEN_GOLDEN_CASE_H_
