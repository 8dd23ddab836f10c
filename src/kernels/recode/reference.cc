// Portable recode: plain loops, a token at a time.
#include <cstring>

#include "kernels/pack/gain_body.h"
#include "kernels/recode/recode.h"
#include "layout/levels.h"

namespace varve {
namespace {

class Token {
 public:
  Token(RecodeArgs& args, int token) : args_(args), token_(token) {}

  bool Code() {
    const float gain_in = args_.gain_in[token_];
    int32_t squares = 0;
    for (int i = 0; i < args_.n_channels; ++i) squares += Level(i) * Level(i);
    const auto energy = static_cast<float>(squares);
    if (!(gain_in >= 0 && gain_in < __builtin_inff())) return Give(kNanGain);
    if (gain_in == 0 || squares == 0) return Give(0);
    const float first = __builtin_sqrtf(energy / args_.nominal);
    const Sums guess = CodeAt(first);
    const float gains[2] = {gain_in * (guess.cross / guess.levels), gain_in * first};
    for (const float wanted : gains) {
      const uint16_t gain = RoundGain(wanted);
      if (gain == 0) return Give(0);
      const float scale = GainValue(gain) / gain_in;
      const Sums coded = CodeAt(scale);
      const float ratio = __builtin_sqrtf(coded.levels / args_.nominal);
      const float error = energy + scale * (scale * coded.levels - 2 * coded.cross);
      args_.gain[token_] = RoundGain(gain_in * __builtin_sqrtf(energy / coded.levels));
      if (ratio >= args_.window_low && ratio <= args_.window_high &&
          error <= args_.allowed_error * energy && args_.gain[token_] != 0)
        return true;
    }
    return false;
  }

 private:
  struct Sums {
    float cross;
    float levels;
  };

  bool Give(uint16_t gain) {
    args_.gain[token_] = gain;
    for (int i = 0; i < args_.n_channels; ++i) *CodeByte(i) = static_cast<uint8_t>(Half());
    return true;
  }

  int Half() const { return 1 << (args_.bits - 1); }

  size_t Place(int channel) const {
    const CodePosition at = PositionOf(args_.side, channel, token_);
    return static_cast<size_t>(at.line) * kLineBytes + static_cast<size_t>(at.byte);
  }

  uint8_t* CodeByte(int channel) { return args_.codes + Place(channel); }

  int Level(int channel) const {
    const uint8_t byte = args_.lines[Place(channel)];
    return args_.side == Side::kKey ? byte - 128 : static_cast<int8_t>(byte);
  }

  int LevelAt(int index) const {
    return args_.bits == 2   ? kHalfLevels2[index]
           : args_.bits == 3 ? kHalfLevels3[index]
                             : kHalfLevels4[index];
  }

  Sums CodeAt(float scale) {
    int32_t cross = 0;
    int32_t levels = 0;
    for (int i = 0; i < args_.n_channels; ++i) {
      const int level = Level(i);
      const int magnitude = level < 0 ? -level : level;
      int index = 0;
      while (index + 1 < Half() &&
             static_cast<float>(magnitude) >=
                 0.5f * static_cast<float>(LevelAt(index) + LevelAt(index + 1)) * scale)
        ++index;
      cross += magnitude * LevelAt(index);
      levels += LevelAt(index) * LevelAt(index);
      *CodeByte(i) = static_cast<uint8_t>(level < 0 ? Half() - 1 - index : Half() + index);
    }
    return {static_cast<float>(cross), static_cast<float>(levels)};
  }

  RecodeArgs& args_;
  int token_;
};

}  // namespace

void RecodeReference(RecodeArgs& args) {
  const int granule = args.side == Side::kKey ? 4 : 16;
  const int padded = (args.n_channels + granule - 1) / granule * granule;
  std::memset(args.codes, 0, static_cast<size_t>(padded) * kBlockTokens);
  args.settled = 0;
  for (int t = 0; t < kBlockTokens; ++t) {
    if ((args.tokens >> t & 1u) != 0 && Token(args, t).Code()) args.settled |= 1u << t;
  }
}

}  // namespace varve
