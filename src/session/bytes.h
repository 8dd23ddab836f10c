// Little-endian numbers into and out of the small sections of a session file.
#ifndef VARVE_SESSION_BYTES_H_
#define VARVE_SESSION_BYTES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace varve {

// Codes and exact rows are written as they lie in memory.
static_assert(std::endian::native == std::endian::little, "session files are little-endian");

class ByteWriter {
 public:
  template <typename T>
  requires std::is_arithmetic_v<T>
  void Put(T value) { PutBytes(std::as_bytes(std::span(&value, 1))); }
  template <typename Range>
  void PutAll(const Range& values) {
    PutBytes(std::as_bytes(std::span(values)));
  }

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void PutBytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }

  std::vector<std::byte> bytes_;
};

/// Reads in order. Past the end everything reads as zero and ok() turns false, so that a reader
/// checks once.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename T>
  requires std::is_arithmetic_v<T> T Get() {
    T value = 0;
    const std::span<const std::byte> bytes = Take(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  template <typename Range>
  void GetAll(Range& values) {
    const auto out = std::as_writable_bytes(std::span(values));
    const std::span<const std::byte> bytes = Take(out.size());
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  }
  /// The next n bytes; empty when there are fewer.
  std::span<const std::byte> Take(size_t n) {
    if (n > rest_.size()) {
      ok_ = false;
      rest_ = {};
      return {};
    }
    const std::span<const std::byte> taken = rest_.first(n);
    rest_ = rest_.subspan(n);
    return taken;
  }

  size_t n_left() const { return rest_.size(); }
  bool ok() const { return ok_; }
  /// Everything read, nothing left over.
  bool done() const { return ok_ && rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

}  // namespace varve

#endif  // VARVE_SESSION_BYTES_H_
