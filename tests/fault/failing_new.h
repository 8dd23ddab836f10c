// Replaces operator new of a test program: the Nth allocation fails, and what is asked for is
// counted. For one source file of a program.
#ifndef VARVE_TESTS_FAULT_FAILING_NEW_H_
#define VARVE_TESTS_FAULT_FAILING_NEW_H_

#include <cstdint>
#include <cstdlib>
#include <new>

namespace {

// Allocations left until one fails; negative: none does.
thread_local int64_t allocations_left = -1;
// Bytes asked for since it was set to 0.
thread_local uint64_t bytes_asked_for = 0;

void* AllocateOrFail(std::size_t bytes, std::size_t alignment) {
  bytes_asked_for += bytes;
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  void* data = alignment > 0
                   ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                   : std::malloc(bytes > 0 ? bytes : 1);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(std::size_t bytes) { return AllocateOrFail(bytes, 0); }
void* operator new[](std::size_t bytes) { return AllocateOrFail(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return AllocateOrFail(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return AllocateOrFail(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }

namespace varve {

// Runs body() with the nth allocation failing; false if it threw.
template <typename Body>
bool Survives(int64_t nth, Body&& body) {
  allocations_left = nth;
  bool survived = true;
  try {
    body();
  } catch (const std::bad_alloc&) {
    survived = false;
  }
  allocations_left = -1;
  return survived;
}

}  // namespace varve

#endif  // VARVE_TESTS_FAULT_FAILING_NEW_H_
