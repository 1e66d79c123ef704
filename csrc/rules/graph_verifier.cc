// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/graph_verifier.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "csrc/rules/registry.h"
#include "csrc/rules/signature.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

// A result that an output mask leaves out has no elements in the graph, whatever the rule infers.
bool IsLeftOut(const TensorType& type) { return type.rank() == 1 && type.dims[0] == 0; }

// The type of a result may depend on the kind of a run-time scalar, which is not known here.
bool HasRuntimeScalar(const OpCall& call) {
  return std::any_of(call.attrs().begin(), call.attrs().end(), [](const auto& item) {
    return std::holds_alternative<RuntimeScalar>(item.second);
  });
}

// True if the types differ only by PyTorch's default floating type, to which integers promote. The
// user may set it and the graph does not name it; the rules infer f32.
bool IsDefaultType(const OpCall& call, const TensorType& inferred, const TensorType& given) {
  const auto is_inexact = [](DType t) { return IsFloating(t) || IsComplex(t); };
  const bool same_kind = (IsFloating(inferred.dtype) && IsFloating(given.dtype)) ||
                         (IsComplex(inferred.dtype) && IsComplex(given.dtype));
  return same_kind && inferred.dims == given.dims &&
         std::none_of(call.operands.begin(), call.operands.end(), [&](const TensorType* operand) {
           return operand != nullptr && is_inexact(operand->dtype);
         });
}

absl::Status CheckTypes(const Rule& rule, const OpCall& call) {
  if (rule.types == nullptr) return absl::OkStatus();
  OpCall asked = call;
  asked.results.clear();
  SPMD_ASSIGN_OR_RETURN(const std::vector<TensorType> types, InferTypes(rule, asked));
  if (types.size() != call.results.size()) {
    return absl::InvalidArgumentError(absl::StrCat(call.ToString(), " gives ", types.size(),
                                                   " results, not ", call.results.size()));
  }
  for (size_t k = 0; k < types.size(); ++k) {
    if (types[k] == call.results[k] || IsLeftOut(call.results[k])) continue;
    if (IsDefaultType(call, types[k], call.results[k])) continue;
    if (HasRuntimeScalar(call) && types[k].dims == call.results[k].dims) continue;
    return absl::InvalidArgumentError(absl::StrCat(call.ToString(), " gives ", types[k].ToString(),
                                                   " as result ", k, ", not ",
                                                   call.results[k].ToString()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckCall(const Rule& rule, const OpCall& call) {
  if (const Signature* signature = FindSignature(call.op)) {
    SPMD_RETURN_IF_ERROR(CheckSignature(*signature, call));
  }
  SPMD_RETURN_IF_ERROR(CheckTypes(rule, call));
  return FactorsOf(rule, call).status();
}

absl::Status Verify(const ir::Graph& graph) {
  for (ir::NodeId id = 0; id < graph.num_nodes(); ++id) {
    const ir::Node& node = graph.node(id);
    const Rule* rule = Find(node.op);
    if (rule == nullptr) continue;
    const absl::Status status = CheckCall(*rule, OpCall::Of(graph, node));
    if (status.ok()) continue;
    const std::string result =
        node.num_results == 0 ? "" : absl::StrCat(" (%", graph.value(node.first_result).name, ")");
    return absl::InvalidArgumentError(
        absl::StrCat("verifier: node ", id, result, ": ", status.message()));
  }
  return absl::OkStatus();
}

}  // namespace spmd::rules
