// Sessions of sequence caches and of cell caches: the same five functions for both.
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "c_api/guard.h"
#include "c_api/handles.h"
#include "cache/cache_session.h"

namespace varve {
namespace {

/// The caches behind a list of handles. Errors: kInvalidArgument.
template <typename Handle>
auto CachesOf(Handle* const* handles, size_t n)
    -> Result<std::vector<const typename decltype(Handle::cache)::element_type*>> {
  std::vector<const typename decltype(Handle::cache)::element_type*> caches;
  VARVE_RETURN_IF_ERROR(CheckNotNull(handles, "caches"));
  if (n < 1 || n > UINT32_MAX) {
    return Status(
        StatusCode::kInvalidArgument,
        "n_caches must be in 1.." + std::to_string(UINT32_MAX) + ", got " + std::to_string(n));
  }
  for (size_t i = 0; i < n; ++i) {
    VARVE_RETURN_IF_ERROR(CheckNotNull(handles[i], "caches[" + std::to_string(i) + "]"));
    caches.push_back(handles[i]->cache.get());
  }
  return caches;
}

std::string_view TextOf(const char* model) { return model != nullptr ? model : ""; }

template <typename Handle>
Status Describe(Handle* const* handles, size_t n, const char* model, SessionWriter* writer) {
  auto caches = CachesOf(handles, n);
  if (!caches.ok()) return caches.status();
  DescribeSession(std::span(std::as_const(caches.value())), TextOf(model), writer);
  return Status();
}

template <typename Handle>
Status Save(Handle* const* handles, size_t n, const char* model, const char* path) {
  SessionWriter writer;
  VARVE_RETURN_IF_ERROR(Describe(handles, n, model, &writer));
  VARVE_RETURN_IF_ERROR(CheckNotNull(path, "path"));
  Result<std::unique_ptr<AtomicFile>> file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  VARVE_RETURN_IF_ERROR(writer.WriteTo(*file.value()));
  return file.value()->Commit();
}

template <typename Handle>
Status Snapshot(Handle* const* handles, size_t n, const char* model, void* buffer, size_t capacity,
                size_t* n_bytes) {
  SessionWriter writer;
  VARVE_RETURN_IF_ERROR(Describe(handles, n, model, &writer));
  VARVE_RETURN_IF_ERROR(CheckNotNull(n_bytes, "n_bytes"));
  *n_bytes = writer.file_bytes();
  VARVE_RETURN_IF_ERROR(CheckNotNull(buffer, "buffer"));
  if (capacity < *n_bytes) {
    return Status(StatusCode::kInvalidArgument, "capacity must be at least " +
                                                    std::to_string(*n_bytes) + ", got " +
                                                    std::to_string(capacity));
  }
  MemorySink sink({static_cast<std::byte*>(buffer), capacity});
  return writer.WriteTo(sink);
}

template <typename Handle>
Status SnapshotBound(Handle* const* handles, size_t n, const char* model, size_t* n_bytes) {
  SessionWriter writer;
  VARVE_RETURN_IF_ERROR(Describe(handles, n, model, &writer));
  VARVE_RETURN_IF_ERROR(CheckNotNull(n_bytes, "n_bytes"));
  *n_bytes = writer.file_bytes();
  return Status();
}

/// All caches of the list change, or none.
template <typename Handle>
Status LoadFrom(ByteSource& source, Handle* const* handles, size_t n, const char* model) {
  auto caches = CachesOf(handles, n);
  if (!caches.ok()) return caches.status();
  auto loaded = LoadSession(std::span(std::as_const(caches.value())), TextOf(model), source);
  if (!loaded.ok()) return loaded.status();
  for (size_t i = 0; i < n; ++i) handles[i]->cache = std::move(loaded.value()[i]);
  return Status();
}

template <typename Handle>
Status Load(Handle* const* handles, size_t n, const char* model, const char* path) {
  VARVE_RETURN_IF_ERROR(CheckNotNull(path, "path"));
  Result<std::unique_ptr<FileSource>> file = FileSource::Open(path);
  if (!file.ok()) return file.status();
  return LoadFrom(*file.value(), handles, n, model);
}

template <typename Handle>
Status Restore(Handle* const* handles, size_t n, const char* model, const void* buffer,
               size_t n_bytes) {
  if (n_bytes > 0) VARVE_RETURN_IF_ERROR(CheckNotNull(buffer, "buffer"));
  MemorySource source({static_cast<const std::byte*>(buffer), n_bytes});
  return LoadFrom(source, handles, n, model);
}

}  // namespace
}  // namespace varve

using varve::Guard;

varve_status varve_cache_save(varve_cache* const* caches, size_t n_caches, const char* model,
                              const char* path) {
  return Guard([&] { return varve::Save(caches, n_caches, model, path); });
}

varve_status varve_cache_load(varve_cache* const* caches, size_t n_caches, const char* model,
                              const char* path) {
  return Guard([&] { return varve::Load(caches, n_caches, model, path); });
}

varve_status varve_cache_snapshot_bound(varve_cache* const* caches, size_t n_caches,
                                        const char* model, size_t* n_bytes) {
  return Guard([&] { return varve::SnapshotBound(caches, n_caches, model, n_bytes); });
}

varve_status varve_cache_snapshot(varve_cache* const* caches, size_t n_caches, const char* model,
                                  void* buffer, size_t capacity, size_t* n_bytes) {
  return Guard([&] { return varve::Snapshot(caches, n_caches, model, buffer, capacity, n_bytes); });
}

varve_status varve_cache_restore(varve_cache* const* caches, size_t n_caches, const char* model,
                                 const void* buffer, size_t n_bytes) {
  return Guard([&] { return varve::Restore(caches, n_caches, model, buffer, n_bytes); });
}

varve_status varve_cells_save(varve_cells* const* caches, size_t n_caches, const char* model,
                              const char* path) {
  return Guard([&] { return varve::Save(caches, n_caches, model, path); });
}

varve_status varve_cells_load(varve_cells* const* caches, size_t n_caches, const char* model,
                              const char* path) {
  return Guard([&] { return varve::Load(caches, n_caches, model, path); });
}

varve_status varve_cells_snapshot_bound(varve_cells* const* caches, size_t n_caches,
                                        const char* model, size_t* n_bytes) {
  return Guard([&] { return varve::SnapshotBound(caches, n_caches, model, n_bytes); });
}

varve_status varve_cells_snapshot(varve_cells* const* caches, size_t n_caches, const char* model,
                                  void* buffer, size_t capacity, size_t* n_bytes) {
  return Guard([&] { return varve::Snapshot(caches, n_caches, model, buffer, capacity, n_bytes); });
}

varve_status varve_cells_restore(varve_cells* const* caches, size_t n_caches, const char* model,
                                 const void* buffer, size_t n_bytes) {
  return Guard([&] { return varve::Restore(caches, n_caches, model, buffer, n_bytes); });
}
