// SPDX-License-Identifier: Apache-2.0
// Carries chains that merge dimensions, work on them and split them again on the unmerged ones, so
// that every merged dimension may be cut, not only the first.
//
//   %1: f32[64,128,48] = aten::view(%q, size=[64,128,48])        %q: f32[8,8,128,48]
//   %2: f32[64,48,128] = aten::view(%k, size=[64,48,128])        %k: f32[8,8,48,128]
//   %3: f32[64,128,128] = aten::bmm(%1, %2)
//   %4: f32[8,8,128,128] = aten::view(%3, size=[8,8,128,128])
// becomes
//   %4: f32[8,8,128,128] = aten::matmul(%q, %k)
// and what else used %1, %2 or %3 gets a view of the unmerged value. Carried are views,
// permutations, batched products, element-wise ops, sums over the merged dimension, softmax and
// cross entropy.
#pragma once

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/builder.h"

namespace spmd::partition {

// Used by one Rewrite, node by node in order.
class Unmerger {
 public:
  // The values that replace the node's results, or nullopt to keep the node. `operands` are the
  // node's operands in the new graph. Nodes with an annotated result are kept.
  std::optional<std::vector<ir::ValueId>> Replace(rules::Builder& builder, const ir::Graph& old,
                                                  const ir::Node& node,
                                                  absl::Span<const ir::ValueId> operands);

 private:
  // A value that is a view of `source` with the dimensions [first, first + count) merged into one.
  struct Merge {
    ir::ValueId source = ir::kNoValue;
    int first = 0;
    int count = 0;
  };

  const Merge* Find(ir::ValueId v) const;
  // What all operands but absent ones and those of rank 0 have in common: the same dimensions,
  // merged. Their sources go to `sources`. nullopt when they differ, or none is a merge.
  std::optional<Merge> Common(rules::Builder& builder, absl::Span<const ir::ValueId> operands,
                              std::vector<ir::ValueId>* sources) const;
  std::optional<ir::ValueId> OneResult(rules::Builder& builder, const ir::Graph& old,
                                       const ir::Node& node,
                                       absl::Span<const ir::ValueId> operands);
  ir::ValueId View(rules::Builder& builder, const TensorType& type, ir::ValueId v);
  // A view that is a constraint: of what its operand is a view of. A node of its own, always.
  std::optional<std::vector<ir::ValueId>> ViewOfSource(rules::Builder& builder,
                                                       const TensorType& type, ir::ValueId v);
  std::optional<ir::ValueId> Permute(rules::Builder& builder, const ir::Node& node, ir::ValueId v);
  std::optional<ir::ValueId> Bmm(rules::Builder& builder, ir::ValueId a, ir::ValueId b);
  std::optional<ir::ValueId> Elementwise(rules::Builder& builder, const ir::Graph& old,
                                         const ir::Node& node,
                                         absl::Span<const ir::ValueId> operands);
  std::optional<ir::ValueId> Sum(rules::Builder& builder, const ir::Node& node, ir::ValueId v);
  std::optional<ir::ValueId> Softmax(rules::Builder& builder, const ir::Node& node,
                                     absl::Span<const ir::ValueId> operands);
  std::optional<std::vector<ir::ValueId>> CrossEntropy(rules::Builder& builder,
                                                       const ir::Node& node,
                                                       absl::Span<const ir::ValueId> operands);
  // `source` with its dimensions merged again, remembered as such.
  ir::ValueId MergeAgain(rules::Builder& builder, Merge merge);

  absl::flat_hash_map<ir::ValueId, Merge> merges_;
  // Views that are no merge themselves: of what they are views.
  absl::flat_hash_map<ir::ValueId, ir::ValueId> views_;
};

}  // namespace spmd::partition
