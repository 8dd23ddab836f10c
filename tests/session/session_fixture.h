// Sessions in memory: what the tests of saving and loading share.
#ifndef VARVE_TESTS_SESSION_SESSION_FIXTURE_H_
#define VARVE_TESTS_SESSION_SESSION_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/cache_session.h"
#include "session/crc32c.h"

namespace varve {

using Bytes = std::vector<std::byte>;

template <typename Cache>
Bytes Snapshot(const std::vector<const Cache*>& caches, std::string_view model = "") {
  SessionWriter writer;
  DescribeSession(std::span<const Cache* const>(caches), model, &writer);
  Bytes bytes(writer.file_bytes());
  MemorySink sink(bytes);
  const Status status = writer.WriteTo(sink);
  EXPECT_TRUE(status.ok()) << status.text();
  return bytes;
}

template <typename Cache>
Bytes Snapshot(const Cache& cache, std::string_view model = "") {
  return Snapshot(std::vector<const Cache*>{&cache}, model);
}

/// The first cache of a session that has one.
template <typename Cache>
Result<std::unique_ptr<Cache>> Restore(const Cache& like, const Bytes& bytes,
                                       std::string_view model = "") {
  MemorySource source(bytes);
  const Cache* caches[] = {&like};
  auto loaded = LoadSession(std::span<const Cache* const>(caches), model, source);
  if (!loaded.ok()) return loaded.status();
  return std::move(loaded.value()[0]);
}

/// Place and size of a section; a size of 0 when there is none.
inline std::span<std::byte> SectionOf(Bytes& bytes, SectionType type, uint32_t cache = 0) {
  uint32_t n_sections;
  std::memcpy(&n_sections, bytes.data() + 16, sizeof n_sections);
  for (size_t i = 0; i < n_sections; ++i) {
    const std::byte* entry = bytes.data() + kSessionHeaderBytes + i * kSessionEntryBytes;
    uint32_t words[3];
    uint64_t place[2];
    std::memcpy(words, entry, sizeof words);
    std::memcpy(place, entry + 16, sizeof place);
    if (words[0] == static_cast<uint32_t>(type) && words[2] == cache)
      return std::span(bytes).subspan(place[0], place[1]);
  }
  return {};
}

/// Puts CRCs right after bytes were changed, so that what lies behind them is reached. False where
/// the table itself is out of bounds.
inline bool Reseal(Bytes& bytes) {
  const auto u64 = [&](size_t at) {
    uint64_t value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  const auto put = [&](size_t at, uint32_t value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  };
  if (bytes.size() < kSessionHeaderBytes) return false;
  uint32_t n_sections;
  std::memcpy(&n_sections, bytes.data() + 16, sizeof n_sections);
  if (n_sections > (bytes.size() - kSessionHeaderBytes) / kSessionEntryBytes) return false;
  for (size_t i = 0; i < n_sections; ++i) {
    const size_t entry = kSessionHeaderBytes + i * kSessionEntryBytes;
    const uint64_t offset = u64(entry + 16);
    const uint64_t n = u64(entry + 24);
    if (offset > bytes.size() || n > bytes.size() - offset) continue;
    put(entry + 32, Crc32c(0, std::span(bytes).subspan(offset, n)));
  }
  const auto table = std::span(bytes).subspan(kSessionHeaderBytes, n_sections * kSessionEntryBytes);
  put(kSessionHeaderCrcOffset,
      Crc32c(Crc32c(0, std::span(bytes).first(kSessionHeaderCrcOffset)), table));
  return true;
}

}  // namespace varve

#endif  // VARVE_TESTS_SESSION_SESSION_FIXTURE_H_
