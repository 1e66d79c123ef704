// SPDX-License-Identifier: Apache-2.0
// Keeps compiled programs on disk, so that the next process with the same script does not search
// for them again.
//
// An entry is a text file, named by the fingerprint of its key. The key is everything from which
// the program follows: the build, the machine, the options and the graph. The file contains the
// key, which is compared; a digest of the whole, which detects damage; and what the search decided
// (csrc/partition/decisions.h), from which the program is lowered again:
//
//   torch_spmd program 2
//   digest 6c5f…
//   key 5120
//   …
//   decisions 810
//   …
//
// So an entry decides how fast a program is and never what it computes: the ops come from the graph
// at hand. Files are written under a temporary name and renamed, so that processes may share a
// directory. The oldest files are removed when all together take too much. Directories to which
// other users may write are not used.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/compile.h"
#include "csrc/util/private_directory.h"

namespace spmd::partition {

// Thread safety: thread-compatible.
class CompileCache {
 public:
  struct Options {
    std::string directory;  // created when the first entry is written
    std::string build;      // entries of other builds are not found
    int64_t max_bytes = int64_t{256} << 20;
  };
  explicit CompileCache(Options options);

  // What Compile gave for `graph` and `options`, except the result's graph, reasons, decisions and
  // times.
  // Errors: NotFound; DataLoss for an entry that is damaged, which is removed; PermissionDenied if
  // other users may write to the directory.
  absl::StatusOr<Compiled> Read(const ir::Graph& graph, const CompileOptions& options) const;
  // Writes an entry for `graph` and `options`. Errors: those of the file system.
  absl::Status Write(const ir::Graph& graph, const CompileOptions& options,
                     const Compiled& compiled);

 private:
  std::string Key(const ir::Graph& graph, const CompileOptions& options) const;
  static std::string NameOf(const std::string& key);
  void RemoveOldest(const PrivateDirectory& directory);

  Options options_;
  int64_t bytes_ = -1;  // in the directory as far as this process knows; -1: not known yet
};

// Whether the graph compiles in another process as it does in this one: none of its ops has a rule
// of the user's.
bool IsSelfContained(const ir::Graph& graph);

}  // namespace spmd::partition
