// Memory of a sequence cache: slots of a few sizes, cut from slabs. A slot that is given back is
// the next one handed out in its size; a slab without slots in use goes back to the system. Nothing
// is ever moved or copied to grow.
#ifndef VARVE_CACHE_SLAB_ARENA_H_
#define VARVE_CACHE_SLAB_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace varve {

class SlabArena;

namespace internal {
struct Slab;
}  // namespace internal

/// One slot of an arena, given back on destruction. Must not outlive the arena.
class Slot {
 public:
  Slot() = default;
  Slot(Slot&& other) noexcept;
  Slot& operator=(Slot&& other) noexcept;
  ~Slot();

  std::byte* data() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  friend class SlabArena;
  Slot(std::byte* data, internal::Slab* slab) : data_(data), slab_(slab) {}

  std::byte* data_ = nullptr;
  internal::Slab* slab_ = nullptr;
};

/// Throws std::bad_alloc when the system has no memory; the arena is then as it was.
class SlabArena {
 public:
  SlabArena();
  ~SlabArena();
  SlabArena(const SlabArena&) = delete;
  SlabArena& operator=(const SlabArena&) = delete;

  /// A slot of at least `bytes` (> 0) bytes, 64-byte aligned, content undefined.
  Slot Allocate(size_t bytes);

  /// Makes sure that `n` more slots of this size can be had without asking the system.
  void Reserve(size_t bytes, size_t n);

  /// Bytes held from the system: whole slabs, used or not, and what describes them.
  size_t held_bytes() const;

 private:
  friend class Slot;
  struct SizeClass;

  SizeClass& ClassOf(size_t bytes);
  internal::Slab* AddSlab(SizeClass& size_class, size_t n_slots);
  static void Release(std::byte* data, internal::Slab* slab) noexcept;

  std::vector<std::unique_ptr<SizeClass>> classes_;
};

}  // namespace varve

#endif  // VARVE_CACHE_SLAB_ARENA_H_
