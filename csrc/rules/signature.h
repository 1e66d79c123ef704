// SPDX-License-Identifier: Apache-2.0
// What PyTorch's schema says of an op: which operands and attributes it takes, and of which types.
//
//   aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
//   aten::cat(Tensor[] tensors, int dim=0) -> Tensor
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/rules/op_call.h"

namespace spmd::rules {

struct Parameter {
  // kOther: a device, a layout, a generator: nothing that a graph holds.
  enum class Type : uint8_t { kTensor, kInt, kFloat, kBool, kScalar, kString, kDType, kOther };

  std::string name;
  std::string text;  // of the type, as the schema writes it: "SymInt[2]?"
  Type type = Type::kOther;
  bool is_list = false;
  int size = 0;  // of a list; 0: any
  bool optional = false;
  bool items_optional = false;  // "Tensor?[]"
  bool has_default = false;
};

struct Signature {
  std::vector<Parameter> parameters;
  int results = 0;
  bool results_are_lists = false;  // then there may be any number

  // Errors: InvalidArgument with the text that is no schema.
  static absl::StatusOr<Signature> Parse(absl::string_view schema);
};

// Null for an op that has no built-in rule. Thread safety: safe.
const Signature* FindSignature(absl::string_view op);

// Errors: InvalidArgument naming the call and what of it does not fit: an operand that is missing
// or too many, an attribute that is missing, unknown or of another type, a number of results. An
// optional operand may be left out at the end, an attribute where it has a default.
absl::Status CheckSignature(const Signature& signature, const OpCall& call);

}  // namespace spmd::rules
