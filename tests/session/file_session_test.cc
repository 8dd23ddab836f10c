// Sessions on disk through the C API, with system calls that fail: a save that fails leaves the
// file that was there and nothing beside it; a load that fails leaves the caches as they were.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "varve/varve.hpp"

namespace {

// The library's system calls end in the functions below.
struct Faults {
  std::atomic<int> n_writes = 0;
  int failing_write = -1;  ///< the write that fails, counted from 0
  int write_errno = ENOSPC;
  bool short_calls =
      false;  ///< writes and reads move at most 1,000 bytes; every third is interrupted
  std::atomic<int> n_fsyncs = 0;
  int failing_fsync = -1;  ///< of the file, then of its folder
  bool rename_fails = false;
};
Faults g_faults;

bool Interrupted() {
  static std::atomic<int> n_calls = 0;
  if (!g_faults.short_calls || ++n_calls % 3 != 0) return false;
  errno = EINTR;
  return true;
}

size_t Shortened(size_t n) { return g_faults.short_calls && n > 1000 ? 1000 : n; }

}  // namespace

extern "C" {

ssize_t pwrite(int fd, const void* data, size_t n, off_t offset) {
  if (g_faults.n_writes++ == g_faults.failing_write) {
    errno = g_faults.write_errno;
    return -1;
  }
  if (Interrupted()) return -1;
  return syscall(SYS_pwrite64, fd, data, Shortened(n), offset);
}
ssize_t pwrite64(int fd, const void* data, size_t n, off64_t offset) {
  return pwrite(fd, data, n, offset);
}
ssize_t pread(int fd, void* data, size_t n, off_t offset) {
  if (Interrupted()) return -1;
  return syscall(SYS_pread64, fd, data, Shortened(n), offset);
}
ssize_t pread64(int fd, void* data, size_t n, off64_t offset) { return pread(fd, data, n, offset); }
int fsync(int fd) {
  if (g_faults.n_fsyncs++ == g_faults.failing_fsync) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}
int rename(const char* from, const char* to) noexcept {
  if (g_faults.rename_fails) {
    errno = EXDEV;
    return -1;
  }
  return static_cast<int>(syscall(SYS_rename, from, to));
}

}  // extern "C"

namespace {

namespace fs = std::filesystem;

std::vector<char> ContentOf(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

varve::KVCache MakeCache(int n_tokens, uint64_t seed = 1,
                         const char* settings = "method=age_tiered,age_recent_boundary=64",
                         int64_t n_heads = 2, int64_t dim = 64) {
  varve::CacheConfig config;
  EXPECT_TRUE(config.set_list(settings).ok());
  varve::KVCache cache = std::move(varve::KVCache::create(config)).value();
  if (n_tokens == 0) return cache;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> gauss;
  std::vector<float> values(static_cast<size_t>(n_heads * n_tokens * dim));
  for (float& x : values) x = gauss(random);
  const auto tensor = varve::Tensor::of(values, {1, n_heads, n_tokens, dim});
  EXPECT_TRUE(cache.append(tensor, tensor).ok());
  return cache;
}

class FileSession : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "varve-session-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ / "session.varve";
  }
  void TearDown() override {
    g_faults.failing_write = -1;
    g_faults.failing_fsync = -1;
    g_faults.short_calls = g_faults.rename_fails = false;
    fs::remove_all(folder_);
  }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_))
      names.push_back(entry.path().filename().string());
    return names;
  }

  /// The save fails with this text, the old file stays, nothing is left beside it.
  void ExpectFailedSave(const varve::KVCache& cache, const char* text) {
    const std::vector<char> before = ContentOf(path_);
    const varve::Status status = cache.save(path_.string());
    EXPECT_EQ(status.code(), VARVE_ERROR_IO) << status.text();
    EXPECT_NE(status.text().find(text), std::string::npos) << status.text();
    EXPECT_NE(status.text().find("session.varve"), std::string::npos) << status.text();
    EXPECT_EQ(ContentOf(path_), before);
    EXPECT_EQ(Names(), std::vector<std::string>{"session.varve"});
  }

  fs::path folder_, path_;
};

