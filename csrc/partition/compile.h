// SPDX-License-Identifier: Apache-2.0
// Compiles a graph with annotations to one SPMD program. The pipeline is the body of Compile.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "csrc/ir/graph.h"
#include "csrc/machine/machine.h"
#include "csrc/partition/earlier_plans.h"
#include "csrc/partition/gather_again.h"
#include "csrc/partition/passes.h"
#include "csrc/partition/rings.h"
#include "csrc/program/program.h"
#include "csrc/propagate/propagate.h"

namespace spmd::partition {

struct CompileOptions {
  const machine::Machine* machine = nullptr;  // null: the nominal machine
  // Bytes per device that a program may need, if that is less than what the machine has; 0: what it
  // has.
  int64_t memory_limit = 0;
  // True: the verifier runs between passes. In debug builds it always does.
  bool verify = false;
  // Gathers of more bytes per device than this cause a warning if the work after them is repeated.
  int64_t warn_gather_bytes = int64_t{16} << 20;
  // The plan of a graph that differs from this one only in sizes (EarlierPlans), or null. It is
  // taken over, without propagation and search, if the first passes make a graph with the same ops
  // from both.
  std::shared_ptr<const SearchedPlan> earlier;
  // True: `reasons` are wanted, which are of the propagation. They are always there if `earlier` is
  // null.
  bool explain = false;
  // Collectives of one kind are merged into instructions of at most this many bytes. 0: so many
  // that starting them takes a small part of the time (order.h).
  int64_t merge_cap_bytes = 0;
  // If set, called after each pass with its name and the text of the result.
  std::function<void(absl::string_view pass, const std::string& text)> dump;
};

struct Compiled {
  program::Program program;    // inputs and outputs in the graph's order
  ir::Graph graph;             // after simplification, every value annotated
  propagate::Reasons reasons;  // why each value of `graph` has its sharding
  std::vector<Warning> warnings;
  GatheredAgain gathered_again;
  InRings in_rings;
  std::shared_ptr<const SearchedPlan> searched;  // null if there was no search
  std::vector<std::string> decomposed;  // ops decomposed: a factor that they need whole was sharded
  // By output: if it merges dimensions of which a later one is sharded, the sizes of the view as
  // which it is computed; otherwise empty. A graph that returns that view instead sends nothing for
  // this output.
  std::vector<Dims> apart;
  struct PassTime {
    std::string pass;
    double ms;
  };
  std::vector<PassTime> times;
};

// Compiles `graph`. The program has the inputs of `graph` in the same order. An input that carries
// a committed or settled annotation has exactly that sharding, any other has the proposed one. An
// output whose `becomes` names an annotated input has that input's sharding.
// Requires: Verify(graph).ok().
// Errors: InvalidArgument if the user's annotations are impossible; Internal if a pass is broken.
absl::StatusOr<Compiled> Compile(const ir::Graph& graph, const CompileOptions& options = {});

// Whether any annotation uses an axis. A graph without needs no plan: everything is one tile.
bool UsesAxes(const ir::Graph& graph);

// The names of the passes in the order in which they run.
std::vector<std::string> PassNames();

// The text of the graph or program after the last run of the pass `pass`, for spmd-opt and golden
// tests.
// Errors: InvalidArgument if there is no such `pass`, with the names of the passes; otherwise as
// Compile.
absl::StatusOr<std::string> TextAfter(const ir::Graph& graph, absl::string_view pass,
                                      CompileOptions options = {});

}  // namespace spmd::partition
