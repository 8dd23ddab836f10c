// Files of every released version of the format are read forever, and go on as they did.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "format/samples.h"

namespace {

namespace fs = std::filesystem;
using samples::kSamples;
using samples::Sample;

std::vector<std::byte> ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  const std::vector<char> chars{std::istreambuf_iterator<char>(file),
                                std::istreambuf_iterator<char>()};
  const auto* bytes = reinterpret_cast<const std::byte*>(chars.data());
  return {bytes, bytes + chars.size()};
}

std::vector<varve::KVCache> LoadFrozen(const Sample& sample, const fs::path& folder) {
  std::vector<varve::KVCache> caches;
  for (size_t i = 0; i < sample.settings.size(); ++i)
    caches.push_back(samples::MakeEmpty(sample, i));
  const varve::Status status = varve::load_session(
      caches, (folder / (std::string(sample.name) + ".varve")).string(), "a model");
  EXPECT_TRUE(status.ok()) << sample.name << ": " << status.text();
  return caches;
}

const fs::path kFrozen = fs::path(VARVE_TEST_DATA_DIR) / "format";

TEST(FrozenSession, EveryVersionReadsAsItDid) {
  int n_versions = 0;
  for (const auto& version : fs::directory_iterator(kFrozen)) {
    ++n_versions;
    for (const Sample& sample : kSamples) {
      SCOPED_TRACE(version.path().filename().string() + ", " + sample.name);
      const auto caches = LoadFrozen(sample, version.path());
      for (size_t i = 0; i < caches.size(); ++i) {
        ASSERT_EQ(caches[i].size(), sample.n_tokens);
        for (const varve_side side : {VARVE_KEY, VARVE_VALUE}) {
          const std::string name = std::string(sample.name) + "_" + std::to_string(i) +
                                   (side == VARVE_KEY ? "_k.f32" : "_v.f32");
          const auto decoded = caches[i].decode(side, 0, sample.n_tokens, VARVE_F32);
          ASSERT_TRUE(decoded.ok()) << decoded.status().text();
          EXPECT_EQ(decoded->bytes, ReadFile(version.path() / name));
        }
      }
    }
  }
  EXPECT_GE(n_versions, 1);
}

TEST(FrozenSession, GoesOnAsACacheMadeToday) {
  for (const Sample& sample : kSamples) {
    auto caches = LoadFrozen(sample, kFrozen / "v1.0");
    for (size_t i = 0; i < caches.size(); ++i) {
      SCOPED_TRACE(std::string(sample.name) + ", cache " + std::to_string(i));
      varve::KVCache today = samples::MakeFull(sample, i);
      EXPECT_EQ(caches[i].snapshot().value(), today.snapshot().value());
      samples::Append(sample, i, 90, 99, caches[i]);
      samples::Append(sample, i, 90, 99, today);
      EXPECT_EQ(caches[i].snapshot().value(), today.snapshot().value());
    }
  }
}

TEST(FrozenSession, CellsReadAsTheyDidAndGoOn) {
  for (const auto& version : fs::directory_iterator(kFrozen)) {
    for (const samples::CellsSample& sample : samples::kCellsSamples) {
      SCOPED_TRACE(version.path().filename().string() + ", " + sample.name);
      const std::string stem = (version.path() / sample.name).string();
      const samples::Cells cells = samples::MakeEmptyCells(sample);
      varve_cells* const handle = cells.get();
      ASSERT_EQ(varve_cells_load(&handle, 1, "a model", (stem + ".varve").c_str()), VARVE_OK)
          << varve_last_error();
      EXPECT_EQ(samples::ReadCells(sample, VARVE_KEY, handle), ReadFile(stem + "_0_k.f32"));
      EXPECT_EQ(samples::ReadCells(sample, VARVE_VALUE, handle), ReadFile(stem + "_0_v.f32"));

      const samples::Cells today = samples::MakeFullCells(sample);
      EXPECT_EQ(samples::SnapshotCells(sample, handle),
                samples::SnapshotCells(sample, today.get()));
      for (varve_cells* one : {handle, today.get()}) {
        for (int32_t first = 0; first < 50; first += 10)
          samples::WriteTen(sample, samples::kCells + 50 + first, 50 + first, one);
      }
      EXPECT_EQ(samples::SnapshotCells(sample, handle),
                samples::SnapshotCells(sample, today.get()));
    }
  }
}

}  // namespace
