// A session file in the making: sections that own small content and point at packed bytes, which
// are written as they lie.
#ifndef VARVE_SESSION_WRITER_H_
#define VARVE_SESSION_WRITER_H_

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "base/status.h"
#include "session/bytes.h"
#include "session/file.h"
#include "session/format.h"

namespace varve {

class SessionWriter {
 public:
  /// Content of a section: `own` first, then the borrowed runs, which must stay as they are until
  /// the session is written.
  class Section {
   public:
    ByteWriter own;

    void Borrow(const std::byte* data, size_t n) {
      if (n == 0) return;
      n_borrowed_bytes_ += n;
      // Runs that lie behind one another are one run.
      if (!borrowed_.empty() && borrowed_.back().data() + borrowed_.back().size() == data) {
        borrowed_.back() = {borrowed_.back().data(), borrowed_.back().size() + n};
      } else {
        borrowed_.emplace_back(data, n);
      }
    }
    uint64_t n_bytes() const { return own.bytes().size() + n_borrowed_bytes_; }

   private:
    friend class SessionWriter;
    SectionType type_ = SectionType::kFile;
    uint32_t cache_ = 0;
    uint64_t n_borrowed_bytes_ = 0;
    std::vector<std::span<const std::byte>> borrowed_;
  };

  /// A new section; by cache and, within one, by type, both ascending. The reference stays valid.
  Section& Add(SectionType type, uint32_t cache);

  /// Bytes that WriteTo() writes.
  uint64_t file_bytes() const;

  [[nodiscard]] Status WriteTo(ByteSink& sink) const;

 private:
  std::deque<Section> sections_;
};

}  // namespace varve

#endif  // VARVE_SESSION_WRITER_H_
