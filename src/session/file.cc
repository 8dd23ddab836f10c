#include "session/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

namespace varve {
namespace {

constexpr size_t kBufferBytes = size_t{256} << 10;
constexpr int kMaxNames = 1000;

Status IoError(const std::string& path, const char* what, int error) {
  return Status(StatusCode::kIoError,
                "path " + path + ": " + what + ": " + std::generic_category().message(error));
}

// The folder's entry of a renamed file. A file system that cannot sync folders says EINVAL.
Status SyncFolder(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return IoError(folder, "open", errno);
  const int error = fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  close(fd);
  return error == 0 ? Status() : IoError(folder, "fsync", error);
}

}  // namespace

Status MemorySink::Append(std::span<const std::byte> bytes) {
  if (bytes.size() > buffer_.size() - n_used_) {
    return Status(StatusCode::kInvalidArgument, "capacity must be larger than " +
                                                    std::to_string(buffer_.size()) +
                                                    ": the session does not fit");
  }
  if (!bytes.empty()) std::memcpy(buffer_.data() + n_used_, bytes.data(), bytes.size());
  n_used_ += bytes.size();
  return Status();
}

Status MemorySink::PutHead(std::span<const std::byte> bytes) {
  std::memcpy(buffer_.data(), bytes.data(), bytes.size());
  return Status();
}

Status MemorySource::ReadAt(uint64_t offset, std::span<std::byte> out) {
  if (!out.empty()) std::memcpy(out.data(), bytes_.data() + offset, out.size());
  return Status();
}

AtomicFile::AtomicFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}

Result<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path) {
  static std::atomic<uint64_t> number = 0;
  for (int tries = 0; tries < kMaxNames; ++tries) {
    std::string temporary =
        path + "." + std::to_string(getpid()) + "-" + std::to_string(++number) + ".tmp";
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0) {
      std::unique_ptr<AtomicFile> file(new AtomicFile(path, std::move(temporary), fd));
      file->pending_.reserve(kBufferBytes);
      return file;
    }
    if (errno != EEXIST) return IoError(temporary, "create", errno);
  }
  return IoError(path, "create a file beside it", EEXIST);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

Status AtomicFile::Failure(const char* what) const { return IoError(path_, what, errno); }

Status AtomicFile::Write(std::span<const std::byte> bytes, int64_t offset) {
  while (!bytes.empty()) {
    const ssize_t n = pwrite(fd_, bytes.data(), bytes.size(), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return Failure("write");
    if (n == 0) return IoError(path_, "write", EIO);
    bytes = bytes.subspan(static_cast<size_t>(n));
    offset += n;
  }
  return Status();
}

Status AtomicFile::Flush() {
  VARVE_RETURN_IF_ERROR(Write(pending_, n_written_));
  n_written_ += static_cast<int64_t>(pending_.size());
  pending_.clear();
  return Status();
}

Status AtomicFile::Append(std::span<const std::byte> bytes) {
  if (bytes.size() > kBufferBytes - pending_.size()) VARVE_RETURN_IF_ERROR(Flush());
  if (bytes.size() <= kBufferBytes) {
    pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    return Status();
  }
  VARVE_RETURN_IF_ERROR(Write(bytes, n_written_));
  n_written_ += static_cast<int64_t>(bytes.size());
  return Status();
}

Status AtomicFile::PutHead(std::span<const std::byte> bytes) {
  VARVE_RETURN_IF_ERROR(Flush());
  return Write(bytes, 0);
}

Status AtomicFile::Commit() {
  VARVE_RETURN_IF_ERROR(Flush());
  if (fsync(fd_) != 0) return Failure("fsync");
  const int closed = close(fd_);
  fd_ = -1;
  if (closed != 0) return Failure("close");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return Failure("rename to");
  temporary_.clear();
  return SyncFolder(path_);
}

Result<std::unique_ptr<FileSource>> FileSource::Open(const std::string& path) {
  // Why O_NONBLOCK: a pipe of that name would wait for a writer.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return IoError(path, "open", errno);
  std::unique_ptr<FileSource> file(new FileSource(path, fd, 0));
  struct stat info = {};
  if (fstat(fd, &info) != 0) return IoError(path, "stat", errno);
  if (!S_ISREG(info.st_mode))
    return Status(StatusCode::kIoError, "path " + path + ": not a regular file");
  file->size_ = static_cast<uint64_t>(info.st_size);
  return file;
}

FileSource::~FileSource() { close(fd_); }

Status FileSource::ReadAt(uint64_t offset, std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t n = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError(path_, "read", errno);
    if (n == 0)
      return Status(StatusCode::kIoError, "path " + path_ + ": the file became shorter while read");
    out = out.subspan(static_cast<size_t>(n));
    offset += static_cast<uint64_t>(n);
  }
  return Status();
}

}  // namespace varve
