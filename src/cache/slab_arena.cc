#include "cache/slab_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "base/checked_math.h"

namespace varve {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr size_t kMaxSlabBytes = size_t{256} << 10;

// Why: malloc keeps freed slabs for itself and fragments around them (11 % measured over 131,072
// tokens), so slabs from this size on are pages of their own, which go back when they are freed.
constexpr size_t kMinMappedBytes = size_t{64} << 10;
constexpr size_t kPageBytes = 4096;

size_t SlabBytes(size_t bytes) {
  return bytes >= kMinMappedBytes ? RoundUp(bytes, kPageBytes) : bytes;
}

std::byte* AllocateSlab(size_t bytes) {
  if (bytes < kMinMappedBytes) return static_cast<std::byte*>(::operator new[](bytes, kAlignment));
  void* pages =
      mmap(nullptr, SlabBytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(pages);
}

struct SlabDelete {
  size_t bytes = 0;
  void operator()(std::byte* data) const {
    if (bytes < kMinMappedBytes) {
      ::operator delete[](data, kAlignment);
    } else {
      munmap(data, SlabBytes(bytes));
    }
  }
};

}  // namespace

namespace internal {

struct Slab {
  std::unique_ptr<std::byte[], SlabDelete> memory;
  size_t n_slots = 0;
  size_t n_fresh = 0;  // slots never handed out, at the end
  size_t n_used = 0;
  std::byte* freed = nullptr;  // list through the first bytes of freed slots
  void* size_class = nullptr;
};

}  // namespace internal

using internal::Slab;

struct SlabArena::SizeClass {
  size_t slot_bytes = 0;
  size_t n_slots = 0;  // in all slabs
  std::vector<std::unique_ptr<Slab>> slabs;
  size_t first_open = 0;  // no slab before it has a free slot
};

Slot::Slot(Slot&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), slab_(std::exchange(other.slab_, nullptr)) {}

Slot& Slot::operator=(Slot&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(slab_, other.slab_);
  return *this;
}

Slot::~Slot() {
  if (data_ != nullptr) SlabArena::Release(data_, slab_);
}

SlabArena::SlabArena() = default;
SlabArena::~SlabArena() = default;

SlabArena::SizeClass& SlabArena::ClassOf(size_t bytes) {
  if (bytes == 0 || bytes > std::numeric_limits<size_t>::max() / 4) throw std::bad_alloc();
  const size_t slot_bytes = RoundUp(bytes, static_cast<size_t>(kAlignment));
  for (const auto& size_class : classes_) {
    if (size_class->slot_bytes == slot_bytes) return *size_class;
  }
  auto size_class = std::make_unique<SizeClass>();
  size_class->slot_bytes = slot_bytes;
  classes_.push_back(std::move(size_class));
  return *classes_.back();
}

Slab* SlabArena::AddSlab(SizeClass& size_class, size_t n_slots) {
  size_t bytes = 0;
  if (!CheckedMul(size_class.slot_bytes, n_slots, &bytes)) throw std::bad_alloc();
  auto slab = std::make_unique<Slab>();
  slab->memory = {AllocateSlab(bytes), SlabDelete{bytes}};
  slab->n_slots = n_slots;
  slab->n_fresh = n_slots;
  slab->size_class = &size_class;
  size_class.slabs.push_back(std::move(slab));
  size_class.n_slots += n_slots;
  return size_class.slabs.back().get();
}

Slot SlabArena::Allocate(size_t bytes) {
  SizeClass& size_class = ClassOf(bytes);
  const auto has_room = [](const std::unique_ptr<Slab>& slab) {
    return slab->n_used < slab->n_slots;
  };
  const auto open =
      std::find_if(size_class.slabs.begin() + static_cast<ptrdiff_t>(size_class.first_open),
                   size_class.slabs.end(), has_room);
  Slab* slab = nullptr;
  if (open != size_class.slabs.end()) {
    slab = open->get();
    size_class.first_open = static_cast<size_t>(open - size_class.slabs.begin());
  } else {
    // Slabs grow with the class, so that a short cache holds little more than it uses.
    const size_t cap = std::max<size_t>(1, kMaxSlabBytes / size_class.slot_bytes);
    slab = AddSlab(size_class, std::clamp<size_t>(size_class.n_slots / 2, 1, cap));
    size_class.first_open = size_class.slabs.size() - 1;
  }
  ++slab->n_used;
  std::byte* data = slab->freed;
  if (data != nullptr) {
    std::memcpy(&slab->freed, data, sizeof(data));
  } else {
    data = slab->memory.get() + (slab->n_slots - slab->n_fresh) * size_class.slot_bytes;
    --slab->n_fresh;
  }
  return Slot(data, slab);
}

void SlabArena::Release(std::byte* data, Slab* slab) noexcept {
  std::memcpy(data, &slab->freed, sizeof(data));
  slab->freed = data;
  SizeClass& size_class = *static_cast<SizeClass*>(slab->size_class);
  auto at = std::find_if(size_class.slabs.rbegin(), size_class.slabs.rend(),
                         [&](const std::unique_ptr<Slab>& one) { return one.get() == slab; });
  const size_t index = static_cast<size_t>(size_class.slabs.rend() - at) - 1;
  size_class.first_open = std::min(size_class.first_open, index);
  if (--slab->n_used > 0) return;
  size_class.n_slots -= slab->n_slots;
  size_class.slabs.erase(size_class.slabs.begin() + static_cast<ptrdiff_t>(index));
}

void SlabArena::Reserve(size_t bytes, size_t n) {
  SizeClass& size_class = ClassOf(bytes);
  size_t n_free = 0;
  for (const auto& slab : size_class.slabs) n_free += slab->n_slots - slab->n_used;
  const size_t per_slab = std::max<size_t>(1, kMaxSlabBytes / size_class.slot_bytes);
  while (n_free < n) {
    AddSlab(size_class, per_slab);
    n_free += per_slab;
  }
}

size_t SlabArena::held_bytes() const {
  size_t bytes = 0;
  for (const auto& size_class : classes_) {
    if (size_class->slabs.empty()) continue;
    bytes += sizeof(SizeClass) + size_class->slabs.size() * (sizeof(Slab) + sizeof(Slab*));
    for (const auto& slab : size_class->slabs)
      bytes += SlabBytes(slab->n_slots * size_class->slot_bytes);
  }
  return bytes;
}

}  // namespace varve
