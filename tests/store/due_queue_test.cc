#include "cache/due_queue.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace varve {
namespace {

TEST(DueQueue, GivesBlocksInOrderOfTheirKeys) {
  std::mt19937 random(3);
  DueQueue queue;
  queue.Reserve(200);
  std::map<int32_t, std::pair<int, int64_t>> expected;
  int64_t now[2] = {0, 0};
  for (int step = 0; step < 20000; ++step) {
    const auto block = static_cast<int32_t>(random() % 200);
    const int order = static_cast<int>(random() % 2);
    switch (random() % 4) {
      case 0:
      case 1: {
        const int64_t key = now[order] + static_cast<int64_t>(random() % 100);
        queue.Put(static_cast<DueQueue::Order>(order), block, key);
        expected[block] = {order, key};
        break;
      }
      case 2:
        queue.Remove(block);
        expected.erase(block);
        break;
      default: {
        now[order] += random() % 20;
        int64_t smallest = INT64_MAX;
        for (const auto& [b, entry] : expected) {
          if (entry.first == order) smallest = std::min(smallest, entry.second);
        }
        const int32_t popped = queue.PopDue(static_cast<DueQueue::Order>(order), now[order]);
        if (smallest > now[order]) {
          ASSERT_EQ(popped, -1);
          break;
        }
        ASSERT_TRUE(expected.count(popped));
        ASSERT_EQ(expected[popped], std::make_pair(order, smallest));
        expected.erase(popped);
      }
    }
    ASSERT_EQ(queue.Contains(block), expected.count(block) == 1);
  }
}

}  // namespace
}  // namespace varve
