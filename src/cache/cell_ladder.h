// The ladder that the payloads of one side of a cell cache walk: which coding at which age. Made
// from Settings.
#ifndef VARVE_CACHE_CELL_LADDER_H_
#define VARVE_CACHE_CELL_LADDER_H_

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "layout/block_layout.h"
#include "policy/settings.h"

namespace varve {

inline constexpr int64_t kNeverLeaves = INT64_MAX;

/// One step of a ladder. A payload moves on once its block's age reaches leave_age.
struct CellStage {
  BlockLayout layout;
  int tier = 0;                      ///< 0 recent, 1 mid, 2 old
  int64_t leave_age = kNeverLeaves;  ///< tokens; 0: as soon as the next stage can be coded
  bool needs_table = false;          ///< kRopePair
};

/// Stages in the order they are walked. A tier that no token can be in (its boundary is not past
/// the one before) is left out. Keys that would start below 8 bits get a stage of 8 rotated bits in
/// front, where they wait for the table.
struct SideLadder {
  std::vector<CellStage> stages;
  /// Keys go down to a stage only while its tables predict at most this rms error of a logit; 0: no
  /// limit.
  double key_error_limit = 0;

  /// Stage of a block that is written to: the first one, or past the waiting stage once keys have
  /// tables. Rows are coded through all stages up to it, so the bytes do not tell when the table
  /// came.
  int entry(bool has_tables) const {
    return has_tables && stages.front().leave_age == 0 && stages.size() > 1 ? 1 : 0;
  }
  bool needs_tables() const;
};

/// Ladder of one side from a layer's settings. Errors: kUnsupported for methods and codecs that
/// need whole groups of consecutive tokens (kivi, amc, group_affine) and for widths other than 2,
/// 3, 4, 8 and 16.
[[nodiscard]] Result<SideLadder> MakeSideLadder(const Settings& settings, Side side, int head_dim);

}  // namespace varve

#endif  // VARVE_CACHE_CELL_LADDER_H_
