// How many bits each key channel deserves.
#ifndef VARVE_CODEC_BIT_ALLOCATION_H_
#define VARVE_CODEC_BIT_ALLOCATION_H_

#include <array>
#include <span>
#include <vector>

namespace varve {

/// Widths a key segment can have, widest first; 0 bits (the channel decodes to zero) is implied.
inline constexpr std::array<int, 5> kSegmentWidths = {8, 6, 4, 3, 2};

/// Exact optimum of  min sum_i weight[i] * D(bits[i])  subject to the packed size, where D(b) is
/// the b-bit codebook's distortion (D(0) = 1) and channels of a width are packed in granules (4, 8,
/// 4, 16, 8 channels for 8, 6, 4, 3, 2 bits), a partly filled granule costing a whole one. This is
/// reverse water-filling with integer widths. weight: [n] in descending order, >= 0. budget_lines:
/// 64-byte lines of a 32-token block. Returns bits [n], descending.
std::vector<int> AllocateBits(std::span<const double> weight, int budget_lines);

}  // namespace varve

#endif  // VARVE_CODEC_BIT_ALLOCATION_H_
