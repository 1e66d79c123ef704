// SPDX-License-Identifier: Apache-2.0
// Graph + annotations → one SPMD program. The pipeline is the body of Compile.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/machine/machine.h"
#include "csrc/partition/decisions.h"
#include "csrc/partition/passes.h"
#include "csrc/program/program.h"
#include "csrc/propagate/propagate.h"

namespace spmd::partition {

struct CompileOptions {
  const machine::Machine* machine = nullptr;  // null: the nominal one
  // Run the verifier between passes (always in debug builds).
  bool verify = false;
  // Gathers of more bytes per device than this are warned about where they repeat work.
  int64_t warn_gather_bytes = int64_t{16} << 20;
  // Bytes up to which same-group collectives are merged into one instruction.
  int64_t merge_cap_bytes = int64_t{1} << 62;
  // Called after each pass with its name and the text of the result. Null: not called.
  std::function<void(absl::string_view pass, const std::string& text)> dump;
};

struct Compiled {
  program::Program program;    // inputs and outputs in the graph's order
  ir::Graph graph;             // after simplification, every value annotated
  propagate::Reasons reasons;  // why each value of `graph` is cut as it is
  std::vector<Warning> warnings;
  std::vector<std::string> decomposed;  // ops taken apart because what they need whole was cut
  Decisions decisions;                  // what the search found
  // By output: the sizes as a view of which it is computed, where it merges dimensions of which a
  // later one is cut; none where it is computed as it is. A graph that returns that view instead
  // sends nothing for it.
  std::vector<Dims> apart;
  struct PassTime {
    std::string pass;
    double ms;
  };
  std::vector<PassTime> times;
};

// Requires: Verify(graph).ok().
// Program inputs keep the graph's input order and count; where the graph's input carries a
// committed or settled annotation the program's input has exactly that sharding, elsewhere the one
// proposed. An output with `becomes` that names an annotated input has that input's sharding.
// Errors: InvalidArgument for what the user annotated impossibly; Internal for a broken pass.
absl::StatusOr<Compiled> Compile(const ir::Graph& graph, const CompileOptions& options = {});

// The same without a search, as it was decided before: the program is the one that Compile gave
// with these decisions. Not propagated: `graph` of the result is annotated where lowering asks for
// it, and there are no reasons. The decisions may be anybody's: what is lowered computes what the
// graph says, and what cannot be lowered is refused. Errors: InvalidArgument for decisions that do
// not fit the graph; as Compile.
absl::StatusOr<Compiled> CompileAs(const ir::Graph& graph, Decisions decisions,
                                   const CompileOptions& options = {});

// The names of the passes, in order.
std::vector<std::string> PassNames();

// The text of what Compile has after the pass `pass` (the last time that it runs): for spmd-opt and
// for golden tests. Errors: InvalidArgument naming the passes; whatever Compile gives.
absl::StatusOr<std::string> TextAfter(const ir::Graph& graph, absl::string_view pass,
                                      CompileOptions options = {});

}  // namespace spmd::partition
