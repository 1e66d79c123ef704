// SPDX-License-Identifier: Apache-2.0
// Compiled programs kept on disk, so that the next process with the same script does not search for
// them again.
//
// An entry is a file of text, named by the fingerprint of all that its program follows from (its
// key): the build, the machine, the options, the graph. It holds that key itself, which is
// compared, a digest of the whole, which tells damage, and what the search has decided
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
// at hand. Files are written aside and renamed, so that processes may share a directory; the oldest
// go when there is too much. Directories that others may write to are not used.
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
    std::string directory;  // made when the first entry is written
    std::string build;      // entries of other builds are not found
    int64_t max_bytes = int64_t{256} << 20;
  };
  explicit CompileCache(Options options);

  // What Compile gave for it, its graph, reasons, decisions and times excepted.
  // Errors: NotFound; DataLoss for an entry that is damaged, which is removed; PermissionDenied for
  // a directory that others may write to.
  absl::StatusOr<Compiled> Read(const ir::Graph& graph, const CompileOptions& options) const;
  // Errors: what the file system says.
  absl::Status Write(const ir::Graph& graph, const CompileOptions& options,
                     const Compiled& compiled);

 private:
  std::string Key(const ir::Graph& graph, const CompileOptions& options) const;
  static std::string NameOf(const std::string& key);
  void RemoveOldest(const PrivateDirectory& directory);

  Options options_;
  int64_t bytes_ = -1;  // in the directory, as far as this process knows; -1: not looked yet
};

// Whether the graph compiles in another process as it does here: none of its ops has a user's rule.
bool IsSelfContained(const ir::Graph& graph);

}  // namespace spmd::partition
