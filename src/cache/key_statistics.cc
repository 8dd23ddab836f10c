#include "cache/key_statistics.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "session/key_tables.h"

namespace varve {
namespace {

/// sum += (scale * x)^2, elementwise.
void AddSquares(const float* x, double scale, std::vector<double>& sum) {
  for (size_t i = 0; i < sum.size(); ++i) {
    const double scaled = scale * static_cast<double>(x[i]);
    sum[i] += scaled * scaled;
  }
}

bool AllFinite(const float* x, size_t n) {
  return std::all_of(x, x + n, [](float v) { return std::isfinite(v); });
}

}  // namespace

KeyStatistics::KeyStatistics(int n_kv_heads, int head_dim, int64_t target_tokens)
    : target_tokens_(target_tokens), energies_(static_cast<size_t>(n_kv_heads)) {
  for (PairEnergies& e : energies_) {
    e.key.resize(static_cast<size_t>(head_dim));
    e.query.resize(static_cast<size_t>(head_dim));
  }
}

void KeyStatistics::Reset() {
  n_keys_ = n_query_rows_ = n_query_vectors_ = wait_tokens_ = 0;
  for (PairEnergies& e : energies_) {
    std::fill(e.key.begin(), e.key.end(), 0.0);
    std::fill(e.query.begin(), e.query.end(), 0.0);
    e.n_keys = e.n_queries = 0;
  }
}

void KeyStatistics::AddKey(const float* row) {
  const size_t head_dim = energies_[0].key.size();
  if (n_keys_ >= target_tokens_ || !AllFinite(row, head_dim * energies_.size())) return;
  ++n_keys_;
  for (size_t h = 0; h < energies_.size(); ++h) {
    AddSquares(row + h * head_dim, 1.0, energies_[h].key);
    energies_[h].n_keys += 1;
  }
}

void KeyStatistics::AddQueries(const float* q, ptrdiff_t row_stride, ptrdiff_t head_stride,
                               int n_rows, int n_heads, float scale) {
  const size_t head_dim = energies_[0].query.size();
  const int n_rep = n_heads / static_cast<int>(energies_.size());
  for (int r = 0; r < n_rows && n_query_rows_ < target_tokens_; ++r) {
    ++n_query_rows_;
    for (int h = 0; h < n_heads; ++h) {
      const float* x = q + r * row_stride + h * head_stride;
      if (!AllFinite(x, head_dim)) continue;
      PairEnergies& e = energies_[static_cast<size_t>(h / n_rep)];
      AddSquares(x, static_cast<double>(scale), e.query);
      e.n_queries += 1;
      ++n_query_vectors_;
    }
  }
}

bool KeyStatistics::ready() const {
  return n_keys_ >= target_tokens_ &&
         (n_query_vectors_ >= kMinQueryVectors || wait_tokens_ >= kMaxWaitTokens);
}

void KeyStatistics::Save(ByteWriter* to) const {
  for (const int64_t count : {n_keys_, n_query_rows_, n_query_vectors_, wait_tokens_})
    to->Put(count);
  for (const PairEnergies& e : energies_) PutEnergies(e, to);
}

Status KeyStatistics::Load(ByteReader* from) {
  constexpr int64_t kMaxCount = int64_t{1} << 60;
  for (int64_t* count : {&n_keys_, &n_query_rows_, &n_query_vectors_, &wait_tokens_}) {
    *count = from->Get<int64_t>();
    if (*count < 0 || *count > kMaxCount)
      return Status(StatusCode::kBadFormat, "key_statistics: a count is " + std::to_string(*count));
  }
  for (size_t h = 0; h < energies_.size(); ++h)
    VARVE_RETURN_IF_ERROR(GetEnergies("head " + std::to_string(h), from, &energies_[h]));
  return Status();
}

}  // namespace varve
