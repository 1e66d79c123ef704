// SPDX-License-Identifier: Apache-2.0
// PyTorch's schema of an op: which operands and attributes it takes, and their types.
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
  // kOther is a device, a layout or a generator, which graphs do not hold.
  enum class Type : uint8_t { kTensor, kInt, kFloat, kBool, kScalar, kString, kDType, kOther };

  std::string name;
  std::string text;  // the type as the schema writes it: "SymInt[2]?"
  Type type = Type::kOther;
  bool is_list = false;
  int size = 0;  // of a list; 0 if any
  bool optional = false;
  bool items_optional = false;  // "Tensor?[]"
  bool has_default = false;
};

struct Signature {
  std::vector<Parameter> parameters;
  int results = 0;
  bool results_are_lists = false;  // then a call may have any number of results

  // Errors: InvalidArgument with the offending text.
  static absl::StatusOr<Signature> Parse(absl::string_view schema);
};

// The signature of `op`, or null if it has no built-in rule.
// Thread safety: safe.
const Signature* FindSignature(absl::string_view op);

// Errors: InvalidArgument naming the call and what does not fit: a missing or extra operand, an
// attribute that is missing, unknown or of another type, a number of results. Optional operands may
// be left out at the end, and attributes that have a default.
absl::Status CheckSignature(const Signature& signature, const OpCall& call);

}  // namespace spmd::rules
