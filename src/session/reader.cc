#include "session/reader.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/checked_math.h"
#include "session/bytes.h"
#include "session/crc32c.h"

namespace varve {
namespace {

Status Bad(std::string text) { return Status(StatusCode::kBadFormat, std::move(text)); }

Status CheckField(const char* name, uint64_t value, uint64_t wanted) {
  if (value == wanted) return Status();
  return Bad(std::string("header field ") + name + " must be " + std::to_string(wanted) + ", got " +
             std::to_string(value));
}

std::pair<uint32_t, uint32_t> OrderOf(const SectionEntry& entry) {
  return {entry.cache, static_cast<uint32_t>(entry.type)};
}

}  // namespace

Status SectionStream::Read(std::byte* to, size_t n) {
  if (n > entry_.bytes - n_read_) {
    return Bad(SectionName(entry_.type, entry_.cache) +
               " is too short: " + std::to_string(entry_.bytes) + " bytes");
  }
  const std::span<std::byte> out(to, n);
  VARVE_RETURN_IF_ERROR(source_->ReadAt(entry_.offset + n_read_, out));
  crc_ = Crc32c(crc_, out);
  n_read_ += n;
  return Status();
}

Status SectionStream::Finish() const {
  VARVE_RETURN_IF_ERROR(ExpectBytes(n_read_));
  if (crc_ == entry_.crc) return Status();
  return Status(StatusCode::kChecksumMismatch,
                SectionName(entry_.type, entry_.cache) + " has CRC " + std::to_string(crc_) +
                    ", the table says " + std::to_string(entry_.crc));
}

Status SectionStream::ExpectBytes(uint64_t n) const {
  if (n == entry_.bytes) return Status();
  return Bad(SectionName(entry_.type, entry_.cache) + " must have " + std::to_string(n) +
             " bytes, got " + std::to_string(entry_.bytes));
}

Result<SessionReader> SessionReader::Open(ByteSource& source) {
  const uint64_t size = source.size();
  std::array<std::byte, kSessionHeaderBytes> head;
  if (size < head.size()) {
    return Bad("the file has " + std::to_string(size) + " bytes, a header alone takes " +
               std::to_string(head.size()));
  }
  VARVE_RETURN_IF_ERROR(source.ReadAt(0, head));
  ByteReader fields(head);
  std::array<uint8_t, kSessionMagic.size()> magic;
  fields.GetAll(magic);
  if (magic != kSessionMagic) return Bad("the magic number is missing: not a session file");
  const auto major = fields.Get<uint16_t>();
  const auto minor = fields.Get<uint16_t>();
  if (major != kSessionMajor) {
    return Status(StatusCode::kUnsupported, "format version " + std::to_string(major) + "." +
                                                std::to_string(minor) + ": this reader knows " +
                                                std::to_string(kSessionMajor) + ".x");
  }
  VARVE_RETURN_IF_ERROR(CheckField("header_bytes", fields.Get<uint32_t>(), kSessionHeaderBytes));
  const auto n_sections = fields.Get<uint32_t>();
  VARVE_RETURN_IF_ERROR(CheckField("entry_bytes", fields.Get<uint32_t>(), kSessionEntryBytes));
  VARVE_RETURN_IF_ERROR(CheckField("file_bytes", fields.Get<uint64_t>(), size));
  if (n_sections > (size - kSessionHeaderBytes) / kSessionEntryBytes) {
    return Bad("header field n_sections: a table of " + std::to_string(n_sections) +
               " entries does not fit " + std::to_string(size) + " bytes");
  }

  std::vector<std::byte> table(n_sections * kSessionEntryBytes);
  VARVE_RETURN_IF_ERROR(source.ReadAt(kSessionHeaderBytes, table));
  const auto before_crc = std::span(head).first(kSessionHeaderCrcOffset);
  const uint32_t crc = Crc32c(Crc32c(0, before_crc), table);
  ByteReader crc_field{std::span(head).subspan(kSessionHeaderCrcOffset)};
  if (crc != crc_field.Get<uint32_t>()) {
    return Status(
        StatusCode::kChecksumMismatch,
        "the CRC of header and table is " + std::to_string(crc) + ", the header says otherwise");
  }
  while (fields.n_left() > sizeof(uint32_t))
    VARVE_RETURN_IF_ERROR(CheckField("reserved", fields.Get<uint32_t>(), 0));

  SessionReader reader(source);
  VARVE_RETURN_IF_ERROR(reader.ReadTable(table, kSessionHeaderBytes + table.size()));
  return reader;
}

Status SessionReader::ReadTable(std::span<const std::byte> table, uint64_t head_bytes) {
  ByteReader fields(table);
  uint64_t end = head_bytes;
  while (fields.n_left() > 0) {
    SectionEntry entry;
    entry.type = static_cast<SectionType>(fields.Get<uint32_t>());
    entry.flags = fields.Get<uint32_t>();
    entry.cache = fields.Get<uint32_t>();
    const auto reserved = fields.Get<uint32_t>();
    entry.offset = fields.Get<uint64_t>();
    entry.bytes = fields.Get<uint64_t>();
    entry.crc = fields.Get<uint32_t>();
    const std::string name = SectionName(entry.type, entry.cache);
    if (entry.flags > kSectionRequired || reserved != 0 || fields.Get<uint32_t>() != 0)
      return Bad(name + " has unknown flags or reserved fields that are not 0");
    const uint64_t begin = RoundUp(end, kSessionAlignment);
    if (entry.offset != begin || begin > source_->size() || entry.bytes > source_->size() - begin) {
      return Bad(name + " at " + std::to_string(entry.offset) + " with " +
                 std::to_string(entry.bytes) + " bytes does not follow the one before, at " +
                 std::to_string(begin) + " in a file of " + std::to_string(source_->size()));
    }
    if (!entries_.empty() && OrderOf(entries_.back()) >= OrderOf(entry))
      return Bad(name + " is out of order or there twice");
    VARVE_RETURN_IF_ERROR(CheckZeros(end, begin));
    end = begin + entry.bytes;
    entries_.push_back(entry);
  }
  if (source_->size() != RoundUp(end, kSessionAlignment)) {
    return Bad("the file has " + std::to_string(source_->size()) + " bytes, its sections end at " +
               std::to_string(end));
  }
  taken_.resize(entries_.size());
  return CheckZeros(end, source_->size());
}

Status SessionReader::CheckZeros(uint64_t from, uint64_t to) const {
  std::array<std::byte, kSessionAlignment> padding;
  const auto bytes = std::span(padding).first(to - from);
  VARVE_RETURN_IF_ERROR(source_->ReadAt(from, bytes));
  if (std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }))
    return Status();
  return Bad("padding at " + std::to_string(from) + " is not zero");
}

