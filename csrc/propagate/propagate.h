// SPDX-License-Identifier: Apache-2.0
// A sharding for every value, and why.
//
// Committed and settled annotations are the seeds. Per op, dimension shardings and factor shardings
// are translated into each other by the op's rule; per factor, the longest list of axes on which
// the tensors agree is taken and given to all that have the factor. Stages, each run to a fixed
// point, forwards and backwards: element-wise and view ops; pass factors of every op; reduced
// factors; broadcasts. A later stage never undoes an earlier one. Committed dims that are closed do
// not grow.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::propagate {

// Why value v carries axis a on dimension d: it came over `node` (or the buffer edge) from `from`.
struct Reason {
  ir::ValueId value;
  int dim;
  AxisId axis;
  ir::ValueId from = ir::kNoValue;  // kNoValue: the annotation itself
  ir::NodeId via = ir::kNoNode;     // kNoNode with `from` set: the update edge of a buffer
  absl::string_view stage;          // a literal
};

// Thread safety: thread-compatible.
class Reasons {
 public:
  void Add(Reason reason) { reasons_.push_back(std::move(reason)); }
  // The chain from `value` back to an annotation, one line per step, in the user's vocabulary.
  std::string Explain(const ir::Graph& graph, ir::ValueId value) const;

 private:
  std::vector<Reason> reasons_;
};

// Who keeps an axis that two tensors of an op want for different factors.
enum class Preference {
  // What is made anew at each step goes before what is kept from step to step (an input that an
  // output replaces): weights can be brought while other work runs. Then the larger tensor.
  kActivations,
  kLarger,
};

// A sharding that nobody asked for, to start from beside the annotations.
struct Proposal {
  ir::ValueId value;
  int grid;
  Sharding sharding;
  bool may_grow = true;
};

// Annotates every value of `graph` (kDerived where nothing else was). Deterministic. `factors`: the
// graph's, by ComputeFactors.
// `preference_decided`: set to whether the preference kActivations ever chose another tensor than
// kLarger would; where not, both annotate alike.
void Propagate(ir::Graph& graph, const std::vector<NodeFactors>& factors, Reasons& reasons,
               Preference preference = Preference::kActivations,
               absl::Span<const Proposal> proposals = {}, bool* preference_decided = nullptr);

}  // namespace spmd::propagate