TEST_F(FileSession, SavedIsWhatASnapshotHolds) {
  const varve::KVCache cache = MakeCache(300);
  ASSERT_TRUE(cache.save(path_.string(), "smollm2").ok());
  const std::vector<std::byte> bytes = cache.snapshot("smollm2").value();
  const std::vector<char> file = ContentOf(path_);
  ASSERT_EQ(file.size(), bytes.size());
  EXPECT_EQ(std::memcmp(file.data(), bytes.data(), bytes.size()), 0);

  varve::KVCache loaded = MakeCache(0);
  ASSERT_TRUE(loaded.load(path_.string(), "smollm2").ok());
  EXPECT_EQ(loaded.snapshot("smollm2").value(), bytes);
  EXPECT_EQ(loaded.fetch()->keys.bytes, cache.fetch()->keys.bytes);
  EXPECT_EQ(loaded.load(path_.string(), "qwen").code(), VARVE_ERROR_INCOMPATIBLE);
  EXPECT_TRUE(loaded.load(path_.string()).ok());
}

TEST_F(FileSession, EveryFailingWriteLeavesTheOldFile) {
  ASSERT_TRUE(MakeCache(10).save(path_.string()).ok());
  const varve::KVCache cache = MakeCache(6000);
  int n_failed = 0;
  for (bool failed = true; failed; ++n_failed) {
    g_faults.n_writes = 0;
    g_faults.failing_write = n_failed;
    failed = !cache.save((folder_ / "probe").string()).ok();
    fs::remove(folder_ / "probe");
    if (!failed) break;
    g_faults.n_writes = 0;
    ExpectFailedSave(cache, "No space left on device");
  }
  EXPECT_GE(n_failed, 4) << "the file takes several writes";
  g_faults.n_writes = 0;
  g_faults.failing_write = 1;
  g_faults.write_errno = EIO;
  ExpectFailedSave(cache, "Input/output error");
}

TEST_F(FileSession, FailingSyncAndRenameLeaveTheOldFile) {
  const varve::KVCache cache = MakeCache(100);
  ASSERT_TRUE(MakeCache(10).save(path_.string()).ok());
  g_faults.n_fsyncs = g_faults.failing_fsync = 0;
  ExpectFailedSave(cache, "fsync");
  g_faults.failing_fsync = -1;
  g_faults.rename_fails = true;
  ExpectFailedSave(cache, "rename");
}

// The one failure that comes after the rename: the new file is there, whole.
TEST_F(FileSession, AFolderThatCannotBeSyncedIsSaid) {
  const varve::KVCache cache = MakeCache(100);
  g_faults.n_fsyncs = 0;
  g_faults.failing_fsync = 1;
  const varve::Status status = cache.save(path_.string());
  EXPECT_EQ(status.code(), VARVE_ERROR_IO);
  EXPECT_NE(status.text().find("fsync"), std::string::npos) << status.text();
  EXPECT_EQ(Names(), std::vector<std::string>{"session.varve"});
  varve::KVCache loaded = MakeCache(0);
  ASSERT_TRUE(loaded.load(path_.string()).ok());
  EXPECT_EQ(loaded.snapshot().value(), cache.snapshot().value());
}

TEST_F(FileSession, AFileSizeLimitIsAnError) {
  const varve::KVCache cache = MakeCache(6000);
  ASSERT_TRUE(MakeCache(10).save(path_.string()).ok());
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const rlim_t bytes : {rlim_t{0}, rlim_t{100}, rlim_t{300000}}) {
    const rlimit small = {bytes, old_limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
    ExpectFailedSave(cache, "File too large");
  }
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(cache.save(path_.string()).ok());
}

