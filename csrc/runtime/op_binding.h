// SPDX-License-Identifier: Apache-2.0
// Binds a call instruction to its operator: where each argument of the schema comes from.
//
//   Tensor          the next operand
//   Tensor?         the next operand, or none (also where the attribute of that name is none)
//   Tensor[]        the next operand group
//   device          the tile's device
//   anything else   the attribute of that name, else the schema's default
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Scalar.h>

#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "csrc/program/program.h"
#include "csrc/rules/op_facts.h"

namespace spmd::runtime {

struct OpBinding {
  struct TensorArgument {
    int argument;
    int operand;
    bool optional;
  };
  struct GroupArgument {
    int argument;
    ir::OperandGroup group;
    bool optional_elements;
  };
  struct ScalarArgument {
    int argument;
    int slot;
    c10::TypePtr type;
  };
  struct ExpressionArgument {
    int argument;
    std::vector<Expr> expressions;
    bool is_list;
  };

  // `name` is the program's op, `op` the operator that is called for it: a program has no strides,
  // so `view` is called as `reshape`.
  std::string name;
  std::optional<c10::OperatorHandle> op;
  // The in-place form, if there is one: result k replaces the argument overwritten[k], and
  // overwritten[0] is 0.
  std::optional<c10::OperatorHandle> in_place;
  std::vector<int> overwritten;
  const rules::OpFacts* facts = nullptr;
  bool is_view = false;                // does almost no work
  bool may_need_python = false;        // a user's op: its kernel may be Python and need the GIL
  std::vector<c10::IValue> constants;  // one per argument of the schema; placeholders included
  std::vector<TensorArgument> tensors;
  std::vector<GroupArgument> groups;
  std::vector<ScalarArgument> scalars;
  std::vector<ExpressionArgument> expressions;
  std::vector<int> devices;  // the arguments that get the tile's device
};

// Errors: InvalidArgument naming the op of `call` and the argument that does not fit.
absl::StatusOr<OpBinding> Bind(const program::Instruction& call);

// Whether the op belongs to the namespace aten or spmd.
bool IsBuiltIn(absl::string_view op);

// The run-time scalar converted to an argument of `type`.
c10::IValue ScalarValue(const c10::Scalar& scalar, const c10::TypePtr& type);

}  // namespace spmd::runtime
