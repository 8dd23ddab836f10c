// A session file being read. The header and the table are checked as a whole before anything else;
// each section is checked against its CRC before what was made of it is used.
#ifndef VARVE_SESSION_READER_H_
#define VARVE_SESSION_READER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "session/file.h"
#include "session/format.h"

namespace varve {

/// One section, read from front to back.
class SectionStream {
 public:
  SectionStream(ByteSource& source, const SectionEntry& entry) : source_(&source), entry_(entry) {}

  uint64_t n_bytes() const { return entry_.bytes; }
  /// Errors: kIoError; kBadFormat past the section's end.
  [[nodiscard]] Status Read(std::byte* to, size_t n);
  /// Errors: kBadFormat when bytes are left over, kChecksumMismatch.
  [[nodiscard]] Status Finish() const;
  /// kBadFormat unless the section has that many bytes.
  [[nodiscard]] Status ExpectBytes(uint64_t n) const;

 private:
  ByteSource* source_;
  SectionEntry entry_;
  uint64_t n_read_ = 0;
  uint32_t crc_ = 0;
};

class SessionReader {
 public:
  /// Errors: kIoError; kBadFormat (magic, sizes, offsets, order, padding); kChecksumMismatch;
  /// kUnsupported (another major version).
  static Result<SessionReader> Open(ByteSource& source);

  bool Has(SectionType type, uint32_t cache) const { return Find(type, cache) != nullptr; }
  /// A section to read piece by piece. Errors: kBadFormat when there is none.
  Result<SectionStream> Stream(SectionType type, uint32_t cache);
  /// A whole small section, checked.
  Result<std::vector<std::byte>> Read(SectionType type, uint32_t cache);

  /// kUnsupported when there is a section that was not asked for and may not be skipped.
  [[nodiscard]] Status CheckAllTaken() const;

 private:
  explicit SessionReader(ByteSource& source) : source_(&source) {}
  Status ReadTable(std::span<const std::byte> table, uint64_t head_bytes);
  Status CheckZeros(uint64_t from, uint64_t to) const;
  const SectionEntry* Find(SectionType type, uint32_t cache) const;

  ByteSource* source_;
  std::vector<SectionEntry> entries_;  ///< ascending by cache and type
  std::vector<bool> taken_;
};

}  // namespace varve

#endif  // VARVE_SESSION_READER_H_
