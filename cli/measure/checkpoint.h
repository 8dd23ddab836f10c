// What an interrupted comparison has finished: JSON lines, one a finished piece, appended and
// synced as they come.
#ifndef VARVE_CLI_MEASURE_CHECKPOINT_H_
#define VARVE_CLI_MEASURE_CHECKPOINT_H_

#include <map>
#include <string>

#include "support/output.h"

namespace varve::cli {

class Checkpoint {
 public:
  /// Opens the file of this `identity` (everything that the results depend on). Pieces that an
  /// earlier run finished are read back, unless `fresh`. `path` "" is a file in
  /// $XDG_CACHE_HOME/varve (or ~/.cache/varve) named by the identity.
  Checkpoint(const std::string& path, const Json& identity, bool fresh);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// The piece of that name, or null.
  const Json* Find(const std::string& name) const;

  /// Adds a piece; fails when it cannot be written.
  void Add(const std::string& name, const Json& piece);

  /// Pieces that were read back.
  size_t n_found() const { return n_found_; }
  const std::string& path() const { return path_; }

  /// The comparison is done: removes the file.
  void Remove();

 private:
  std::string path_;
  std::map<std::string, Json> pieces_;
  size_t n_found_ = 0;
  int fd_ = -1;
};

}  // namespace varve::cli

#endif  // VARVE_CLI_MEASURE_CHECKPOINT_H_