TEST_F(FileSession, ReadOnlyFolderIsAnError) {
  const varve::KVCache cache = MakeCache(20);
  ASSERT_TRUE(MakeCache(10).save(path_.string()).ok());
  ASSERT_EQ(chmod(folder_.c_str(), 0555), 0);
  // Root may write anywhere, so somebody else tries.
  const pid_t child = fork();
  if (child == 0) {
    if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) _exit(2);
    const varve::Status status = cache.save(path_.string());
    const bool right = status.code() == VARVE_ERROR_IO &&
                       status.text().find("Permission denied") != std::string::npos;
    _exit(right ? 0 : 1);
  }
  int wait_status = -1;
  ASSERT_EQ(waitpid(child, &wait_status, 0), child);
  EXPECT_TRUE(WIFEXITED(wait_status));
  EXPECT_EQ(WEXITSTATUS(wait_status), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0755), 0);
  EXPECT_EQ(Names(), std::vector<std::string>{"session.varve"});
}

TEST_F(FileSession, ShortAndInterruptedCallsAreCompleted) {
  const varve::KVCache cache = MakeCache(2000);
  g_faults.short_calls = true;
  ASSERT_TRUE(cache.save(path_.string()).ok());
  varve::KVCache loaded = MakeCache(0);
  ASSERT_TRUE(loaded.load(path_.string()).ok());
  EXPECT_EQ(loaded.snapshot().value(), cache.snapshot().value());
}

