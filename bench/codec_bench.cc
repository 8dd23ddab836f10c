// Write side, a token of all heads: appending at 8 bits, and the demotions of the default ladder.
// Warm, one thread.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "bench_cache.h"

namespace varve::bench {
namespace {

constexpr int kHeads = 8;
constexpr int kHeadDim = 128;

struct Coded {
  explicit Coded(Scheme scheme, Side side) : layout(MakeBlockLayout(scheme, side, kHeadDim)) {
    PairEnergies energies;
    energies.n_keys = energies.n_queries = 1;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (int i = 0; i < kHeadDim; ++i) {
      // RoPE turns channels i and i + head_dim / 2 together, so they share their energy.
      const auto half = static_cast<size_t>(kHeadDim / 2);
      energies.key.push_back(energies.key.size() < half
                                 ? std::exp(2.4 * static_cast<double>(normal(random)))
                                 : energies.key[energies.key.size() - half]);
      energies.query.push_back(1);
      sigma.push_back(static_cast<float>(std::sqrt(energies.key.back())));
    }
    for (int h = 0; h < kHeads; ++h) {
      tables.push_back(
          FitKeyTable(energies, RopePairing::kHalves, kHeadDim, kHeadDim, scheme.bits));
    }
    bytes.resize(layout.block_bytes(kHeads) + kLineBytes);
    for (int t = 0; t < kBlockTokens; ++t) {
      rows.emplace_back(static_cast<size_t>(kHeads * kHeadDim));
      for (size_t i = 0; i < rows.back().size(); ++i) {
        rows.back()[i] = (side == Side::kKey ? sigma[i % sigma.size()] : 1.0f) * normal(random);
      }
    }
  }
  std::byte* block() {
    return bytes.data() +
           (kLineBytes - reinterpret_cast<uintptr_t>(bytes.data()) % kLineBytes) % kLineBytes;
  }
  BlockCoding coding() const { return {&layout, tables.data()}; }
  void Fill() {
    for (int t = 0; t < kBlockTokens; ++t)
      EncodeRow(coding(), kHeads, rows[static_cast<size_t>(t)].data(), t, block());
  }

  BlockLayout layout;
  std::vector<float> sigma;
  std::vector<KeyTable> tables;
  std::vector<std::byte> bytes;
  std::vector<std::vector<float>> rows;
};

void Append(benchmark::State& state, Scheme scheme, Side side) {
  Coded coded(scheme, side);
  int token = 0;
  for (auto _ : state) {
    EncodeRow(coded.coding(), kHeads, coded.rows[static_cast<size_t>(token)].data(), token,
              coded.block());
    token = (token + 1) % kBlockTokens;
  }
  state.SetItemsProcessed(state.iterations());
}

void Demote(benchmark::State& state, Scheme from, Scheme to, Side side) {
  Coded source(from, side);
  Coded target(to, side);
  source.Fill();
  for (auto _ : state)
    RepackBlock(source.coding(), target.coding(), kHeads, source.block(), target.block());
  state.SetItemsProcessed(state.iterations() * kBlockTokens);
}

void Decode(benchmark::State& state, Scheme scheme, Side side) {
  Coded coded(scheme, side);
  coded.Fill();
  std::vector<float> row(static_cast<size_t>(kHeads * kHeadDim));
  int token = 0;
  for (auto _ : state) {
    DecodeRow(coded.coding(), kHeads, coded.block(), token, row.data());
    token = (token + 1) % kBlockTokens;
  }
  state.SetItemsProcessed(state.iterations());
}

constexpr Scheme kRecent = {Codec::kRotated, 8};

BENCHMARK_CAPTURE(Append, key_rotated_8, kRecent, Side::kKey);
BENCHMARK_CAPTURE(Append, value_rotated_8, kRecent, Side::kValue);
BENCHMARK_CAPTURE(Append, value_rotated_4, Scheme{Codec::kRotated, 4}, Side::kValue);
BENCHMARK_CAPTURE(Append, key_rope_pair_3, Scheme{Codec::kRopePair, 3}, Side::kKey);
BENCHMARK_CAPTURE(Demote, key_8_to_rope_pair_4, kRecent, Scheme{Codec::kRopePair, 4}, Side::kKey);
BENCHMARK_CAPTURE(Demote, key_rope_pair_4_to_3, Scheme{Codec::kRopePair, 4},
                  Scheme{Codec::kRopePair, 3}, Side::kKey);
BENCHMARK_CAPTURE(Demote, value_8_to_4, kRecent, Scheme{Codec::kRotated, 4}, Side::kValue);
BENCHMARK_CAPTURE(Demote, value_4_to_2, Scheme{Codec::kRotated, 4}, Scheme{Codec::kRotated, 2},
                  Side::kValue);
BENCHMARK_CAPTURE(Decode, key_rope_pair_3, Scheme{Codec::kRopePair, 3}, Side::kKey);
BENCHMARK_CAPTURE(Decode, value_rotated_2, Scheme{Codec::kRotated, 2}, Side::kValue);

}  // namespace
}  // namespace varve::bench

BENCHMARK_MAIN();
