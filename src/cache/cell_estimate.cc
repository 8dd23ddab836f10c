// What a cell cache will hold: the cache itself at work, over a block store without memory and
// without coding a row.
#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "cache/cell_cache.h"

namespace varve {
namespace {

/// Cells that are written over forget what was before: this many rounds over all of them, and this
/// many tokens, are as good as more but for a page or two, if calls fall on the same cells in the
/// end.
constexpr int64_t kRounds = 4;
constexpr int64_t kTokens = 1 << 16;

Status CheckWork(const CellWorkload& work) {
  const auto check = [](const char* name, int64_t value, int64_t low, int64_t high) {
    if (value >= low && value <= high) return Status();
    return Status(StatusCode::kInvalidArgument, std::string(name) + "=" + std::to_string(value) +
                                                    " must be in " + std::to_string(low) + ".." +
                                                    std::to_string(high));
  };
  VARVE_RETURN_IF_ERROR(check("n_tokens", work.n_tokens, 0, INT64_MAX / 4));
  VARVE_RETURN_IF_ERROR(check("n_batch", work.n_batch, 1, INT32_MAX));
  return check("n_decoded", work.n_decoded, 0, work.n_tokens);
}

}  // namespace

class CellEstimate {
 public:
  CellEstimate(CellCache& cache, const CellWorkload& work)
      : cache_(cache),
        n_batch_(std::min(work.n_batch, cache.shape().n_cells)),
        ones_(std::max(cache.row_elements(Side::kKey), cache.row_elements(Side::kValue)), 1.0f) {
    cache_.least_key_bits_ = work.last_key_bits;
    index_.resize(static_cast<size_t>(n_batch_));
    positions_.resize(static_cast<size_t>(n_batch_));
    const int64_t n_cells = cache.shape().n_cells;
    most_ = std::max(kRounds * n_cells, kTokens);
    // Calls fall on the same cells after this many tokens; where that is too long, cells do.
    const int64_t period = std::lcm(n_cells, int64_t{n_batch_});
    n_bulk_ = Shortened(work.n_tokens - work.n_decoded, period <= most_ ? period : n_cells);
    n_decoded_ = Shortened(work.n_decoded, n_cells);
  }

  Status Run() {
    if (n_bulk_ + n_decoded_ > CellCache::kMaxShift) {
      return Status(StatusCode::kInvalidArgument,
                    "n_tokens: positions would pass " + std::to_string(CellCache::kMaxShift));
    }
    for (int32_t stream = 0; stream < cache_.shape().n_streams; ++stream) {
      int64_t token = 0;
      while (token < n_bulk_) {
        const auto n = static_cast<int32_t>(std::min<int64_t>(n_batch_, n_bulk_ - token));
        VARVE_RETURN_IF_ERROR(Step(stream, token, n));
        token += n;
      }
      for (; token < n_bulk_ + n_decoded_; ++token) VARVE_RETURN_IF_ERROR(Step(stream, token, 1));
    }
    return Status();
  }

 private:
  /// As good as n tokens, and never more than most_ and a period of them.
  int64_t Shortened(int64_t n, int64_t period) const {
    return n <= most_ + period ? n : most_ + (n - most_) % period;
  }

  Status Step(int32_t stream, int64_t token, int32_t n) {
    const int64_t n_cells = cache_.shape().n_cells;
    for (int32_t i = 0; i < n; ++i) {
      index_[static_cast<size_t>(i)] = stream * n_cells + (token + i) % n_cells;
      positions_[static_cast<size_t>(i)] = static_cast<int32_t>(token) + i;
    }
    for (const Side side : {Side::kKey, Side::kValue}) {
      if (side == Side::kValue && !cache_.has_values()) continue;
      // Every row lies in the same place.
      VARVE_RETURN_IF_ERROR(cache_.WriteChecked({side, index_.data(), positions_.data(),
                                                 reinterpret_cast<const std::byte*>(ones_.data()),
                                                 RowType::kF32, 0, n, 1}));
    }
    if (!cache_.has_tables_ && cache_.ladder(Side::kKey).needs_tables())
      cache_.statistics_.AddQueries(ones_.data(), 0, 0, n, cache_.shape().n_kv_heads, 1.0f);
    return Status();
  }

  CellCache& cache_;
  int32_t n_batch_;
  int64_t most_ = 0;
  int64_t n_bulk_ = 0;
  int64_t n_decoded_ = 0;
  std::vector<float> ones_;
  std::vector<int64_t> index_;
  std::vector<int32_t> positions_;
};

Result<uint64_t> EstimateCellBytes(const Settings& settings, const CellShape& shape,
                                   const CellWorkload& work) {
  VARVE_RETURN_IF_ERROR(CheckWork(work));
  auto cache = CellCache::Create(settings, shape, nullptr);
  if (!cache.ok()) return cache.status();
  VARVE_RETURN_IF_ERROR(CellEstimate(*cache.value(), work).Run());
  return cache.value()->Stats().packed_bytes;
}

}  // namespace varve
