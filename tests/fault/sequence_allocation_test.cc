// The Nth allocation fails, for every N: whatever the call was, the cache is then as it was before.
#include <cstdlib>
#include <new>

#include "property/sequence_fixture.h"

namespace {

// Allocations left until one fails; negative: none does.
thread_local int64_t allocations_left = -1;

void* AllocateOrFail(std::size_t bytes, std::size_t alignment) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  void* data = alignment > 0
                   ? std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment)
                   : std::malloc(bytes > 0 ? bytes : 1);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(std::size_t bytes) { return AllocateOrFail(bytes, 0); }
void* operator new[](std::size_t bytes) { return AllocateOrFail(bytes, 0); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return AllocateOrFail(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return AllocateOrFail(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }

namespace varve {
namespace {

// Runs body() with the nth allocation failing; false if it threw.
template <typename Body>
bool Survives(int64_t nth, Body&& body) {
  allocations_left = nth;
  bool survived = true;
  try {
    body();
  } catch (const std::bad_alloc&) {
    survived = false;
  }
  allocations_left = -1;
  return survived;
}

TEST(SequenceAllocation, AFailedCallChangesNothing) {
  std::mt19937_64 random(TestSeed());
  for (const std::string& config : ManyConfigs()) {
    const Tokens tokens = RandomTokens(random, 1, 2, 200, 12, 12);
    // A token, a call that closes groups, one that demotes many, one on the empty cache.
    struct Step {
      int64_t held, n;
    };
    for (const Step step : {Step{0, 5}, Step{0, 130}, Step{31, 1}, Step{40, 9}, Step{70, 100}}) {
      CachePtr expected = MakeCache(config);
      CachePtr cache = MakeCache(config);
      if (step.held > 0) {
        ASSERT_TRUE(AppendSome(*expected, tokens, 0, step.held).ok());
        ASSERT_TRUE(AppendSome(*cache, tokens, 0, step.held).ok());
      }
      const Content before = ContentOf(*cache);
      const uint64_t bytes_before = cache->Stats().stored_bytes;
      int64_t nth = 0;
      for (bool done = false; !done; ++nth) {
        ASSERT_LT(nth, 20000) << config;
        done = Survives(nth, [&] {
          const Status status = AppendSome(*cache, tokens, step.held, step.n);
          ASSERT_TRUE(status.ok()) << status.text();
        });
        if (done) break;
        ASSERT_EQ(ContentOf(*cache), before)
            << config << ": allocation " << nth << " of append " << step.n;
        ASSERT_EQ(cache->Stats().stored_bytes, bytes_before) << config << ": allocation " << nth;
      }
      EXPECT_GT(nth, 0) << config;
      ASSERT_TRUE(AppendSome(*expected, tokens, step.held, step.n).ok());
      ASSERT_EQ(ContentOf(*cache), ContentOf(*expected)) << config;

      for (const int64_t cut : {int64_t{1}, step.n / 2 + 3}) {
        const Content held = ContentOf(*cache);
        int64_t removed = 0;
        for (int64_t at = 0; !Survives(at, [&] { ASSERT_TRUE(cache->Trim(cut, &removed).ok()); });
             ++at) {
          ASSERT_EQ(ContentOf(*cache), held)
              << config << ": allocation " << at << " of trim " << cut;
        }
        ASSERT_EQ(cache->n_tokens(), held.n_tokens - removed);
      }
      const Content source = ContentOf(*cache);
      CachePtr clone;
      for (int64_t at = 0; clone == nullptr; ++at) {
        Survives(at, [&] {
          Result<CachePtr> made = cache->Clone();
          if (made.ok()) clone = std::move(made).value();
        });
        ASSERT_EQ(ContentOf(*cache), source);
      }
      ASSERT_EQ(ContentOf(*clone), source) << config;
    }
  }
}

}  // namespace
}  // namespace varve
