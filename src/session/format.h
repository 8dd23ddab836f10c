// Numbers of the session file format 1.0. docs/format.md is the norm.
#ifndef VARVE_SESSION_FORMAT_H_
#define VARVE_SESSION_FORMAT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace varve {

inline constexpr std::array<uint8_t, 8> kSessionMagic = {0x93, 'v', 'a', 'r', 'v', 'e', 0x0d, 0x0a};
inline constexpr uint16_t kSessionMajor = 1;
inline constexpr uint16_t kSessionMinor = 0;
inline constexpr uint64_t kSessionHeaderBytes = 64;
inline constexpr uint64_t kSessionEntryBytes = 40;
/// Sections begin at multiples of this, and the file ends at one.
inline constexpr uint64_t kSessionAlignment = 64;
/// Of the header: its last field, the CRC of all before it and of the table.
inline constexpr uint64_t kSessionHeaderCrcOffset = 60;

enum class SessionKind : uint32_t { kSequence = 1, kCells = 2 };

enum class SectionType : uint32_t {
  kFile = 1,
  kCache = 2,
  kCoding = 3,
  kState = 4,
  kKeyTables = 5,
  kKeyStatistics = 6,
  kKeys = 7,
  kValues = 8,
  kAmcTiers = 16,
  kAmcSaliencies = 17,
  kAmcMemory = 18,
  kAmcRecords = 19,
  kAmcChannelOrder = 20,
  kCellBlocks = 32,
  kCellExactRows = 33,
  kCellRotations = 34,
};

/// A reader that does not know the section's type must refuse the file.
inline constexpr uint32_t kSectionRequired = 1;

struct SectionEntry {
  SectionType type = SectionType::kFile;
  uint32_t flags = kSectionRequired;
  uint32_t cache = 0;  ///< which cache of the session
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint32_t crc = 0;
};

/// "section keys of cache 3"
std::string SectionName(SectionType type, uint32_t cache);

}  // namespace varve

#endif  // VARVE_SESSION_FORMAT_H_
