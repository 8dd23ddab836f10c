#include <array>

#include "base/checked_math.h"
#include "cache/affine_coder.h"
#include "cache/grouped_cache.h"
#include "cache/sequence_methods.h"

namespace varve {
namespace {

class KiviCache final : public GroupedCache {
 public:
  explicit KiviCache(const Settings& settings) : GroupedCache(settings, Plan(settings)) {}

 protected:
  int bits() const { return settings().bit_width_inlier.values[0]; }

  Status MakeCoder(Side side, std::unique_ptr<GroupCoder>* coder) const override {
    const int size = settings().kivi_group_size;
    const GroupShape groups{side == Side::kKey ? GroupAxis::kTokens : GroupAxis::kChannels, size,
                            shape().head_dim(side), size};
    const std::array widths = {bits()};
    *coder = std::make_unique<AffineCoder>(groups, exact_format(), false, widths, false);
    return Status();
  }

  std::unique_ptr<SequenceCache> MakeEmpty() const override {
    return std::make_unique<KiviCache>(settings());
  }

  /// The input's type is kept; f32 where keys and values differ.
  ElementType StorageType(ElementType k, ElementType v) const override {
    return k == v ? k : ElementType::kF32;
  }

  /// The inherited buffer grows in whole steps behind what it holds and is never written anew.
  int64_t SeedCapacityTokens(int64_t before, int64_t capacity, int64_t n_new) const override {
    constexpr int64_t kStep = 256;
    if (before + n_new <= capacity) return capacity;
    return (before % kStep != 0 ? before : capacity) + RoundUp(n_new, kStep);
  }

  void OnCoded(int64_t before, int64_t after) override {
    const int64_t m = after > before ? after - before : before - after;
    const int64_t sign = after > before ? 1 : -1;
    const int64_t dim = shape().head_dim_k;
    const int64_t size = settings().kivi_group_size;
    const int64_t codes = CeilDiv<int64_t>(m * dim * bits(), 8);
    key_bytes_ += sign * shape().n_rows() * (codes + CeilDiv(m, size) * dim * 4);
    value_bytes_ += sign * shape().n_rows() * (codes + m * CeilDiv(dim, size) * 4);
  }

  void Reset() override {
    GroupedCache::Reset();
    key_bytes_ = value_bytes_ = 0;
  }

  Status CopyRows(std::span<const BatchRow> rows) override {
    for (const BatchRow& from : rows) {
      const auto& other = static_cast<const KiviCache&>(*from.cache);
      key_bytes_ += other.key_bytes_ / other.shape().batch;
      value_bytes_ += other.value_bytes_ / other.shape().batch;
    }
    return GroupedCache::CopyRows(rows);
  }

  std::array<int64_t, 2> MethodCounters() const override { return {key_bytes_, value_bytes_}; }
  void SetMethodCounters(const std::array<int64_t, 2>& counters) override {
    key_bytes_ = counters[0];
    value_bytes_ = counters[1];
  }

  void FillStats(SequenceStats* stats) const override {
    GroupedCache::FillStats(stats);
    const int64_t n_rows = shape().n_rows();
    const int64_t dim = shape().head_dim_k;
    stats->tier_tokens[0] = n_rows * n_coded_tokens();
    stats->compressed_key_bytes = key_bytes_;
    stats->compressed_value_bytes = value_bytes_;
    stats->n_quantized = n_coded_tokens();
    stats->residual_fp16_bytes = (n_tokens() - n_coded_tokens()) * dim * 4 * n_rows;
    stats->fp16_key_bytes = stats->fp16_value_bytes = n_tokens() * dim * 2 * n_rows;
    stats->full_seq_bytes = stats->fp16_key_bytes + stats->fp16_value_bytes;
    stats->nominal_bytes = key_bytes_ + value_bytes_ + stats->residual_fp16_bytes;
    stats->assigned_avg_bits = bits();
  }

 private:
  static GroupPlan Plan(const Settings& settings) {
    GroupPlan plan;
    plan.group_size = settings.kivi_group_size;
    plan.n_sinks = settings.sink_tokens;
    plan.residual = settings.residual_length;
    return plan;
  }

  int64_t key_bytes_ = 0;
  int64_t value_bytes_ = 0;
};

}  // namespace

std::unique_ptr<SequenceCache> MakeKiviCache(const Settings& settings) {
  return std::make_unique<KiviCache>(settings);
}

}  // namespace varve
