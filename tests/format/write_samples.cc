// Writes session files and what the library decodes from them.
//
// usage: write_samples FOLDER
//   FOLDER/<name>.varve, FOLDER/<name>_<cache>_{k,v}.f32 (raw f32 [row][token][channel])
#include <fstream>

#include "samples.h"

namespace {

using samples::Sample;

void WriteFile(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  if (!file) samples::Fail("cannot write " + path);
}

void WriteSample(const Sample& sample, const std::string& folder) {
  std::vector<varve::KVCache> caches;
  for (size_t i = 0; i < sample.settings.size(); ++i) {
    caches.push_back(samples::MakeFull(sample, i));
    const varve_cache_stats stats = caches[i].stats();
    for (const varve_side side : {VARVE_KEY, VARVE_VALUE}) {
      const auto decoded = caches[i].decode(side, 0, stats.n_tokens, VARVE_F32);
      samples::Check(decoded.status(), sample.name);
      WriteFile(folder + "/" + sample.name + "_" + std::to_string(i) +
                    (side == VARVE_KEY ? "_k.f32" : "_v.f32"),
                decoded->bytes);
    }
  }
  samples::Check(varve::save_session(caches, folder + "/" + sample.name + ".varve", "a model"),
                 sample.name);
}

void WriteCellsSample(const samples::CellsSample& sample, const std::string& folder) {
  const samples::Cells cells = samples::MakeFullCells(sample);
  const std::string stem = folder + "/" + sample.name;
  for (const varve_side side : {VARVE_KEY, VARVE_VALUE}) {
    WriteFile(stem + (side == VARVE_KEY ? "_0_k.f32" : "_0_v.f32"),
              samples::ReadCells(sample, side, cells.get()));
  }
  varve_cells* const handle = cells.get();
  samples::Check(varve_cells_save(&handle, 1, "a model", (stem + ".varve").c_str()), sample.name);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  for (const Sample& sample : samples::kSamples) WriteSample(sample, argv[1]);
  for (const samples::CellsSample& sample : samples::kCellsSamples)
    WriteCellsSample(sample, argv[1]);
  std::printf("%zu samples\n", samples::kSamples.size() + samples::kCellsSamples.size());
  return 0;
}
