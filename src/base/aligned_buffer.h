// A byte buffer on a cache-line boundary that only grows: scratch rows and tiles of the codecs and
// the cache.
#ifndef VARVE_BASE_ALIGNED_BUFFER_H_
#define VARVE_BASE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace varve {

/// Owns `size()` bytes aligned to 64. Growing discards the contents.
class AlignedBuffer {
 public:
  static constexpr size_t kAlignment = 64;

  /// Makes size() at least `bytes`; false when memory is out, the buffer being as before.
  [[nodiscard]] bool Grow(size_t bytes) {
    if (bytes <= size_) return true;
    if (bytes > SIZE_MAX - kAlignment) return false;
    const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    auto* grown = static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded));
    if (grown == nullptr) return false;
    data_.reset(grown);
    size_ = rounded;
    return true;
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

}  // namespace varve

#endif  // VARVE_BASE_ALIGNED_BUFFER_H_
