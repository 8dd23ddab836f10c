// Where a session's bytes go and come from: memory, or a file that appears under its name only when
// it is whole.
#ifndef VARVE_SESSION_FILE_H_
#define VARVE_SESSION_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace varve {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual Status Append(std::span<const std::byte> bytes) = 0;
  /// Replaces bytes at the start, once everything has been appended.
  virtual Status PutHead(std::span<const std::byte> bytes) = 0;
};

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual uint64_t size() const = 0;
  /// Fills `out` from `offset` on; all of it lies within size().
  virtual Status ReadAt(uint64_t offset, std::span<std::byte> out) = 0;
};

/// Into a buffer of the caller's. Errors: kInvalidArgument when it is full.
class MemorySink : public ByteSink {
 public:
  explicit MemorySink(std::span<std::byte> buffer) : buffer_(buffer) {}
  Status Append(std::span<const std::byte> bytes) override;
  Status PutHead(std::span<const std::byte> bytes) override;

 private:
  std::span<std::byte> buffer_;
  size_t n_used_ = 0;
};

class MemorySource : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t size() const override { return bytes_.size(); }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) override;

 private:
  std::span<const std::byte> bytes_;
};

/// Writes `<path>.<process>-<number>.tmp` and renames it to path once it is on disk. Without
/// Commit() nothing is left of it and path is as it was. Errors: kIoError.
class AtomicFile : public ByteSink {
 public:
  static Result<std::unique_ptr<AtomicFile>> Create(const std::string& path);
  ~AtomicFile() override;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  Status Append(std::span<const std::byte> bytes) override;
  Status PutHead(std::span<const std::byte> bytes) override;
  /// fsync, rename, fsync of the folder. When only the last of these fails, the new file is in
  /// place and whole, but a power cut may still bring the old one back.
  Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, int fd);
  Status Write(std::span<const std::byte> bytes, int64_t offset);
  Status Flush();
  Status Failure(const char* what) const;

  std::string path_;
  std::string temporary_;
  int fd_;
  int64_t n_written_ = 0;
  std::vector<std::byte> pending_;
};

/// A regular file. Errors: kIoError.
class FileSource : public ByteSource {
 public:
  static Result<std::unique_ptr<FileSource>> Open(const std::string& path);
  ~FileSource() override;
  FileSource(const FileSource&) = delete;
  FileSource& operator=(const FileSource&) = delete;

  uint64_t size() const override { return size_; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) override;

 private:
  FileSource(std::string path, int fd, uint64_t size)
      : path_(std::move(path)), fd_(fd), size_(size) {}

  std::string path_;
  int fd_;
  uint64_t size_;
};

}  // namespace varve

#endif  // VARVE_SESSION_FILE_H_