TEST_F(FileSession, WhatIsNoSessionIsAnErrorAndChangesNothing) {
  varve::KVCache cache = MakeCache(50);
  const std::vector<std::byte> before = cache.snapshot().value();
  const auto expect = [&](const fs::path& path, varve_status code, const char* text) {
    const varve::Status status = cache.load(path.string());
    EXPECT_EQ(status.code(), code) << path << ": " << status.text();
    EXPECT_NE(status.text().find(text), std::string::npos) << status.text();
    EXPECT_EQ(cache.snapshot().value(), before);
  };
  expect(folder_ / "missing", VARVE_ERROR_IO, "No such file or directory");
  expect(folder_, VARVE_ERROR_IO, "not a regular file");
  ASSERT_EQ(mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  expect(folder_ / "pipe", VARVE_ERROR_IO, "not a regular file");
  std::ofstream(folder_ / "empty");
  expect(folder_ / "empty", VARVE_ERROR_BAD_FORMAT, "0 bytes");
  std::ofstream(folder_ / "text") << std::string(500, 'x');
  expect(folder_ / "text", VARVE_ERROR_BAD_FORMAT, "magic");
  EXPECT_EQ(cache.save((folder_ / "missing" / "file").string()).code(), VARVE_ERROR_IO);
  EXPECT_EQ(cache.save(folder_.string()).code(), VARVE_ERROR_IO);
}

TEST_F(FileSession, AModelLoadsAsAWholeOrNotAtAll) {
  std::vector<varve::KVCache> layers;
  for (uint64_t layer = 0; layer < 4; ++layer) layers.push_back(MakeCache(40 + 9 * layer, layer));
  ASSERT_TRUE(varve::save_session(layers, path_.string()).ok());
  std::vector<varve::KVCache> loaded;
  for (int layer = 0; layer < 4; ++layer) loaded.push_back(MakeCache(0));
  ASSERT_TRUE(varve::load_session(loaded, path_.string()).ok());
  for (size_t i = 0; i < layers.size(); ++i)
    EXPECT_EQ(loaded[i].snapshot().value(), layers[i].snapshot().value());

  // The last of them does not fit: none is changed.
  std::vector<varve::KVCache> mixed;
  for (int layer = 0; layer < 3; ++layer) mixed.push_back(MakeCache(5));
  mixed.push_back(MakeCache(5, 1, "method=kivi"));
  std::vector<std::vector<std::byte>> before;
  for (const auto& cache : mixed) before.push_back(cache.snapshot().value());
  const varve::Status status = varve::load_session(mixed, path_.string());
  EXPECT_EQ(status.code(), VARVE_ERROR_INCOMPATIBLE);
  EXPECT_EQ(status.text(), "cache 3: method is age_tiered in the session, kivi here");
  for (size_t i = 0; i < mixed.size(); ++i) EXPECT_EQ(mixed[i].snapshot().value(), before[i]);
}

TEST_F(FileSession, SavesAtTheSameTimeLeaveOneWholeFile) {
  const varve::KVCache caches[] = {MakeCache(500, 1), MakeCache(900, 2)};
  const std::vector<std::byte> contents[] = {caches[0].snapshot().value(),
                                             caches[1].snapshot().value()};
  ASSERT_TRUE(caches[0].save(path_.string()).ok());
  std::atomic<int> n_failed = 0;
  const auto save = [&](const varve::KVCache& cache) {
    for (int i = 0; i < 40; ++i) n_failed += cache.save(path_.string()).ok() ? 0 : 1;
  };
  std::thread first(save, std::cref(caches[0]));
  std::thread second(save, std::cref(caches[1]));
  for (int i = 0; i < 40; ++i) {
    varve::KVCache loaded = MakeCache(0);
    const varve::Status status = loaded.load(path_.string());
    ASSERT_TRUE(status.ok()) << status.text();
    const std::vector<std::byte> bytes = loaded.snapshot().value();
    EXPECT_TRUE(bytes == contents[0] || bytes == contents[1]);
  }
  first.join();
  second.join();
  EXPECT_EQ(n_failed, 0);
  EXPECT_EQ(Names(), std::vector<std::string>{"session.varve"});
}

// Kind D9: two shapes with as many elements are two shapes.
TEST_F(FileSession, ShapesAreStoredNotGuessed) {
  for (const int64_t n_heads : {1, 2, 3, 8}) {
    for (const int64_t dim : {64, 128, 256}) {
      for (const char* settings : {"method=age_tiered,age_recent_boundary=32",
                                   "method=uniform,codec=per_token", "method=amc"}) {
        const varve::KVCache cache = MakeCache(70, 3, settings, n_heads, dim);
        ASSERT_TRUE(cache.save(path_.string()).ok());
        varve::KVCache loaded = MakeCache(0, 0, settings);
        ASSERT_TRUE(loaded.load(path_.string()).ok());
        EXPECT_EQ(loaded.fetch()->keys.shape, (std::array<int64_t, 4>{1, n_heads, 70, dim}));
        EXPECT_EQ(loaded.fetch()->values.bytes, cache.fetch()->values.bytes);
        varve::KVCache other = MakeCache(70, 3, settings, n_heads * 2, dim / 2);
        EXPECT_EQ(other.load(path_.string()).code(), VARVE_ERROR_INCOMPATIBLE);
      }
    }
  }
}

TEST_F(FileSession, ArgumentsAreChecked) {
  const varve::KVCache cache = MakeCache(20);
  varve_cache* const handles[] = {cache.get(), nullptr};
  std::vector<std::byte> buffer(100);
  size_t n_bytes = 0;
  EXPECT_EQ(varve_cache_save(nullptr, 1, nullptr, "x"), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(varve_cache_save(handles, 0, nullptr, "x"), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(varve_cache_save(handles, 2, nullptr, "x"), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_STREQ(varve_last_error(), "caches[1] is NULL");
  EXPECT_EQ(varve_cache_save(handles, 1, nullptr, nullptr), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(varve_cache_load(handles, 1, nullptr, nullptr), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(varve_cache_snapshot_bound(handles, 1, nullptr, nullptr), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(varve_cache_snapshot(handles, 1, nullptr, buffer.data(), buffer.size(), &n_bytes),
            VARVE_ERROR_INVALID_ARGUMENT);
  size_t bound = 0;
  EXPECT_EQ(varve_cache_snapshot_bound(handles, 1, nullptr, &bound), VARVE_OK);
  EXPECT_EQ(n_bytes, bound);
  EXPECT_EQ(varve_cache_restore(handles, 1, nullptr, nullptr, 5), VARVE_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(varve_cache_restore(handles, 1, nullptr, buffer.data(), 0), VARVE_ERROR_BAD_FORMAT);
}

}  // namespace
