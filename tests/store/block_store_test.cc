// The arena: slots are aligned, zeroed and reused; idle pages go back; what it says it holds is
// what is resident.
#include "cache/block_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <set>
#include <vector>

#include "cache/slot_map.h"

namespace varve {
namespace {

[[maybe_unused]] size_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  size_t total = 0;
  size_t resident = 0;
  statm >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

TEST(BlockStore, SlotsAreAlignedZeroedAndApart) {
  BlockStore store;
  std::vector<StoreSlot> slots;
  std::set<std::byte*> seen;
  for (int i = 0; i < 500; ++i) {
    const size_t bytes = 64 * static_cast<size_t>(1 + i % 5);
    auto slot = store.Allocate(bytes);
    ASSERT_TRUE(slot.ok());
    slots.push_back(slot.value());
    ASSERT_EQ(reinterpret_cast<uintptr_t>(slots.back().data) % 64, 0u);
    ASSERT_TRUE(seen.insert(slots.back().data).second);
    for (size_t b = 0; b < bytes; ++b) ASSERT_EQ(slots.back().data[b], std::byte{0});
    std::memset(slots.back().data, i | 1, bytes);
  }
  for (int i = 0; i < 500; ++i) {
    ASSERT_EQ(slots[static_cast<size_t>(i)].data[0], static_cast<std::byte>(i | 1))
        << "slot " << i << " overwritten";
  }
  std::byte* freed = slots[10].data;
  store.Free(slots[10]);
  EXPECT_FALSE(slots[10]);
  auto again = store.Allocate(64);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again.value().data, freed) << "the lowest free slot is taken first";
  EXPECT_EQ(again.value().data[0], std::byte{0}) << "a reused slot is zeroed";
}

// A sanitizer keeps memory of its own, so RSS says nothing there.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(BlockStore, HoldsWhatIsResident) {
  constexpr size_t kSlot = 6336;  // 3 heads x 64 channels at 8 bits
  constexpr size_t kSlots = 4000;
  BlockStore store;
  std::vector<StoreSlot> slots;
  slots.reserve(kSlots);
  const size_t before = ResidentBytes();
  for (size_t i = 0; i < kSlots; ++i) slots.push_back(store.Allocate(kSlot).value());
  const auto full = static_cast<double>(ResidentBytes() - before);
  EXPECT_EQ(store.live_bytes(), kSlots * kSlot);
  EXPECT_NEAR(static_cast<double>(store.held_bytes()), full, 0.02 * full);
  EXPECT_LT(static_cast<double>(store.held_bytes()), 1.01 * kSlots * kSlot);

  for (size_t i = 500; i < kSlots; ++i) store.Free(slots[i]);
  store.Reclaim();
  const auto rest = static_cast<double>(ResidentBytes() - before);
  EXPECT_LT(static_cast<double>(store.held_bytes()), 1.02 * 500 * kSlot);
  EXPECT_NEAR(static_cast<double>(store.held_bytes()), rest, 0.05 * rest);

  for (size_t i = 0; i < 500; ++i) store.Free(slots[i]);
  store.Reclaim();
  EXPECT_EQ(store.live_bytes(), 0u);
  EXPECT_LT(store.held_bytes(), 100000u) << "only book-keeping is left";
}
#endif

TEST(BlockStore, SaysWhenTheSystemHasNoMemory) {
  static int left;
  left = 1;
  BlockStore store([](size_t bytes, size_t alignment) -> std::byte* {
    return left-- > 0 ? MapPages(bytes, alignment) : nullptr;
  });
  std::vector<StoreSlot> slots;
  while (true) {
    auto slot = store.Allocate(64 * 1024);
    if (!slot.ok()) {
      EXPECT_EQ(slot.status().code(), StatusCode::kOutOfMemory);
      EXPECT_NE(slot.status().text().find("bytes"), std::string::npos);
      break;
    }
    slots.push_back(slot.value());
    ASSERT_LE(slots.size(), 16u);
  }
  EXPECT_EQ(slots.size(), 16u) << "one slab of 1 MiB";
  left = 1;
  EXPECT_TRUE(store.Allocate(64 * 1024).ok()) << "works again once there is memory";
}

TEST(SlotMap, RandomUseKeepsCountsRight) {
  std::mt19937 random(7);
  for (const size_t bytes : {size_t{64}, size_t{1152}, size_t{4096}, size_t{6336}, size_t{70016}}) {
    SlotMap map(bytes);
    std::vector<SlotMap::Slot> live;
    for (int step = 0; step < 3000; ++step) {
      if (live.empty() || random() % 100 < (step < 1500 ? 70u : 30u)) {
        auto slot = map.Take();
        if (!slot) {
          map.MarkMapped(map.NextSlab());
          slot = map.Take();
        }
        ASSERT_TRUE(slot.has_value());
        live.push_back(*slot);
      } else {
        const size_t i = random() % live.size();
        map.Release(live[i]);
        live[i] = live.back();
        live.pop_back();
      }
      if (step % 50 != 0) continue;
      map.Reclaim([](uint32_t, size_t, size_t) {}, [](uint32_t) {});
      std::set<std::pair<uint32_t, size_t>> pages;
      for (const SlotMap::Slot& slot : live) {
        for (size_t p = slot.index * bytes / 4096; p <= ((slot.index + 1) * bytes - 1) / 4096; ++p)
          pages.insert({slot.slab, p});
      }
      ASSERT_EQ(map.resident_bytes(), pages.size() * 4096);
      ASSERT_EQ(map.live_bytes(), live.size() * bytes);
    }
  }
}

TEST(SlotMap, GoesOnInHugePagesWhenBig) {
  SlotMap map(33280);
  const size_t n = size_t{200} << 20;
  for (size_t taken = 0; taken < n; taken += 33280) {
    if (!map.Take()) {
      map.MarkMapped(map.NextSlab());
      map.Take();
    }
  }
  EXPECT_EQ(map.slab(0).page_bytes, SlotMap::kSmallPageBytes);
  EXPECT_EQ(map.slab(static_cast<uint32_t>(map.n_slabs() - 1)).page_bytes, SlotMap::kHugePageBytes);
  EXPECT_LT(static_cast<double>(map.resident_bytes()),
            1.02 * static_cast<double>(map.live_bytes()));
}

}  // namespace
}  // namespace varve
