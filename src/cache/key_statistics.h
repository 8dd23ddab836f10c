// Energies of keys and queries a channel, summed while the first tokens pass, and the rule when a
// key table may be fitted from them. Only the first `target` tokens count, so the tables do not
// depend on how the tokens were cut into calls as long as their query rows came along with them.
#ifndef VARVE_CACHE_KEY_STATISTICS_H_
#define VARVE_CACHE_KEY_STATISTICS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/status.h"
#include "codec/key_table.h"
#include "session/bytes.h"

namespace varve {

class KeyStatistics {
 public:
  /// Rows times heads of queries below which a fit waits for more.
  static constexpr int64_t kMinQueryVectors = 32;
  /// Tokens written while a fit waits for queries; past it the fit goes on without them.
  static constexpr int64_t kMaxWaitTokens = 8192;

  KeyStatistics(int n_kv_heads, int head_dim, int64_t target_tokens);

  /// Adds one token's key row, f32 [n_kv_heads][head_dim]; rows past the target and rows that are
  /// not finite do not count.
  void AddKey(const float* row);

  /// Adds query rows f32 [n_rows][n_heads][head_dim] by strides in elements, times the attention's
  /// scale, so that energies are those of logits; rows past the target do not count.
  void AddQueries(const float* q, ptrdiff_t row_stride, ptrdiff_t head_stride, int n_rows,
                  int n_heads, float scale);

  /// Says that `n_tokens` more were written while a block waits for tables.
  void AddWait(int64_t n_tokens) { wait_tokens_ += n_tokens; }

  /// Whether enough was seen: target_tokens keys, and kMinQueryVectors queries or a long wait.
  bool ready() const;

  int64_t target_tokens() const { return target_tokens_; }
  const PairEnergies& energies(int kv_head) const {
    return energies_[static_cast<size_t>(kv_head)];
  }
  size_t held_bytes() const {
    return energies_.size() * (sizeof(PairEnergies) + 2 * energies_[0].key.size() * sizeof(double));
  }
  void Reset();

  void Save(ByteWriter* to) const;
  /// Errors: kBadFormat.
  [[nodiscard]] Status Load(ByteReader* from);

 private:
  int64_t target_tokens_;
  int64_t n_keys_ = 0;
  int64_t n_query_rows_ = 0;
  int64_t n_query_vectors_ = 0;
  int64_t wait_tokens_ = 0;
  std::vector<PairEnergies> energies_;  ///< [n_kv_heads]
};

}  // namespace varve

#endif  // VARVE_CACHE_KEY_STATISTICS_H_
