// A fuzz target without a fuzzer: replays the files of a corpus folder, then made-up inputs of a
// fixed seed, so that every target also runs under ctest and any compiler. usage: <target>
// CORPUS_FOLDER_OR_FILE... [-random=N]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

Bytes ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A seed with some bytes changed, dropped or repeated; noise when there is no seed.
Bytes Mutate(const std::vector<Bytes>& seeds, std::mt19937& random) {
  Bytes bytes;
  if (!seeds.empty() && random() % 4 != 0) bytes = seeds[random() % seeds.size()];
  if (bytes.empty()) {
    bytes.resize(random() % 512);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    return bytes;
  }
  for (uint32_t n = 1 + random() % 8; n > 0 && !bytes.empty(); --n) {
    const auto at = static_cast<std::ptrdiff_t>(random() % bytes.size());
    switch (random() % 4) {
      case 0:
        bytes[static_cast<size_t>(at)] = static_cast<uint8_t>(random());
        break;
      case 1:
        bytes[static_cast<size_t>(at)] ^= static_cast<uint8_t>(1u << random() % 8);
        break;
      case 2:
        bytes.erase(bytes.begin() + at);
        break;
      default: {
        const Bytes tail(bytes.begin() + at, bytes.end());
        if (bytes.size() < 4096) bytes.insert(bytes.end(), tail.begin(), tail.end());
        break;
      }
    }
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  int n_random = 0;
  std::vector<Bytes> seeds;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "-random=", 8) == 0) {
      n_random = std::atoi(argv[i] + 8);
    } else if (std::filesystem::is_directory(argv[i])) {
      for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
        seeds.push_back(ReadFile(entry.path()));
      }
    } else {
      seeds.push_back(ReadFile(argv[i]));
    }
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "%s: no input; give a corpus folder or a file\n", argv[0]);
    return 2;
  }
  for (const Bytes& seed : seeds) LLVMFuzzerTestOneInput(seed.data(), seed.size());
  std::mt19937 random(20260101);
  for (int i = 0; i < n_random; ++i) {
    const Bytes bytes = Mutate(seeds, random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu inputs of the corpus and %d made from them\n", seeds.size(), n_random);
  return 0;
}
