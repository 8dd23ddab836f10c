#include "session/writer.h"

#include <algorithm>
#include <array>

#include "base/checked_math.h"
#include "session/crc32c.h"

namespace varve {
namespace {

uint64_t Aligned(uint64_t offset) { return RoundUp(offset, kSessionAlignment); }

Status AppendZeros(ByteSink& sink, uint64_t n) {
  constexpr std::array<std::byte, kSessionAlignment> kZeros{};
  for (; n > 0; n -= std::min<uint64_t>(n, kZeros.size()))
    VARVE_RETURN_IF_ERROR(
        sink.Append(std::span(kZeros).first(std::min<uint64_t>(n, kZeros.size()))));
  return Status();
}

}  // namespace

SessionWriter::Section& SessionWriter::Add(SectionType type, uint32_t cache) {
  Section& section = sections_.emplace_back();
  section.type_ = type;
  section.cache_ = cache;
  return section;
}

uint64_t SessionWriter::file_bytes() const {
  uint64_t bytes = kSessionHeaderBytes + kSessionEntryBytes * sections_.size();
  for (const Section& section : sections_) bytes = Aligned(bytes) + section.n_bytes();
  return Aligned(bytes);
}

Status SessionWriter::WriteTo(ByteSink& sink) const {
  const uint64_t head_bytes = kSessionHeaderBytes + kSessionEntryBytes * sections_.size();
  uint64_t offset = head_bytes;
  VARVE_RETURN_IF_ERROR(AppendZeros(sink, offset));

  ByteWriter table;
  for (const Section& section : sections_) {
    VARVE_RETURN_IF_ERROR(AppendZeros(sink, Aligned(offset) - offset));
    offset = Aligned(offset);
    uint32_t crc = Crc32c(0, section.own.bytes());
    VARVE_RETURN_IF_ERROR(sink.Append(section.own.bytes()));
    for (const std::span<const std::byte> run : section.borrowed_) {
      crc = Crc32c(crc, run);
      VARVE_RETURN_IF_ERROR(sink.Append(run));
    }
    table.Put(static_cast<uint32_t>(section.type_));
    table.Put(kSectionRequired);
    table.Put(section.cache_);
    table.Put(uint32_t{0});
    table.Put(offset);
    table.Put(section.n_bytes());
    table.Put(crc);
    table.Put(uint32_t{0});
    offset += section.n_bytes();
  }
  VARVE_RETURN_IF_ERROR(AppendZeros(sink, Aligned(offset) - offset));

  ByteWriter head;
  head.PutAll(kSessionMagic);
  head.Put(kSessionMajor);
  head.Put(kSessionMinor);
  head.Put(static_cast<uint32_t>(kSessionHeaderBytes));
  head.Put(static_cast<uint32_t>(sections_.size()));
  head.Put(static_cast<uint32_t>(kSessionEntryBytes));
  head.Put(Aligned(offset));
  while (head.bytes().size() < kSessionHeaderCrcOffset) head.Put(uint32_t{0});
  head.Put(Crc32c(Crc32c(0, head.bytes()), table.bytes()));
  head.PutAll(table.bytes());
  return sink.PutHead(head.bytes());
}

}  // namespace varve
