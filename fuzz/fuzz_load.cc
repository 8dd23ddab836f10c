// Session files from anywhere: refused with a text, or loaded into caches that can then be read,
// written, trimmed, attended to and saved again. Input: a byte that says which caches load and
// whether the CRCs are put right first, so that what lies behind them is reached; then the file.
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "../tests/format/samples.h"
#include "require.h"

namespace {

using Bytes = std::vector<std::byte>;

constexpr size_t kHeaderBytes = 64, kEntryBytes = 40;

uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  for (const std::byte byte : bytes) {
    crc ^= std::to_integer<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

template <typename T>
T At(const Bytes& file, size_t offset) {
  T value;
  std::memcpy(&value, file.data() + offset, sizeof value);
  return value;
}

/// CRCs as the content wants them, and the size as it is.
void Reseal(Bytes& file) {
  if (file.size() < kHeaderBytes) return;
  const uint64_t size = file.size();
  std::memcpy(file.data() + 24, &size, sizeof size);
  const auto n_sections = At<uint32_t>(file, 16);
  if (n_sections > (file.size() - kHeaderBytes) / kEntryBytes) return;
  for (size_t entry = kHeaderBytes; entry < kHeaderBytes + n_sections * kEntryBytes;
       entry += kEntryBytes) {
    const auto offset = At<uint64_t>(file, entry + 16);
    const auto bytes = At<uint64_t>(file, entry + 24);
    if (offset > size || bytes > size - offset) continue;
    const uint32_t crc = Crc32c(0, std::span(file).subspan(offset, bytes));
    std::memcpy(file.data() + entry + 32, &crc, sizeof crc);
  }
  const auto table = std::span(file).subspan(kHeaderBytes, n_sections * kEntryBytes);
  const uint32_t crc = Crc32c(Crc32c(0, std::span(file).first(60)), table);
  std::memcpy(file.data() + 60, &crc, sizeof crc);
}

void RequireRefused(varve_status status) {
  REQUIRE(status >= VARVE_ERROR_OUT_OF_MEMORY);
  REQUIRE(*varve_last_error() != '\0');
}

/// A loaded cache can be saved, and what was saved loads as the same bytes.
void RequireSavesAgain(const samples::Sample& sample, size_t index, const varve::KVCache& cache) {
  const auto bytes = cache.snapshot();
  REQUIRE(bytes.ok());
  varve::KVCache again = samples::MakeEmpty(sample, index);
  REQUIRE(again.restore(*bytes).ok());
  REQUIRE(*again.snapshot() == *bytes);
}

void LoadSequences(const samples::Sample& sample, const Bytes& file) {
  std::vector<varve::KVCache> caches;
  std::vector<varve_cache*> handles;
  for (size_t i = 0; i < sample.settings.size(); ++i) {
    caches.push_back(samples::MakeEmpty(sample, i));
    handles.push_back(caches[i].get());
  }
  const varve_status status =
      varve_cache_restore(handles.data(), handles.size(), nullptr, file.data(), file.size());
  if (status != VARVE_OK) {
    RequireRefused(status);
    for (const varve::KVCache& cache : caches) REQUIRE(cache.stats().batch == 0);
    return;
  }
  for (size_t i = 0; i < caches.size(); ++i) {
    varve::KVCache& cache = caches[i];
    const auto all = cache.fetch();
    REQUIRE(all.ok());
    RequireSavesAgain(sample, i, cache);
    const varve_cache_stats stats = cache.stats();
    const bool same_shape = stats.batch == samples::kBatch && stats.n_kv_heads == samples::kHeads &&
                            stats.head_dim_k == samples::kDimK &&
                            stats.head_dim_v == sample.dim_v();
    if (!same_shape) continue;
    samples::Append(sample, i, 70, 5, cache);
    const std::vector<float> q(
        static_cast<size_t>(samples::kBatch * samples::kHeads * samples::kDimK), 0.5f);
    varve::AttendOptions options;
    options.n_heads = samples::kHeads;
    const auto out = cache.attend(q, options);
    REQUIRE(out.ok());
    for (const float x : *out) REQUIRE(std::isfinite(x));
    REQUIRE(cache.trim(75).ok());
    REQUIRE(cache.fetch().ok());
    RequireSavesAgain(sample, i, cache);
  }
}

void LoadCells(const samples::CellsSample& sample, const Bytes& file) {
  const samples::Cells cells = samples::MakeEmptyCells(sample);
  varve_cells* const handle = cells.get();
  const varve_status status = varve_cells_restore(&handle, 1, nullptr, file.data(), file.size());
  if (status != VARVE_OK) {
    RequireRefused(status);
    return;
  }
  for (const varve_side side : {VARVE_KEY, VARVE_VALUE}) samples::ReadCells(sample, side, handle);
  const Bytes bytes = samples::SnapshotCells(sample, handle);
  const samples::Cells again = samples::MakeEmptyCells(sample);
  varve_cells* const other = again.get();
  REQUIRE(varve_cells_restore(&other, 1, nullptr, bytes.data(), bytes.size()) == VARVE_OK);
  REQUIRE(samples::SnapshotCells(sample, other) == bytes);
  for (int32_t first = 0; first < 50; first += 10)
    samples::WriteTen(sample, samples::kCells + first, 500 + first, handle);
  (void)varve_cells_copy(handle, 60, handle, 3, 37, VARVE_KEY);
  (void)varve_cells_forget(handle, 10, 60);
  for (const varve_side side : {VARVE_KEY, VARVE_VALUE}) samples::ReadCells(sample, side, handle);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  Bytes file(bytes + 1, bytes + size);
  if ((data[0] & 1u) != 0) Reseal(file);
  const size_t which = (data[0] >> 1) % (samples::kSamples.size() + samples::kCellsSamples.size());
  if (which < samples::kSamples.size()) {
    LoadSequences(samples::kSamples[which], file);
  } else {
    LoadCells(samples::kCellsSamples[which - samples::kSamples.size()], file);
  }
  return 0;
}
