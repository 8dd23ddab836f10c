#include "cache/due_queue.h"

namespace varve {

void DueQueue::Reserve(size_t n_blocks) {
  if (n_blocks <= where_.size()) return;
  heap_[0].reserve(n_blocks);
  heap_[1].reserve(n_blocks);
  where_.reserve(n_blocks);
  where_.resize(n_blocks, kAbsent);
}

void DueQueue::Place(Order order, size_t i, Entry entry) {
  heap_[static_cast<size_t>(order)][i] = entry;
  where_[static_cast<size_t>(entry.block)] =
      static_cast<int32_t>(2 * i + static_cast<size_t>(order));
}

void DueQueue::SiftUp(Order order, size_t i) {
  auto& heap = heap_[static_cast<size_t>(order)];
  const Entry entry = heap[i];
  for (; i > 0 && heap[(i - 1) / 2].key > entry.key; i = (i - 1) / 2)
    Place(order, i, heap[(i - 1) / 2]);
  Place(order, i, entry);
}

void DueQueue::SiftDown(Order order, size_t i) {
  auto& heap = heap_[static_cast<size_t>(order)];
  const Entry entry = heap[i];
  for (size_t child = 2 * i + 1; child < heap.size(); child = 2 * i + 1) {
    if (child + 1 < heap.size() && heap[child + 1].key < heap[child].key) ++child;
    if (heap[child].key >= entry.key) break;
    Place(order, i, heap[child]);
    i = child;
  }
  Place(order, i, entry);
}

void DueQueue::Put(Order order, int32_t block, int64_t key) {
  Remove(block);
  auto& heap = heap_[static_cast<size_t>(order)];
  heap.push_back({key, block});
  SiftUp(order, heap.size() - 1);
}

void DueQueue::Remove(int32_t block) {
  const int32_t where = where_[static_cast<size_t>(block)];
  if (where == kAbsent) return;
  const auto order = static_cast<Order>(where % 2);
  const auto i = static_cast<size_t>(where / 2);
  auto& heap = heap_[static_cast<size_t>(order)];
  where_[static_cast<size_t>(block)] = kAbsent;
  const Entry last = heap.back();
  heap.pop_back();
  if (i == heap.size()) return;
  Place(order, i, last);
  SiftUp(order, i);
  SiftDown(order, static_cast<size_t>(where_[static_cast<size_t>(last.block)]) / 2);
}

int32_t DueQueue::PopDue(Order order, int64_t now) {
  const auto& heap = heap_[static_cast<size_t>(order)];
  if (heap.empty() || heap[0].key > now) return -1;
  const int32_t block = heap[0].block;
  Remove(block);
  return block;
}

}  // namespace varve
