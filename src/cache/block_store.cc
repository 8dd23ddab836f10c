#include "cache/block_store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

namespace varve {

std::byte* MapPages(size_t bytes, size_t alignment) {
  const bool huge = alignment > SlotMap::kSmallPageBytes;
  const size_t mapped = huge ? bytes + alignment : bytes;
  if (mapped < bytes) return nullptr;
  void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* base = static_cast<std::byte*>(raw);
  if (huge) {
    const size_t misaligned = reinterpret_cast<uintptr_t>(base) % alignment;
    const size_t head = misaligned == 0 ? 0 : alignment - misaligned;
    if (head != 0) munmap(base, head);
    if (alignment - head != 0) munmap(base + head + bytes, alignment - head);
    base += head;
  }
  // Why: under transparent_hugepage=always a small slab would be backed by 2 MiB at the first
  // touch.
  madvise(base, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return base;
}

BlockStore::~BlockStore() {
  if (!has_memory()) return;
  for (SizeClass& size_class : classes_) {
    for (uint32_t s = 0; s < size_class.slots.n_slabs(); ++s) {
      const SlotMap::Slab& slab = size_class.slots.slab(s);
      if (slab.mapped) munmap(size_class.slab_base[s], slab.bytes);
    }
  }
}

std::byte* BlockStore::Back(const SlotMap::Slab& slab) {
  static std::byte nothing;
  return has_memory() ? map_(slab.bytes, slab.page_bytes) : &nothing;
}

Result<StoreSlot> BlockStore::Allocate(size_t slot_bytes) {
  const auto found = std::find_if(classes_.begin(), classes_.end(), [&](const SizeClass& c) {
    return c.slots.slot_bytes() == slot_bytes;
  });
  const auto class_index = static_cast<size_t>(found - classes_.begin());
  if (found == classes_.end()) classes_.push_back({SlotMap(slot_bytes), {}});
  SizeClass& size_class = classes_[class_index];

  auto slot = size_class.slots.Take();
  if (!slot) {
    const uint32_t s = size_class.slots.NextSlab();
    size_class.slab_base.resize(size_class.slots.n_slabs(), nullptr);
    const SlotMap::Slab& slab = size_class.slots.slab(s);
    std::byte* base = s > UINT16_MAX ? nullptr : Back(slab);
    if (base == nullptr) {
      return Status(StatusCode::kOutOfMemory, "the system gave no memory for a slab of " +
                                                  std::to_string(slab.bytes) + " bytes");
    }
    size_class.slab_base[s] = base;
    size_class.slots.MarkMapped(s);
    slot = size_class.slots.Take();
  }
  StoreSlot out;
  out.size_class = static_cast<uint8_t>(class_index);
  out.slab = static_cast<uint16_t>(slot->slab);
  out.index = slot->index;
  out.data = size_class.slab_base[slot->slab];
  if (!has_memory()) return out;
  out.data += slot->index * slot_bytes;
  std::memset(out.data, 0, slot_bytes);
  return out;
}

void BlockStore::Free(StoreSlot& slot) {
  if (!slot) return;
  classes_[slot.size_class].slots.Release({slot.slab, slot.index});
  slot = StoreSlot{};
}

void BlockStore::Reclaim() {
  for (SizeClass& size_class : classes_) {
    size_class.slots.Reclaim(
        [&](uint32_t s, size_t first, size_t n) {
          if (has_memory()) madvise(size_class.slab_base[s] + first, n, MADV_DONTNEED);
        },
        [&](uint32_t s) {
          if (has_memory()) munmap(size_class.slab_base[s], size_class.slots.slab(s).bytes);
          size_class.slab_base[s] = nullptr;
        });
  }
}

size_t BlockStore::held_bytes() const {
  size_t bytes = 0;
  for (const SizeClass& size_class : classes_) bytes += size_class.slots.held_bytes();
  return bytes;
}

size_t BlockStore::live_bytes() const {
  size_t bytes = 0;
  for (const SizeClass& size_class : classes_) bytes += size_class.slots.live_bytes();
  return bytes;
}

}  // namespace varve
