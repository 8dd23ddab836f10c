#include "address_range.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace varve::plugin {
namespace {

size_t PageBytes() {
  static const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

size_t RoundUp(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

AddressRange::~AddressRange() {
  if (base_ != nullptr) munmap(base_, bytes_);
}

bool AddressRange::Reserve(size_t bytes) {
  if (bytes > SIZE_MAX - PageBytes()) return false;
  const size_t rounded = RoundUp(bytes, PageBytes());
  void* address =
      mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return false;
  base_ = static_cast<std::byte*>(address);
  bytes_ = rounded;
  return true;
}

bool AddressRange::MakeWritable(size_t offset, size_t bytes) {
  const size_t first = offset / PageBytes() * PageBytes();
  const size_t last = RoundUp(offset + bytes, PageBytes());
  return mprotect(base_ + first, last - first, PROT_READ | PROT_WRITE) == 0;
}

void AddressRange::Zero(size_t offset, size_t bytes) {
  const size_t end = offset + bytes;
  const size_t first_page = RoundUp(offset, PageBytes());
  const size_t end_page = end / PageBytes() * PageBytes();
  if (first_page >= end_page ||
      madvise(base_ + first_page, end_page - first_page, MADV_DONTNEED) != 0) {
    std::memset(base_ + offset, 0, bytes);
    return;
  }
  std::memset(base_ + offset, 0, first_page - offset);
  std::memset(base_ + end_page, 0, end - end_page);
}

}  // namespace varve::plugin
