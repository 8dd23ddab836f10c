// The positive half of a codebook as tables that the kernels search. Each file that includes this
// has its own copy.
#ifndef VARVE_KERNELS_HALF_BOOK_H_
#define VARVE_KERNELS_HALF_BOOK_H_

#include <cstdint>

#include "layout/levels.h"

namespace varve {
namespace {

struct HalfBook {
  alignas(64) float level[32];
  alignas(64) float threshold[32];  ///< entry i, in bins: between levels i - 1 and i; 0: none
  /// Binary search: the decision after p = the upper bits of the index so far, which leaves `step`
  /// bits to find.
  alignas(64) float decision[5][16];
  /// Magnitudes cut into bins of bin_width, at most one threshold in each and none near an edge (6
  /// bits: edges may be thresholds). The last bin has no end. A width is a power of two, so that a
  /// magnitude in bins compares as it does in levels.
  float bin_width;
  alignas(64) float bin_threshold[16];
  alignas(64) float bin_level[32];    ///< below a bin's threshold, then from it on
  alignas(64) int32_t bin_index[32];  ///< in the same order
  alignas(64) uint8_t bin_first[64];  ///< index at the start of each of 64 bins
};

constexpr HalfBook MakeHalfBook(int bits) {
  HalfBook book{};
  const int half = 1 << (bits - 1);
  const float never = __builtin_inff();
  book.bin_width = bits == 6 ? 2.0f : bits == 4 ? 8.0f : 16.0f;
  book.threshold[0] = never;
  for (int i = 0; i < half; ++i) {
    book.level[i] = static_cast<float>(HalfLevelAt(bits, i));
    if (i > 0)
      book.threshold[i] = 0.5f *
                          static_cast<float>(HalfLevelAt(bits, i - 1) + HalfLevelAt(bits, i)) /
                          book.bin_width;
  }
  for (int step = 0; 1 << step < half; ++step) {
    for (int p = 0; (2 * p + 1) << step < half; ++p)
      book.decision[step][p] = book.threshold[(2 * p + 1) << step] * book.bin_width;
  }
  int index = 0;
  for (int bin = 0; bin < 64; ++bin) {
    const auto start = static_cast<float>(bin);
    while (index + 1 < half && book.threshold[index + 1] <= start) ++index;
    book.bin_first[bin] = static_cast<uint8_t>(index);
    if (bin >= 16) continue;
    const bool crossed = index + 1 < half && (bin == 15 || book.threshold[index + 1] < start + 1);
    book.bin_threshold[bin] = crossed ? book.threshold[index + 1] : never;
    book.bin_level[bin] = book.level[index];
    book.bin_level[bin + 16] = book.level[crossed ? index + 1 : index];
    book.bin_index[bin] = index;
    book.bin_index[bin + 16] = crossed ? index + 1 : index;
  }
  return book;
}

/// Whether the bins are as promised.
consteval bool HasGoodBins(int bits, int n_bins) {
  const HalfBook book = MakeHalfBook(bits);
  int last_bin = -1;
  for (int i = 1; i < 1 << (bits - 1); ++i) {
    const int bin = static_cast<int>(book.threshold[i]);
    const float inside = (book.threshold[i] - static_cast<float>(bin)) * book.bin_width;
    const bool at_edge = inside == 0 && bits == 6;
    if (!at_edge && (inside < 0.25f || inside > book.bin_width - 0.25f)) return false;
    if (bin <= last_bin || bin >= n_bins) return false;
    last_bin = bin;
  }
  return true;
}

static_assert(HasGoodBins(2, 16) && HasGoodBins(3, 16) && HasGoodBins(4, 16) && HasGoodBins(6, 64));

constexpr HalfBook kHalfBook2 = MakeHalfBook(2);
constexpr HalfBook kHalfBook3 = MakeHalfBook(3);
constexpr HalfBook kHalfBook4 = MakeHalfBook(4);
constexpr HalfBook kHalfBook6 = MakeHalfBook(6);

template <int kBits>
constexpr const HalfBook& kHalfBook = kBits == 2   ? kHalfBook2
                                      : kBits == 3 ? kHalfBook3
                                      : kBits == 4 ? kHalfBook4
                                                   : kHalfBook6;

}  // namespace
}  // namespace varve

#endif  // VARVE_KERNELS_HALF_BOOK_H_
