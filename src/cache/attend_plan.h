// What one attention call works on, found out once: the distinct key codings among its blocks, how
// wide things are, and which scratch a task needs. Internal to src/cache/attend*.
#ifndef VARVE_CACHE_ATTEND_PLAN_H_
#define VARVE_CACHE_ATTEND_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/checked_math.h"
#include "cache/attend.h"
#include "kernels/kernel_set.h"

namespace varve {

/// Hands out 64-byte aligned pieces of one buffer. Run on address 0 it only measures.
class Bump {
 public:
  explicit Bump(uintptr_t at) : at_(at) {}

  template <typename T>
  T* Take(size_t n) {
    at_ = RoundUp(at_, static_cast<uintptr_t>(kLineBytes));
    const uintptr_t start = at_;
    at_ += n * sizeof(T);
    return reinterpret_cast<T*>(start);  // NOLINT(performance-no-int-to-ptr): that is the buffer
  }

  uintptr_t at() const { return at_; }

 private:
  uintptr_t at_;
};

/// Keys that one preparation of a query serves: one coding, one pending rotation.
struct KeyView {
  const BlockLayout* layout = nullptr;
  const KeyTable* tables = nullptr;
  int rotation = 0;

  bool is_float() const { return layout == nullptr || layout->scheme.codec == Codec::kF16; }
  friend bool operator==(const KeyView&, const KeyView&) = default;
};

/// Heads, query rows and blocks of one task.
struct TaskRange {
  int first_kv_head = 0;
  int n_kv_heads = 0;
  int first_row = 0;
  int n_rows = 0;
  int first_block = 0;
  int end_block = 0;
  bool exact_rows = false;
};

struct AttendPlan {
  const AttendProblem* problem = nullptr;
  const KernelSet* kernels = nullptr;
  int n_rep = 1;
  std::vector<KeyView> views;
  std::vector<int> block_view;  ///< [blocks]
  std::vector<int> exact_view;  ///< [exact rows]
  int max_view_channels = 0;    ///< stored channels of the widest packed view
  int value_vectors = 0;      ///< rotated value channels in vectors of 16; 0 when no block has them
  bool plain_values = false;  ///< some values are plain rows
  bool float_tiles = false;   ///< some keys or values go through f32 tiles
};

AttendPlan MakePlan(const AttendProblem& problem, const KernelSet& kernels);

}  // namespace varve

#endif  // VARVE_CACHE_ATTEND_PLAN_H_
