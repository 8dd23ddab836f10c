// What a tier is made of: a codec and a width. The vocabulary every layer above shares.
#ifndef VARVE_LAYOUT_SCHEME_H_
#define VARVE_LAYOUT_SCHEME_H_

#include <cstdint>

namespace varve {

/// How the elements of a block are coded (design section 3).
enum class Codec : uint8_t {
  kF16 = 0,          ///< exact rows, 16 bits
  kGroupAffine = 1,  ///< asymmetric min/max groups: the seeds' and KIVI's quantizer
  kRotated = 2,      ///< Walsh-Hadamard rotation, one scale a token and KV head, Gaussian codebook
  kRopePair = 3,     ///< per RoPE pair width by reverse water-filling, one gain a token and KV head
};

enum class Side : uint8_t { kKey = 0, kValue = 1 };

/// A tier's coding. For kRopePair `bits` is the average over a head's channels.
struct Scheme {
  Codec codec = Codec::kF16;
  uint8_t bits = 16;

  friend bool operator==(const Scheme&, const Scheme&) = default;
};

}  // namespace varve

#endif  // VARVE_LAYOUT_SCHEME_H_
