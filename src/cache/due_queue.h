// When each block of a stream is next due for a lower tier. Two heaps of block numbers, one ordered
// by write clock and one by position; a block sits in one of them at most, so the memory is two
// words a block and pushing never allocates.
#ifndef VARVE_CACHE_DUE_QUEUE_H_
#define VARVE_CACHE_DUE_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace varve {

class DueQueue {  // NOLINT(bugprone-reserved-identifier): clang's own, to copy an array
 public:
  enum class Order : uint8_t { kClock = 0, kPosition = 1 };

  /// Room for blocks 0..n_blocks-1; may throw std::bad_alloc, the queue being as before.
  void Reserve(size_t n_blocks);

  /// Puts a block into one heap under `key`, out of the other.
  void Put(Order order, int32_t block, int64_t key);
  void Remove(int32_t block);
  bool Contains(int32_t block) const { return where_[static_cast<size_t>(block)] != kAbsent; }

  /// Whether PopDue would give a block in either order.
  bool HasDue(int64_t clock, int64_t newest_position) const {
    return (!heap_[0].empty() && heap_[0][0].key <= clock) ||
           (!heap_[1].empty() && heap_[1][0].key <= newest_position);
  }

  /// Takes out the block of the smallest key if that is at most `now`; -1 if there is none.
  int32_t PopDue(Order order, int64_t now);

  size_t held_bytes() const { return where_.capacity() * kBytesPerBlock; }

 private:
  struct Entry {
    int64_t key;
    int32_t block;
  };
  static constexpr size_t kBytesPerBlock = 2 * sizeof(Entry) + sizeof(int32_t);
  static constexpr int32_t kAbsent = -1;

  void SiftUp(Order order, size_t i);
  void SiftDown(Order order, size_t i);
  void Place(Order order, size_t i, Entry entry);

  std::vector<Entry> heap_[2];
  std::vector<int32_t> where_;  ///< 2*index + order, or kAbsent
};

}  // namespace varve

#endif  // VARVE_CACHE_DUE_QUEUE_H_
