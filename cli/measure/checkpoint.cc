#include "measure/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "support/failure.h"

namespace varve::cli {
namespace {

/// FNV-1a, 64 bits.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

std::string DefaultPath(const std::string& identity) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::filesystem::path folder = cache && *cache ? std::filesystem::path(cache)
                                       : home && *home ? std::filesystem::path(home) / ".cache"
                                                       : std::filesystem::temp_directory_path();
  return (folder / "varve" / fmt::format("compare-{:016x}.jsonl", Hash(identity))).string();
}

}  // namespace

Checkpoint::Checkpoint(const std::string& path, const Json& identity, bool fresh)
    : path_(path.empty() ? DefaultPath(identity.dump()) : path) {
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path_).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  bool ours = false;
  uintmax_t good_bytes = 0;
  const bool regular = std::filesystem::is_regular_file(path_, error);
  if (std::ifstream file(path_); file && regular && !fresh) {
    for (std::string line; std::getline(file, line);) {
      if (file.eof()) break;  // cut off while it was written
      const Json entry = Json::parse(line, nullptr, false);
      if (entry.is_discarded()) break;
      if (good_bytes == 0) {
        ours = entry == identity;
        if (!ours) break;
      } else {
        pieces_[entry.value("name", "")] = entry.value("piece", Json());
      }
      good_bytes += line.size() + 1;
    }
    if (!ours && std::filesystem::file_size(path_, error) > 0) {
      Fail(ExitCode::kUsage,
           "--state {}: belongs to another comparison; name another file or add --fresh", path_);
    }
  }
  n_found_ = pieces_.size();
  fd_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (ours ? 0 : O_TRUNC), 0644);
  if (fd_ < 0 || (ours && ftruncate(fd_, static_cast<off_t>(good_bytes)) != 0) ||
      lseek(fd_, 0, SEEK_END) < 0) {
    Fail(ExitCode::kFailed, "cannot write {}: {}; name another file with --state", path_,
         std::strerror(errno));
  }
  if (!ours) {
    const std::string line = identity.dump() + "\n";
    if (write(fd_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      Fail(ExitCode::kFailed, "cannot write {}: {}; name another file with --state", path_,
           std::strerror(errno));
    }
  }
}

Checkpoint::~Checkpoint() {
  if (fd_ >= 0) close(fd_);
}

const Json* Checkpoint::Find(const std::string& name) const {
  const auto found = pieces_.find(name);
  return found == pieces_.end() ? nullptr : &found->second;
}

void Checkpoint::Add(const std::string& name, const Json& piece) {
  const std::string line = Json{{"name", name}, {"piece", piece}}.dump() + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t n = write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0)
      Fail(ExitCode::kFailed, "cannot write {}: {}; name another file with --state", path_,
           std::strerror(errno));
    done += static_cast<size_t>(n);
  }
  fdatasync(fd_);
  pieces_[name] = piece;
}

void Checkpoint::Remove() {
  std::error_code error;
  if (std::filesystem::is_regular_file(path_, error)) std::filesystem::remove(path_, error);
}

}  // namespace varve::cli
