#include "cache/slot_map.h"

#include <algorithm>
#include <bit>

#include "base/checked_math.h"

namespace varve {

std::optional<SlotMap::Slot> SlotMap::Take() {
  for (; first_with_free_ < slabs_.size(); ++first_with_free_) {
    Slab& slab = slabs_[first_with_free_];
    if (!slab.mapped || slab.n_live == slab.n_slots) continue;
    for (size_t w = 0; w < slab.free_slots.size(); ++w) {
      uint64_t& word = slab.free_slots[w];
      if (word == 0) continue;
      const auto bit = static_cast<uint32_t>(std::countr_zero(word));
      word &= word - 1;
      const Slot slot{first_with_free_, static_cast<uint32_t>(w * 64 + bit)};
      ++slab.n_live;
      ++n_live_;
      const size_t begin = slot.index * slot_bytes_;
      for (size_t p = begin / slab.page_bytes; p <= (begin + slot_bytes_ - 1) / slab.page_bytes;
           ++p) {
        ++slab.page_slots[p];
        if (!slab.page_resident[p]) {
          slab.page_resident[p] = true;
          resident_bytes_ += slab.page_bytes;
        }
      }
      return slot;
    }
  }
  return std::nullopt;
}

uint32_t SlotMap::NextSlab() {
  for (uint32_t s = 0; s < slabs_.size(); ++s) {
    if (!slabs_[s].mapped) return s;
  }
  const bool huge = mapped_bytes_ >= kHugeFromBytes;
  const size_t target = huge ? kHugeSlabBytes : kSmallSlabBytes;
  Slab slab;
  slab.page_bytes = huge ? kHugePageBytes : kSmallPageBytes;
  slab.n_slots = static_cast<uint32_t>(std::max<size_t>(target / slot_bytes_, 1));
  slab.bytes = RoundUp(slab.n_slots * slot_bytes_, slab.page_bytes);
  slab.free_slots.assign(CeilDiv<size_t>(slab.n_slots, 64), ~uint64_t{0});
  if (slab.n_slots % 64 != 0) slab.free_slots.back() = (uint64_t{1} << (slab.n_slots % 64)) - 1;
  slab.page_slots.assign(slab.bytes / slab.page_bytes, 0);
  slab.page_resident.assign(slab.bytes / slab.page_bytes, false);
  slabs_.push_back(std::move(slab));
  return static_cast<uint32_t>(slabs_.size() - 1);
}

void SlotMap::MarkMapped(uint32_t index) {
  slabs_[index].mapped = true;
  mapped_bytes_ += slabs_[index].bytes;
  first_with_free_ = std::min(first_with_free_, index);
}

void SlotMap::Release(Slot slot) {
  Slab& slab = slabs_[slot.slab];
  slab.free_slots[slot.index / 64] |= uint64_t{1} << (slot.index % 64);
  --slab.n_live;
  --n_live_;
  first_with_free_ = std::min(first_with_free_, slot.slab);
  const size_t begin = slot.index * slot_bytes_;
  for (size_t p = begin / slab.page_bytes; p <= (begin + slot_bytes_ - 1) / slab.page_bytes; ++p) {
    if (--slab.page_slots[p] == 0) slab.has_idle_pages = has_idle_pages_ = true;
  }
}

size_t SlotMap::held_bytes() const {
  size_t bytes = resident_bytes_ + slabs_.capacity() * sizeof(Slab);
  for (const Slab& slab : slabs_) {
    bytes += slab.free_slots.size() * sizeof(uint64_t) + slab.page_slots.size() * sizeof(uint16_t) +
             slab.page_resident.size() / 8;
  }
  return bytes;
}

}  // namespace varve
