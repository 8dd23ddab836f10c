#include "session/crc32c.h"

#include <array>
#include <cstring>

namespace varve {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;
constexpr size_t kSlices = 8;
using Tables = std::array<std::array<uint32_t, 256>, kSlices>;

// tables[s][b]: the CRC of byte b followed by s zero bytes.
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? kPolynomial : 0u);
    tables[0][byte] = crc;
  }
  for (size_t slice = 1; slice < kSlices; ++slice) {
    for (size_t byte = 0; byte < 256; ++byte) {
      const uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = (before >> 8) ^ tables[0][before & 255u];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

uint32_t Crc32c(uint32_t crc, std::span<const std::byte> bytes) {
  crc = ~crc;
  const std::byte* at = bytes.data();
  size_t left = bytes.size();
  for (; left >= kSlices; left -= kSlices, at += kSlices) {
    uint64_t word;
    std::memcpy(&word, at, sizeof word);
    word ^= crc;
    crc = 0;
    for (size_t i = 0; i < kSlices; ++i) crc ^= kTables[kSlices - 1 - i][word >> (8 * i) & 255u];
  }
  for (; left > 0; --left, ++at)
    crc = (crc >> 8) ^ kTables[0][(crc ^ std::to_integer<uint32_t>(*at)) & 255u];
  return ~crc;
}

}  // namespace varve
