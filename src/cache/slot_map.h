// Which slots of one size class are taken and which pages they keep resident. Pure book-keeping, no
// memory behind it: the block store puts slabs under it.
#ifndef VARVE_CACHE_SLOT_MAP_H_
#define VARVE_CACHE_SLOT_MAP_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace varve {

/// Slots of `slot_bytes` bytes, packed back to back in slabs. The lowest free slot is taken first,
/// so that live slots crowd together and the pages past them can go back to the system: the slack
/// of a class is about one page.
class SlotMap {
 public:
  struct Slot {
    uint32_t slab = 0;
    uint32_t index = 0;
  };
  struct Slab {
    bool mapped = false;
    bool has_idle_pages = false;
    uint32_t n_slots = 0;
    uint32_t n_live = 0;
    size_t page_bytes = 0;
    size_t bytes = 0;                  ///< whole pages
    std::vector<uint64_t> free_slots;  ///< bit set: free
    std::vector<uint16_t> page_slots;  ///< live slots that overlap a page
    std::vector<bool> page_resident;   ///< touched and not yet given back
  };

  static constexpr size_t kSmallPageBytes = 4096;
  static constexpr size_t kHugePageBytes = size_t{2} << 20;
  static constexpr size_t kSmallSlabBytes = size_t{1} << 20;
  static constexpr size_t kHugeSlabBytes = size_t{16} << 20;
  /// A class that has this much in small slabs goes on in slabs of huge pages; half a huge page is
  /// then under 2 %.
  static constexpr size_t kHugeFromBytes = size_t{64} << 20;

  /// slot_bytes: a positive multiple of 64.
  explicit SlotMap(size_t slot_bytes) : slot_bytes_(slot_bytes) {}

  /// Takes the lowest free slot of the slabs there are; none when all are full.
  std::optional<Slot> Take();

  /// Index of a slab that is not mapped, whose geometry is set; the caller backs it and calls
  /// MarkMapped.
  uint32_t NextSlab();
  void MarkMapped(uint32_t slab);

  void Release(Slot slot);

  /// Gives idle pages back: calls discard(slab, first_byte, n_bytes) for runs of pages without live
  /// slots and unmap(slab) for slabs without any.
  template <typename Discard, typename Unmap>
  void Reclaim(Discard discard, Unmap unmap);

  size_t slot_bytes() const { return slot_bytes_; }
  const Slab& slab(uint32_t index) const { return slabs_[index]; }
  size_t n_slabs() const { return slabs_.size(); }
  /// Bytes of the pages that live slots have touched and Reclaim has not given back.
  size_t resident_bytes() const { return resident_bytes_; }
  /// resident_bytes and the map's own book-keeping.
  size_t held_bytes() const;
  size_t live_bytes() const { return n_live_ * slot_bytes_; }

 private:
  size_t slot_bytes_;
  size_t n_live_ = 0;
  size_t resident_bytes_ = 0;
  size_t mapped_bytes_ = 0;
  bool has_idle_pages_ = false;
  uint32_t first_with_free_ = 0;  ///< no slab before it has a free slot
  std::vector<Slab> slabs_;
};

template <typename Discard, typename Unmap>
void SlotMap::Reclaim(Discard discard, Unmap unmap) {
  if (!has_idle_pages_) return;
  has_idle_pages_ = false;
  for (uint32_t s = 0; s < slabs_.size(); ++s) {
    Slab& slab = slabs_[s];
    if (!slab.mapped || !slab.has_idle_pages) continue;
    slab.has_idle_pages = false;
    const bool whole = slab.n_live == 0;
    const size_t n_pages = slab.page_slots.size();
    for (size_t p = 0; p < n_pages;) {
      if (slab.page_slots[p] != 0 || !slab.page_resident[p]) {
        ++p;
        continue;
      }
      const size_t first = p;
      for (; p < n_pages && slab.page_slots[p] == 0 && slab.page_resident[p]; ++p) {
        slab.page_resident[p] = false;
        resident_bytes_ -= slab.page_bytes;
      }
      if (!whole) discard(s, first * slab.page_bytes, (p - first) * slab.page_bytes);
    }
    if (whole) {
      slab.mapped = false;
      mapped_bytes_ -= slab.bytes;
      unmap(s);
    }
  }
}

}  // namespace varve

#endif  // VARVE_CACHE_SLOT_MAP_H_
