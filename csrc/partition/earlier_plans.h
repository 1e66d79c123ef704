// SPDX-License-Identifier: Apache-2.0
// Plans of graphs that were compiled, for graphs that differ from them only in sizes.
//
// Each new size is a program of its own: a last batch that is shorter, a cache that grows by a
// position, packed sequences. Its graph has the ops, the edges and the annotations of the graph
// before, and nearly always its plan. Propagation and the search of a plan take most of a
// compilation. They are therefore left out where the earlier plan fits the sizes:
//
//   %y = mm(%x: f32[32,64], %w)   found: factor m is sharded by {data}, w is gathered
//   %y = mm(%x: f32[48,64], %w)   the same, without a search
//   %y = mm(%x: f32[96,64], %w)   more than twice the size: a search of its own
//   %y = mm(%x: f32[47,64], %w)   shards of different sizes: a search of its own
//
// A size may be up to twice the earlier one, or down to half of it, since with larger changes
// another plan may be much cheaper. A plan that was itself taken over is not kept, so that sizes do
// not drift away step by step.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "csrc/ir/fingerprint.h"
#include "csrc/ir/graph.h"
#include "csrc/machine/machine.h"
#include "csrc/partition/node_plan.h"
#include "csrc/partition/passes.h"
#include "csrc/propagate/propagate.h"

namespace spmd::partition {

// The annotations of a graph whose values are all annotated, for graphs of other sizes.
class Annotations {
 public:
  explicit Annotations(const ir::Graph& graph);

  // Annotates `graph` alike. False, and nothing is done, if it does not fit: the graph has other
  // ops, an annotation of its own says otherwise, or a dimension whose size has changed would have
  // shards that differ in size. Where an earlier program left an input does not matter as long as
  // it is what the annotations say: the state of an optimizer has no layout of its own in the first
  // step, and is found as the first step left it in the second.
  bool Take(ir::Graph& graph) const;

 private:
  struct Kind {
    int grid;
    Sharding sharding;
    absl::InlinedVector<int64_t, 5> shards;  // by dimension
  };
  bool Fits(const ir::Graph& graph) const;

  ir::Fingerprint ops_;
  std::vector<Kind> kinds_;
  std::vector<int> kind_of_;  // by value
  // Values of which some shards differ in size, and their sizes.
  std::vector<std::pair<ir::ValueId, Dims>> uneven_;
};
using AnnotationsPtr = std::shared_ptr<const Annotations>;

// Where a search ended, and from where it set out.
struct SearchedPlan {
  propagate::Preference preference = propagate::Preference::kActivations;
  std::vector<propagate::Proposal> proposals;
  IntoMade into_made = IntoMade::kDecompose;
  struct Node {
    int grid = 0;
    Choice choice;
    // The sizes of the factors, if some shards differ in size: the choice is for these.
    std::vector<int64_t> sizes;
  };
  std::vector<Node> nodes;  // of the graph that was searched, which the first passes made
  std::vector<AnnotationsPtr> propagated;  // what each propagation before the search gave
  AnnotationsPtr found;                    // those with which the plan was found
};

// Thread safety: thread-compatible.
class EarlierPlans {
 public:
  // What graphs that differ only in sizes have in common, with the machine's prices, and the sizes.
  // Settled annotations are left out: see Annotations::Take.
  struct Form {
    ir::Fingerprint common;
    std::vector<int64_t> sizes;
  };
  static Form FormOf(const ir::Graph& graph, const machine::Machine& machine);

  // The plan of a graph whose sizes are at least half of those of `form` and at most twice; null if
  // there is none.
  std::shared_ptr<const SearchedPlan> Find(const Form& form) const;
  // Keeps the plan in place of an earlier one of the same form. The oldest ones are forgotten when
  // there are more than kMaxNodes nodes in all.
  void Add(Form form, std::shared_ptr<const SearchedPlan> plan);
  void Clear() { *this = {}; }

 private:
  static constexpr size_t kMaxNodes = 50'000;  // some 10 MB

  struct Kept {
    std::vector<int64_t> sizes;
    std::shared_ptr<const SearchedPlan> plan;
  };
  absl::flat_hash_map<ir::Fingerprint, Kept> plans_;
  std::deque<ir::Fingerprint> order_;  // of plans_, the oldest first
  size_t nodes_ = 0;                   // of all plans
};

}  // namespace spmd::partition
