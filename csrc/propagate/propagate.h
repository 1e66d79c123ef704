// SPDX-License-Identifier: Apache-2.0
// Finds a sharding for every value of a graph, and records why.
//
// Propagation starts from the committed and settled annotations. The rule of each op translates
// between the shardings of its tensors' dimensions and those of its factors. Per factor, the
// longest list of axes on which the tensors agree is given to every tensor that has the factor.
// There are four stages, each run to a fixed point forwards and backwards: element-wise and view
// ops; pass factors of every op; reduced factors; broadcasts. A later stage never undoes an earlier
// one. A closed dimension of a committed annotation does not grow.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/propagate/graph_factors.h"

namespace spmd::propagate {

// Why `value` is sharded over `axis` in dimension `dim`: the axis came from `from` across node
// `via`.
struct Reason {
  ir::ValueId value;
  int dim;
  AxisId axis;
  ir::ValueId from = ir::kNoValue;  // kNoValue: the annotation itself
  ir::NodeId via = ir::kNoNode;     // kNoNode with `from` set: through the update of a buffer
  absl::string_view stage;          // a string literal
};

// Thread safety: thread-compatible.
class Reasons {
 public:
  void Add(Reason reason) { reasons_.push_back(std::move(reason)); }
  // The words for a value in the text of Explain.
  using NameFn = std::function<std::string(ir::ValueId)>;
  // The chain from `value` back to an annotation, one line per step, in the words of the user's
  // spec. Values are named by `name_of`; if it is null, by their names in the graph, as "%x".
  std::string Explain(const ir::Graph& graph, ir::ValueId value,
                      const NameFn& name_of = nullptr) const;

 private:
  std::vector<Reason> reasons_;
};

// Which tensor keeps an axis that two tensors of an op want for different factors.
enum class Preference {
  // A value computed anew at each step beats state (an input that an output of this program or of a
  // later one replaces), since weights can be gathered while other work runs. Between equals, the
  // larger tensor.
  kActivations,
  kLarger,
};

// A sharding to start from that is not an annotation: the user did not ask for it.
struct Proposal {
  ir::ValueId value;
  int grid;
  Sharding sharding;
  bool may_grow = true;
};

// Annotates every value of `graph`; values without an annotation get Hold::kDerived. Deterministic.
// `factors` comes from ComputeFactors(graph). Sets `*preference_decided` to whether kActivations
// ever chose another tensor than kLarger would have; if false, both give the same annotations.
void Propagate(ir::Graph& graph, const std::vector<NodeFactors>& factors, Reasons& reasons,
               Preference preference = Preference::kActivations,
               absl::Span<const Proposal> proposals = {}, bool* preference_decided = nullptr);

}  // namespace spmd::propagate
