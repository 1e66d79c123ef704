// SPDX-License-Identifier: Apache-2.0
// A compiled program, as spmd.debug shows it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "csrc/ir/graph.h"
#include "csrc/partition/compile.h"
#include "csrc/runtime/executor.h"

namespace spmd::trace {

struct CompiledProgram {
  int64_t number = 0;
  ir::Graph traced;                                        // as lowered from the tape
  partition::Compiled compiled;                            // its `program` was moved into `loaded`
  std::shared_ptr<const partition::SearchedPlan> earlier;  // that was taken over, or null
  // Words for inputs that have a mark, by their names in `traced`: those of Mark::name.
  absl::flat_hash_map<std::string, std::string> input_names;
  // If false, `compiled` lacks its graph and reasons, which take as long to make as the program
  // itself and are made on demand.
  bool explained = true;
  // Null if the program does not fit the devices' memory.
  std::shared_ptr<runtime::LoadedProgram> loaded;
  program::Program refused;  // that program; empty otherwise
  const program::Program& program() const { return loaded ? loaded->program() : refused; }
  // The bytes on the heap, without the graph and reasons, which few programs have.
  int64_t HeapBytes() const;
};

}  // namespace spmd::trace
