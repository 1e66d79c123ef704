// SPDX-License-Identifier: Apache-2.0
// Compiled programs kept on disk, so that the next process with the same script does not compile
// them again.
//
// An entry is a file of text, named by the fingerprint of all that its program follows from (its
// key): the build, the machine, the options, the graph. It holds that key itself, which is
// compared, a digest of the whole, and the program as Program::ToString prints it:
//
//   torch_spmd program 1
//   digest 6c5f…
//   key 5120
//   …
//
// Files are written aside and renamed, so that processes may share a directory; the oldest go when
// there is too much.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/compile.h"

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

  // What Compile gave for it, its graph, reasons and times excepted: they are empty.
  // Errors: NotFound; DataLoss for an entry that is damaged, which is removed.
  absl::StatusOr<Compiled> Read(const ir::Graph& graph, const CompileOptions& options) const;
  // Errors: what the file system says.
  absl::Status Write(const ir::Graph& graph, const CompileOptions& options,
                     const Compiled& compiled);

 private:
  std::string Key(const ir::Graph& graph, const CompileOptions& options) const;
  std::string PathOf(const std::string& key) const;
  void RemoveOldest();

  Options options_;
  int64_t bytes_ = -1;  // in the directory, as far as this process knows; -1: not looked yet
};

// Whether the graph compiles in another process as it does here: none of its ops has a user's rule.
bool IsSelfContained(const ir::Graph& graph);

}  // namespace spmd::partition
