// Caches of one kind, a model's layers, as one session: described to a writer, made anew by a
// reader.
#ifndef VARVE_CACHE_CACHE_SESSION_H_
#define VARVE_CACHE_CACHE_SESSION_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "session/file.h"
#include "session/reader.h"
#include "session/writer.h"

namespace varve {

/// The section that opens a session. `model` is the caller's fingerprint of its model, "" for none.
void PutFileSection(SessionKind kind, uint32_t n_caches, std::string_view model,
                    SessionWriter* writer);

/// Errors: kIncompatible (kind, number of caches, model; an empty `model` is content with any).
[[nodiscard]] Status CheckFileSection(SessionKind kind, uint32_t n_caches, std::string_view model,
                                      SessionReader* reader);

/// The caches must stay as they are until the writer has written.
template <typename Cache>
void DescribeSession(std::span<const Cache* const> caches, std::string_view model,
                     SessionWriter* writer) {
  PutFileSection(Cache::kSessionKind, static_cast<uint32_t>(caches.size()), model, writer);
  for (size_t i = 0; i < caches.size(); ++i) caches[i]->Save(static_cast<uint32_t>(i), writer);
}

/// New caches with the settings of `caches` and the content of a session, which must have been
/// saved from as many caches like them. Errors: those of SessionReader and of Cache::Load.
template <typename Cache>
Result<std::vector<std::unique_ptr<Cache>>> LoadSession(std::span<const Cache* const> caches,
                                                        std::string_view model,
                                                        ByteSource& source) {
  Result<SessionReader> reader = SessionReader::Open(source);
  if (!reader.ok()) return reader.status();
  VARVE_RETURN_IF_ERROR(CheckFileSection(Cache::kSessionKind, static_cast<uint32_t>(caches.size()),
                                         model, &reader.value()));
  std::vector<std::unique_ptr<Cache>> loaded;
  loaded.reserve(caches.size());
  for (size_t i = 0; i < caches.size(); ++i) {
    Result<std::unique_ptr<Cache>> one = caches[i]->Load(static_cast<uint32_t>(i), &reader.value());
    if (!one.ok()) {
      return Status(one.status().code(), "cache " + std::to_string(i) + ": " + one.status().text());
    }
    loaded.push_back(std::move(one).value());
  }
  VARVE_RETURN_IF_ERROR(reader.value().CheckAllTaken());
  return loaded;
}

}  // namespace varve

#endif  // VARVE_CACHE_CACHE_SESSION_H_
