// Error values used everywhere inside the library: nothing below the C API throws, prints or
// aborts.
#ifndef VARVE_BASE_STATUS_H_
#define VARVE_BASE_STATUS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace varve {

/// Pinned numbers, shared with `varve_status` of varve.h; gaps leave room inside a family.
enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument = 10,
  kUnknownSetting = 11,
  kBadSettingValue = 12,
  kShapeMismatch = 13,
  kNonFinite = 14,
  kInvalidState = 20,
  kOutOfMemory = 30,
  kSizeOverflow = 31,
  kIoError = 40,
  kBadFormat = 50,
  kChecksumMismatch = 51,
  kIncompatible = 52,
  kUnsupported = 60,
};

/// Success, or a code with a text that names the field and the value at fault.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string text) : code_(code), text_(std::move(text)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& text() const { return text_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string text_;
};

/// A value or the Status that says why there is none (std::expected is C++23).
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) {}

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace varve

#define VARVE_RETURN_IF_ERROR(expr)                                                        \
  do {                                                                                     \
    if (::varve::Status varve_status_ = (expr); !varve_status_.ok()) return varve_status_; \
  } while (false)

#endif  // VARVE_BASE_STATUS_H_
