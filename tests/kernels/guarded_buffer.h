// A buffer that ends where an unreadable page begins: a kernel that reads or writes past it stops
// the test.
#ifndef VARVE_TESTS_KERNELS_GUARDED_BUFFER_H_
#define VARVE_TESTS_KERNELS_GUARDED_BUFFER_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace varve {

template <typename T>
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t n) : n_(n) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t body = (n * sizeof(T) + page - 1) / page * page;
    bytes_ = body + page;
    base_ = static_cast<std::byte*>(
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + body, page, PROT_NONE) != 0) std::abort();
    data_ = reinterpret_cast<T*>(base_ + body - n * sizeof(T));
  }
  ~GuardedBuffer() { munmap(base_, bytes_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return n_; }
  T& operator[](size_t i) { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + n_; }

 private:
  size_t n_;
  size_t bytes_ = 0;
  std::byte* base_ = nullptr;
  T* data_ = nullptr;
};

}  // namespace varve

#endif  // VARVE_TESTS_KERNELS_GUARDED_BUFFER_H_
