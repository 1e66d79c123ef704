// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/op_call.h"

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd::rules {

OpCall OpCall::Of(const ir::Graph& graph, const ir::Node& node) {
  OpCall call;
  call.op = node.op;
  for (ir::ValueId v : node.operands) {
    call.operands.push_back(v == ir::kNoValue ? nullptr : &graph.type(v));
  }
  call.groups.assign(node.groups.begin(), node.groups.end());
  call.attributes = &node.attributes;
  for (int k = 0; k < node.num_results; ++k) {
    call.results.push_back(graph.type(node.first_result + k));
  }
  return call;
}

const TensorType& OpCall::operand(int i) const {
  SPMD_REQUIRE(has(i), "operand ", i, " is absent");
  return *operands[i];
}

int64_t OpCall::Dim(absl::string_view name, int rank) const {
  return Wrapped(attrs().GetInt(name), name, rank);
}

int64_t OpCall::Wrapped(int64_t dim, absl::string_view name, int rank) const {
  const int64_t span = rank == 0 ? 1 : rank;  // PyTorch reads 0 and -1 as the "dim" of a scalar
  SPMD_REQUIRE(-span <= dim && dim < span, std::string(name.data(), name.size()), "=", dim,
               " is out of range for rank ", rank);
  return dim < 0 ? dim + span : dim;
}

std::string OpCall::ToString() const {
  std::string text = absl::StrCat(op, "(");
  for (size_t i = 0; i < operands.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", operands[i] ? operands[i]->ToString() : "_");
  }
  if (attributes != nullptr && !attributes->empty()) {
    absl::StrAppend(&text, operands.empty() ? "" : ", ", attributes->ToString());
  }
  return text + ")";
}

}  // namespace spmd::rules