const SectionEntry* SessionReader::Find(SectionType type, uint32_t cache) const {
  SectionEntry wanted;
  wanted.type = type;
  wanted.cache = cache;
  const auto found = std::lower_bound(
      entries_.begin(), entries_.end(), wanted,
      [](const SectionEntry& a, const SectionEntry& b) { return OrderOf(a) < OrderOf(b); });
  return found != entries_.end() && OrderOf(*found) == OrderOf(wanted) ? &*found : nullptr;
}

Result<SectionStream> SessionReader::Stream(SectionType type, uint32_t cache) {
  const SectionEntry* entry = Find(type, cache);
  if (entry == nullptr) return Bad(SectionName(type, cache) + " is missing");
  taken_[static_cast<size_t>(entry - entries_.data())] = true;
  return SectionStream(*source_, *entry);
}

Result<std::vector<std::byte>> SessionReader::Read(SectionType type, uint32_t cache) {
  Result<SectionStream> stream = Stream(type, cache);
  if (!stream.ok()) return stream.status();
  std::vector<std::byte> bytes(stream.value().n_bytes());
  VARVE_RETURN_IF_ERROR(stream.value().Read(bytes.data(), bytes.size()));
  VARVE_RETURN_IF_ERROR(stream.value().Finish());
  return bytes;
}

Status SessionReader::CheckAllTaken() const {
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (taken_[i] || (entries_[i].flags & kSectionRequired) == 0) continue;
    return Status(StatusCode::kUnsupported,
                  SectionName(entries_[i].type, entries_[i].cache) +
                      " is required, and this reader does not know what to do with it");
  }
  return Status();
}

}  // namespace varve
