// The arena of one cache: one size class for each payload size, slabs from the system by mmap,
// slots of 64-byte aligned bytes that are reused, idle pages given back. What it says it holds is
// what the process has resident.
#ifndef VARVE_CACHE_BLOCK_STORE_H_
#define VARVE_CACHE_BLOCK_STORE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "cache/slot_map.h"

namespace varve {

/// A payload's place in the arena; data is null when there is none.
struct StoreSlot {
  std::byte* data = nullptr;
  uint32_t index = 0;
  uint16_t slab = 0;
  uint8_t size_class = 0;
  uint8_t stage = 0;  ///< the owner's: which coding the payload has

  explicit operator bool() const { return data != nullptr; }
};

/// Maps `bytes` (whole pages) of zeroed memory aligned to `alignment`; null when there is none.
using MapFunction = std::byte* (*)(size_t bytes, size_t alignment);

/// The system's own: mmap, huge pages advised when the alignment is a huge page's.
std::byte* MapPages(size_t bytes, size_t alignment);

class BlockStore {
 public:
  /// Without a map function the store keeps its books over no memory at all: slots then have data
  /// that is neither null nor to be touched.
  explicit BlockStore(MapFunction map = MapPages) : map_(map) {}
  ~BlockStore();
  BlockStore(const BlockStore&) = delete;
  BlockStore& operator=(const BlockStore&) = delete;

  /// A zeroed slot of `slot_bytes` (a positive multiple of 64), aligned to 64. kOutOfMemory when
  /// the system has none.
  Result<StoreSlot> Allocate(size_t slot_bytes);

  /// Frees a slot and clears it; a null slot is left alone. The pages stay resident until Reclaim.
  void Free(StoreSlot& slot);

  /// Gives pages without live slots back to the system.
  void Reclaim();

  MapFunction map_function() const { return map_; }
  bool has_memory() const { return map_ != nullptr; }

  /// Bytes held: resident pages of all slabs and the arena's own book-keeping.
  size_t held_bytes() const;
  /// Bytes of the live slots alone.
  size_t live_bytes() const;

 private:
  struct SizeClass {
    SlotMap slots;
    std::vector<std::byte*> slab_base;
  };

  /// Puts memory under a slab.
  std::byte* Back(const SlotMap::Slab& slab);

  MapFunction map_;
  std::vector<SizeClass> classes_;
};

}  // namespace varve

#endif  // VARVE_CACHE_BLOCK_STORE_H_
