// Write side, a token of all heads: appending at 8 bits, the demotions of the default ladder, and
// both at the door of a cell cache. Warm, one thread.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <numeric>
#include <random>

#include "bench_cache.h"
#include "varve/varve.h"

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

/// What a host pays for a token at the door of a cell cache, keys and values: the append itself,
/// the demotions it brings about, and the bookkeeping. `chunk` tokens a call.
void WriteCells(benchmark::State& state) {
  constexpr int32_t kBefore = 8192;
  const auto chunk = static_cast<int32_t>(state.range(0));
  varve_config* config = nullptr;
  varve_config_create(&config);
  varve_cells_params params = {};
  params.struct_size = sizeof params;
  params.n_cells = kBefore + static_cast<int32_t>(state.max_iterations) * chunk;
  params.n_streams = params.n_layers = 1;
  params.n_kv_heads = kHeads;
  params.head_dim_k = params.head_dim_v = params.n_rope_dims = kHeadDim;
  params.rope_kind = VARVE_ROPE_NEOX;
  varve_cells* cells = nullptr;
  const varve_status created = varve_cells_create(config, &params, &cells);
  varve_config_destroy(config);
  if (created != VARVE_OK) return state.SkipWithError(varve_last_error());
  constexpr int32_t kRowFloats = kHeads * kHeadDim;
  std::vector<float> rows(static_cast<size_t>(512 * kRowFloats));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& x : rows) x = normal(random);
  int32_t next = 0;
  std::vector<int64_t> index;
  std::vector<int32_t> positions;
  const auto write = [&](int32_t n) {
    index.resize(static_cast<size_t>(n));
    positions.resize(static_cast<size_t>(n));
    std::iota(index.begin(), index.end(), next);
    std::iota(positions.begin(), positions.end(), next);
    const float* from = rows.data() + static_cast<ptrdiff_t>(next % (512 / n) * n) * kRowFloats;
    next += n;
    for (const varve_side side : {VARVE_KEY, VARVE_VALUE}) {
      if (varve_cells_write(cells, side, index.data(), positions.data(), from, VARVE_F32,
                            kRowFloats * sizeof(float), n, 1) != VARVE_OK)
        state.SkipWithError(varve_last_error());
    }
  };
  while (next < kBefore) write(512);
  for (auto _ : state) write(chunk);
  varve_cells_destroy(cells);
  state.SetItemsProcessed(state.iterations() * chunk);
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
BENCHMARK(WriteCells)->Arg(1)->Iterations(16384);
BENCHMARK(WriteCells)->Arg(512)->Iterations(32);

}  // namespace
}  // namespace varve::bench

BENCHMARK_MAIN();
