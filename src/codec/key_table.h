// The table of the rope_pair codec: which width and scale each key channel has, one table a KV head
// and tier. Fitted once from energies seen in the recent tier and kept with the cache (design
// section 1).
#ifndef VARVE_CODEC_KEY_TABLE_H_
#define VARVE_CODEC_KEY_TABLE_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace varve {

/// How RoPE pairs the channels of a key head.
enum class RopePairing : uint8_t {
  kNone = 0,         ///< each channel stands alone
  kInterleaved = 1,  ///< pairs (2i, 2i+1), ggml mode 0
  kHalves = 2,       ///< pairs (i, i + n_dims/2), ggml mode 2 (NeoX)
};

/// A run of stored channels of one width. Channels are counted in stored (permuted) order.
struct KeySegment {
  uint8_t bits = 0;
  uint16_t first_channel = 0;
  uint16_t n_channels = 0;  ///< a multiple of the width's granule, padding channels included
  uint32_t byte_offset = 0;
};

/// Coding of one KV head's keys: stored position j holds channel `channel[j]` divided by `scale[j]`
/// and the token's gain.
struct KeyTable {
  int head_dim = 0;
  int n_segments = 0;
  std::array<KeySegment, 6> segments{};
  std::vector<int16_t> channel;  ///< [padded_dim]; -1 marks padding
  std::vector<float> scale;      ///< [padded_dim]
  /// Predicted rms error of q.k: sqrt(sum over channels of energy(K) energy(Q) D(bits)); 0 where no
  /// query was seen.
  float product_error = 0;
};

/// Sums over tokens, gathered while the keys are still in the recent tier.
struct PairEnergies {
  std::vector<double> key;  ///< [head_dim] sum of k^2 a channel
  std::vector<double>
      query;  ///< [head_dim] sum of q^2 a channel, over the query heads of this KV head
  double n_keys = 0;
  double n_queries = 0;
};

/// Widths by reverse water-filling of energy(K) x energy(Q) a pair at `average_bits` over head_dim
/// channels, in granules that the kernels take; scales from the pair's key energy. Without query
/// energies all count alike.
KeyTable FitKeyTable(const PairEnergies& energies, RopePairing pairing, int n_rope_dims,
                     int head_dim, int average_bits);

}  // namespace varve

#endif  // VARVE_CODEC_KEY_TABLE_H_
