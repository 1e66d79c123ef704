// SPDX-License-Identifier: Apache-2.0
// Rewrites chains that merge dimensions, work on the merged one and split it again, so that they
// work on the dimensions before the merge. Then each of these may be sharded, not only the first.
//
// and other users of %1, %2 or %3 get a view of the unmerged value. The chains may contain views,
// permutations, batched products, element-wise ops, sums over the merged dimension, softmax and
// cross entropy; what each op does with its dimensions is a fact about it
// (rules::DimsUse).
#pragma once

#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/rules/builder.h"

namespace spmd::partition {

// One Rewrite uses it, for each node in order.
class Unmerger {
 public:
  // The values that replace the node's results, or nullopt to keep the node. `operands` are the
  // node's operands in the new graph. Nodes with an annotated result are kept.
  std::optional<std::vector<ir::ValueId>> Replace(rules::Builder& builder, const ir::Graph& old,
                                                  const ir::Node& node,
                                                  absl::Span<const ir::ValueId> operands);

 private:
  // Describes a value that is a view of `source` with the dimensions [first, first + count) merged
  // into one.
  struct Merge {
    ir::ValueId source = ir::kNoValue;
    int first = 0;
    int count = 0;
  };

  const Merge* Find(ir::ValueId v) const;
  // The merge that all operands have in common, except absent ones and those of rank 0: the same
  // dimensions are merged. `sources` receives their sources. nullopt if the merges differ or no
  // operand is merged.
  std::optional<Merge> Common(rules::Builder& builder, absl::Span<const ir::ValueId> operands,
                              std::vector<ir::ValueId>* sources) const;
  std::optional<ir::ValueId> OneResult(rules::Builder& builder, const ir::Graph& old,
                                       const ir::Node& node,
                                       absl::Span<const ir::ValueId> operands);
  ir::ValueId View(rules::Builder& builder, const TensorType& type, ir::ValueId v);
  // For a view that is a constraint: a view of the source of its operand, always as a node of its
  // own.
  std::optional<std::vector<ir::ValueId>> ViewOfSource(rules::Builder& builder,
                                                       const TensorType& type, ir::ValueId v);
  std::optional<ir::ValueId> Permute(rules::Builder& builder, const ir::Node& node, ir::ValueId v);
  std::optional<ir::ValueId> Batch(rules::Builder& builder, absl::string_view batched,
                                   ir::ValueId a, ir::ValueId b);
  std::optional<ir::ValueId> Elementwise(rules::Builder& builder, const ir::Graph& old,
                                         const ir::Node& node,
                                         absl::Span<const ir::ValueId> operands);
  std::optional<ir::ValueId> Sum(rules::Builder& builder, const ir::Node& node, ir::ValueId v);
  std::optional<ir::ValueId> Along(rules::Builder& builder, const ir::Node& node,
                                   absl::Span<const ir::ValueId> operands);
  std::optional<std::vector<ir::ValueId>> ClassOfRow(rules::Builder& builder, const ir::Node& node,
                                                     absl::Span<const ir::ValueId> operands);
  // The view of merge.source with its dimensions merged again, which is remembered as a merge.
  ir::ValueId MergeAgain(rules::Builder& builder, Merge merge);

  absl::flat_hash_map<ir::ValueId, Merge> merges_;
  // For views that are not merges: the value that they view.
  absl::flat_hash_map<ir::ValueId, ir::ValueId> views_;
};

}  // namespace spmd::partition
