// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/unmerge.h"

#include "csrc/rules/registry.h"

namespace spmd::partition {
namespace {

// The dimensions of `from`, at least two, that are merged into one of `to`, while all others are
// equal: `first` and `count` of them. count is 0 if the view does something else.
std::pair<int, int> MergedDims(const Dims& from, const Dims& to) {
  const int count = static_cast<int>(from.size()) - static_cast<int>(to.size()) + 1;
  if (count < 2 || to.empty()) return {0, 0};
  int first = 0;
  while (first < static_cast<int>(to.size()) && from[first] == to[first]) ++first;
  if (first == static_cast<int>(to.size())) return {0, 0};
  int64_t product = 1;
  for (int d = first; d < first + count; ++d) product *= from[d];
  if (product != to[first]) return {0, 0};
  for (size_t d = first + 1; d < to.size(); ++d) {
    if (from[d + count - 1] != to[d]) return {0, 0};
  }
  return {first, count};
}

}  // namespace

const Unmerger::Merge* Unmerger::Find(ir::ValueId v) const {
  const auto it = merges_.find(v);
  return it == merges_.end() ? nullptr : &it->second;
}

ir::ValueId Unmerger::MergeAgain(rules::Builder& builder, Merge merge) {
  const Dims& dims = builder.type(merge.source).dims;
  std::vector<int64_t> size(dims.begin(), dims.begin() + merge.first);
  size.push_back(1);
  for (int d = merge.first; d < merge.first + merge.count; ++d) size.back() *= dims[d];
  size.insert(size.end(), dims.begin() + merge.first + merge.count, dims.end());
  const ir::ValueId merged = builder.View(merge.source, std::move(size));
  merges_[merged] = merge;
  return merged;
}

ir::ValueId Unmerger::View(rules::Builder& builder, const TensorType& type, ir::ValueId v) {
  const Merge* merge = Find(v);
  const auto seen = views_.find(v);
  ir::ValueId source = merge == nullptr ? v : merge->source;
  if (seen != views_.end()) source = seen->second;
  const Dims& from = builder.type(source).dims;
  if (from == type.dims) return source;
  const auto [first, count] = MergedDims(from, type.dims);
  if (count == 0) {
    // A view of a view is a view of the source, which need not split what was merged.
    const ir::ValueId view = builder.View(source, ToVector(type.dims));
    views_[view] = source;
    return view;
  }
  return MergeAgain(builder, {source, first, count});
}

std::optional<std::vector<ir::ValueId>> Unmerger::ViewOfSource(rules::Builder& builder,
                                                               const TensorType& type,
                                                               ir::ValueId v) {
  const Merge* const merge = Find(v);
  const auto seen = views_.find(v);
  if (merge == nullptr && seen == views_.end()) return std::nullopt;
  const ir::ValueId source = seen != views_.end() ? seen->second : merge->source;
  if (builder.type(source).dims == type.dims) return std::nullopt;
  return std::vector<ir::ValueId>{builder.View(source, ToVector(type.dims))};
}

std::optional<ir::ValueId> Unmerger::Permute(rules::Builder& builder, const ir::Node& node,
                                             ir::ValueId v) {
  const Merge* found = Find(v);
  if (found == nullptr) return std::nullopt;
  const Merge merge = *found;
  const int rank = builder.rank(v);
  std::vector<int64_t> dims;
  Merge result{ir::kNoValue, 0, merge.count};
  for (int64_t d : node.attributes.GetInts("dims")) {
    if (d < 0) d += rank;
    if (d == merge.first) {
      result.first = static_cast<int>(dims.size());
      for (int k = 0; k < merge.count; ++k) dims.push_back(merge.first + k);
    } else {
      dims.push_back(d < merge.first ? d : d + merge.count - 1);
    }
  }
  result.source = builder.Permute(merge.source, std::move(dims));
  return MergeAgain(builder, result);
}

std::optional<ir::ValueId> Unmerger::Batch(rules::Builder& builder, absl::string_view batched,
                                           ir::ValueId a, ir::ValueId b) {
  const Merge* of_a = Find(a);
  const Merge* of_b = Find(b);
  auto merges_batch = [](const Merge* m) { return m != nullptr && m->first == 0; };
  if (!merges_batch(of_a) && !merges_batch(of_b)) return std::nullopt;
  const Merge lead = merges_batch(of_a) ? *of_a : *of_b;
  const Dims& from = builder.type(lead.source).dims;
  const std::vector<int64_t> batch(from.begin(), from.begin() + lead.count);
  auto split = [&](ir::ValueId v, const Merge* merge) {
    std::vector<int64_t> size = batch;
    const Dims& dims = builder.type(v).dims;
    size.insert(size.end(), dims.begin() + 1, dims.end());
    if (merges_batch(merge) && ToVector(builder.type(merge->source).dims) == size) {
      return merge->source;
    }
    return builder.View(v, std::move(size));
  };
  const ir::ValueId left = split(a, of_a), right = split(b, of_b);
  return MergeAgain(builder, {builder.Call(batched, {left, right}), 0, lead.count});
}

std::optional<Unmerger::Merge> Unmerger::Common(rules::Builder& builder,
                                                absl::Span<const ir::ValueId> operands,
                                                std::vector<ir::ValueId>* sources) const {
  std::optional<Merge> common;
  sources->assign(operands.begin(), operands.end());
  for (ir::ValueId& v : *sources) {
    if (v == ir::kNoValue || builder.rank(v) == 0) continue;
    const Merge* found = Find(v);
    if (found == nullptr) return std::nullopt;
    const bool same =
        !common || (found->first == common->first && found->count == common->count &&
                    builder.type(found->source).dims == builder.type(common->source).dims);
    if (!same) return std::nullopt;
    common = *found;
    v = found->source;
  }
  return common;
}

std::optional<ir::ValueId> Unmerger::Elementwise(rules::Builder& builder, const ir::Graph& old,
                                                 const ir::Node& node,
                                                 absl::Span<const ir::ValueId> operands) {
  const rules::Rule* rule = rules::Find(node.op);
  if (rule == nullptr || !rule->elementwise || rule->random || !node.groups.empty()) {
    return std::nullopt;
  }
  std::vector<ir::ValueId> sources;
  std::optional<Merge> merge = Common(builder, operands, &sources);
  if (!merge) return std::nullopt;
  merge->source = builder.Call(node.op, std::move(sources), node.attributes);
  if (builder.type(merge->source).dtype != old.type(node.first_result).dtype) return std::nullopt;
  return MergeAgain(builder, *merge);
}

// An op along a dimension that is not merged.
std::optional<ir::ValueId> Unmerger::Along(rules::Builder& builder, const ir::Node& node,
                                           absl::Span<const ir::ValueId> operands) {
  std::vector<ir::ValueId> sources;
  std::optional<Merge> merge = Common(builder, operands, &sources);
  if (!merge) return std::nullopt;
  int64_t dim = node.attributes.GetInt("dim");
  if (dim < 0) dim += builder.rank(operands[0]);
  if (dim == merge->first) return std::nullopt;
  Attributes attributes = node.attributes;
  attributes.Set("dim", dim < merge->first ? dim : dim + merge->count - 1);
  const rules::CombineFn combine = rules::Find(node.op)->combine;
  std::optional<ir::ValueId> combined;
  if (combine != nullptr) combined = combine(builder, sources, attributes);
  merge->source = combined ? *combined : builder.Call(node.op, sources, attributes);
  return MergeAgain(builder, *merge);
}

// A sum, or the like, over the merged dimension, after which nothing is left to merge again.
std::optional<ir::ValueId> Unmerger::Sum(rules::Builder& builder, const ir::Node& node,
                                         ir::ValueId v) {
  const Merge* merge = Find(v);
  if (merge == nullptr || node.attributes.GetBoolOr("keepdim", false)) return std::nullopt;
  std::vector<int64_t> dims;
  bool merged = false;
  for (int64_t d : node.attributes.GetIntsOr("dim", {})) {
    if (d < 0) d += builder.rank(v);
    const int64_t own = d <= merge->first ? d : d + merge->count - 1;
    const int count = d == merge->first ? merge->count : 1;
    merged = merged || d == merge->first;
    for (int k = 0; k < count; ++k) dims.push_back(own + k);
  }
  if (!merged) return std::nullopt;
  Attributes attributes = node.attributes;
  attributes.Set("dim", std::move(dims));
  return builder.Call(node.op, {merge->source}, std::move(attributes));
}

// Operand 1 is merged, and so is operand 0, which may have the classes as one more dimension.
std::optional<std::vector<ir::ValueId>> Unmerger::ClassOfRow(
    rules::Builder& builder, const ir::Node& node, absl::Span<const ir::ValueId> operands) {
  const bool has_classes = builder.rank(operands[0]) > builder.rank(operands[1]);
  const Merge* found = Find(operands[1]);
  if (found == nullptr) return std::nullopt;
  Merge merge = *found;
  std::vector<ir::ValueId> call(operands.begin(), operands.end());
  call[1] = merge.source;
  if (builder.rank(operands[0]) > 0) {
    const Merge* other = Find(operands[0]);
    if (other == nullptr || other->first != merge.first || other->count != merge.count) {
      return std::nullopt;
    }
    Dims rows = builder.type(other->source).dims;
    if (has_classes) rows.pop_back();
    if (rows != builder.type(merge.source).dims) return std::nullopt;
    call[0] = other->source;
  }
  std::vector<ir::ValueId> results = builder.CallAll(node.op, std::move(call), node.attributes);
  if (builder.rank(results[0]) == 0) return results;  // a sum over all rows
  merge.source = results[0];
  return std::vector<ir::ValueId>{MergeAgain(builder, merge)};
}

std::optional<ir::ValueId> Unmerger::OneResult(rules::Builder& builder, const ir::Graph& old,
                                               const ir::Node& node,
                                               absl::Span<const ir::ValueId> operands) {
  const TensorType& type = old.type(node.first_result);
  if (type.NumElements() == 0) return std::nullopt;
  const rules::OpFacts& facts = rules::FactsOf(node.op);
  switch (facts.dims) {
    case rules::DimsUse::kReshapes:
      return View(builder, type, operands[0]);
    case rules::DimsUse::kPermutes:
      return Permute(builder, node, operands[0]);
    case rules::DimsUse::kBatches:
      return Batch(builder, facts.batched, operands[0], operands[1]);
    case rules::DimsUse::kReduces:
      return Sum(builder, node, operands[0]);
    case rules::DimsUse::kAlong:
      return Along(builder, node, operands);
    case rules::DimsUse::kClassOfRow:
    case rules::DimsUse::kExpands:
    case rules::DimsUse::kFills:
    case rules::DimsUse::kForEach:
    case rules::DimsUse::kInDim:
    case rules::DimsUse::kOther:
      break;
  }
  return Elementwise(builder, old, node, operands);
}

std::optional<std::vector<ir::ValueId>> Unmerger::Replace(rules::Builder& builder,
                                                          const ir::Graph& old,
                                                          const ir::Node& node,
                                                          absl::Span<const ir::ValueId> operands) {
  const rules::DimsUse use = rules::FactsOf(node.op).dims;
  for (int r = 0; r < node.num_results; ++r) {
    if (!old.value(node.first_result + r).annotation) continue;
    if (use != rules::DimsUse::kReshapes) return std::nullopt;
    return ViewOfSource(builder, old.type(node.first_result), operands[0]);
  }
  if (use == rules::DimsUse::kClassOfRow) return ClassOfRow(builder, node, operands);
  if (node.num_results != 1) return std::nullopt;
  const std::optional<ir::ValueId> result = OneResult(builder, old, node, operands);
  if (!result) return std::nullopt;
  return std::vector<ir::ValueId>{*result};
}

}  // namespace spmd::partition
