// Takes a fuzzer's input apart. Past its end everything reads as zero, so every input is a whole
// script.
#ifndef VARVE_FUZZ_BYTE_READER_H_
#define VARVE_FUZZ_BYTE_READER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

namespace varve_fuzz {

class ByteReader {
 public:
  ByteReader(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool done() const { return offset_ >= size_; }

  uint8_t Byte() { return done() ? uint8_t{0} : data_[offset_++]; }

  /// An integer in [low, high], from as few bytes as the range needs.
  int64_t Range(int64_t low, int64_t high) {
    const uint64_t span = static_cast<uint64_t>(high - low);
    uint64_t value = 0;
    for (uint64_t rest = span; rest != 0; rest >>= 8) value = value << 8 | Byte();
    return low + static_cast<int64_t>(span == UINT64_MAX ? value : value % (span + 1));
  }

  /// Up to the next `separator` or the end.
  std::string Text(char separator) {
    const auto* first = data_ + offset_;
    const auto* last = std::find(first, data_ + size_, static_cast<uint8_t>(separator));
    offset_ = static_cast<size_t>(last - data_) + (last != data_ + size_ ? 1 : 0);
    return {first, last};
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t offset_ = 0;
};

}  // namespace varve_fuzz

#endif  // VARVE_FUZZ_BYTE_READER_H_
