// The edge of the C API: one guard turns Status and std::bad_alloc into varve_status and keeps this
// thread's last text.
#ifndef VARVE_C_API_GUARD_H_
#define VARVE_C_API_GUARD_H_

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "policy/settings.h"
#include "varve/varve.h"

struct varve_config {
  varve::Settings settings;
};

namespace varve {

/// Keeps `text` for varve_last_error() of this thread; cut to what the fixed buffer holds, so it
/// cannot fail.
void SetLastError(std::string_view text) noexcept;

/// Runs body() -> Status for one C function. Success clears the last error.
template <typename Body>
varve_status Guard(Body&& body) noexcept {
  try {
    const Status status = body();
    SetLastError(status.text());
    return static_cast<varve_status>(status.code());
  } catch (const std::bad_alloc&) {
    SetLastError("out of memory");
    return VARVE_ERROR_OUT_OF_MEMORY;
  } catch (const std::length_error&) {
    SetLastError("size overflow: more elements than memory can address");
    return VARVE_ERROR_SIZE_OVERFLOW;
  } catch (const std::exception& error) {
    SetLastError(error.what());
    return VARVE_ERROR_INVALID_STATE;
  }
}

/// kInvalidArgument "name is NULL", or OK.
inline Status CheckNotNull(const void* pointer, std::string name) {
  if (pointer != nullptr) return Status();
  return Status(StatusCode::kInvalidArgument, std::move(name) + " is NULL");
}

/// kInvalidArgument when a params struct's struct_size is below `needed`, the size that the first
/// release had.
inline Status CheckStructSize(size_t struct_size, size_t needed, const char* name) {
  if (struct_size >= needed) return Status();
  return Status(StatusCode::kInvalidArgument, std::string(name) + ".struct_size must be at least " +
                                                  std::to_string(needed) + ", got " +
                                                  std::to_string(struct_size));
}

}  // namespace varve

#endif  // VARVE_C_API_GUARD_H_
