// Savings that are real: 131,072 tokens of 8 heads and 128 channels at 8/4/2 bits, in a process of
// their own. What the process grows by is what stored_bytes says, it is a fifth of f16 at most, and
// it never peaked above.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/f16.h"
#include "varve/varve.hpp"

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Fewer tokens, of which more are young; and the sanitizer's own memory comes on top.
constexpr int64_t kTokens = 16384;
constexpr double kMinSaving = 4.0;
constexpr double kTolerance = 1.5;
#else
constexpr int64_t kTokens = 131072;
constexpr double kMinSaving = 5.0;
constexpr double kTolerance = 1.05;
#endif
constexpr int64_t kHeads = 8;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kStep = 256;

// A field of /proc/self/status in bytes.
double StatusBytes(const char* field) {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return 0;
  char line[256];
  double bytes = 0;
  while (std::fgets(line, sizeof(line), file) != nullptr) {
    if (std::strncmp(line, field, std::strlen(field)) == 0)
      bytes = 1024.0 * std::atof(line + std::strlen(field) + 1);
  }
  std::fclose(file);
  return bytes;
}

struct Report {
  double growth, peak_growth, stored, f16, growth_after_clear;
};

Report Fill(const char* settings, int64_t n_tokens) {
  std::mt19937 random(1);
  std::normal_distribution<float> gauss;
  std::vector<uint16_t> tokens(static_cast<size_t>(kHeads * kStep * kHeadDim));
  for (uint16_t& x : tokens) x = varve::F32ToF16(gauss(random));
  const varve::Tensor view(VARVE_F16, tokens.data(), {1, kHeads, kStep, kHeadDim});
  varve::CacheConfig config;
  if (!config.set_list(settings).ok()) return {};
  varve::Result<varve::KVCache> cache = varve::KVCache::create(config);
  if (!cache.ok()) return {};
  const double before = StatusBytes("VmRSS:");
  for (int64_t n = 0; n < n_tokens; n += kStep) {
    if (!cache->append(view, view).ok()) return {};
  }
  const varve_cache_stats stats = cache->stats();
  Report report{};
  report.growth = StatusBytes("VmRSS:") - before;
  report.peak_growth = StatusBytes("VmHWM:") - before;
  report.stored = static_cast<double>(stats.stored_bytes);
  report.f16 = static_cast<double>(stats.full_seq_bytes);
  (void)cache->clear();
  report.growth_after_clear = StatusBytes("VmRSS:") - before;
  return report;
}

Report FillInChild(const char* settings, int64_t n_tokens) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return {};
  const pid_t child = fork();
  if (child == 0) {
    const Report report = Fill(settings, n_tokens);
    const ssize_t written = write(pipe_ends[1], &report, sizeof(report));
    _exit(written == static_cast<ssize_t>(sizeof(report)) ? 0 : 1);
  }
  close(pipe_ends[1]);
  Report report{};
  const ssize_t n = read(pipe_ends[0], &report, sizeof(report));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return n == static_cast<ssize_t>(sizeof(report)) && status == 0 ? report : Report{};
}

class SequenceMemory : public testing::TestWithParam<const char*> {};

TEST_P(SequenceMemory, F1F2TheProcessGrowsByStoredBytes) {
  const Report report = FillInChild(GetParam(), kTokens);
  ASSERT_GT(report.stored, 0);
  std::printf(
      "%s: RSS grew by %.1f MiB (peak %.1f), stored_bytes %.1f MiB, f16 %.1f MiB, after clear %.1f "
      "MiB\n",
      GetParam(), report.growth / 1048576, report.peak_growth / 1048576, report.stored / 1048576,
      report.f16 / 1048576, report.growth_after_clear / 1048576);
  EXPECT_LT(report.growth, report.stored * kTolerance);
  EXPECT_GT(report.growth, report.stored * 0.95);
  EXPECT_LT(report.peak_growth, report.stored * kTolerance);
  EXPECT_LT(report.stored * kMinSaving, report.f16);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_P(SequenceMemory, F1AtEveryLength) {
  constexpr double kFixed = 1 << 20;  // code, scratch, an arena's first slabs
  for (const int64_t n_tokens : {1024, 8192, 32768}) {
    const Report report = FillInChild(GetParam(), n_tokens);
    ASSERT_GT(report.stored, 0) << n_tokens;
    std::printf("%s, %d tokens: RSS grew by %.2f MiB, stored_bytes %.2f MiB, f16 %.0f MiB\n",
                GetParam(), static_cast<int>(n_tokens), report.growth / 1048576,
                report.stored / 1048576, report.f16 / 1048576);
    EXPECT_LT(report.growth, report.stored * kTolerance + kFixed) << n_tokens;
    EXPECT_GT(report.growth, report.stored * 0.95 - kFixed) << n_tokens;
    EXPECT_LT(report.growth, report.f16) << n_tokens;
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Methods, SequenceMemory,
                         testing::Values("method=age_tiered",
                                         "method=age_tiered,value_axis=channel,sink_tokens=0",
                                         "method=kivi,residual_length=128"));

}  // namespace
