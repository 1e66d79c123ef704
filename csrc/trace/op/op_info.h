// SPDX-License-Identifier: Apache-2.0
// What the trace knows of an operator, read from its schema once: which arguments are tensors,
// which are written, and which op computes the same without writing.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/trace/op/number_arguments.h"

namespace spmd::trace {

enum class ArgKind : uint8_t {
  kTensor,      // Tensor, Tensor?
  kTensorList,  // Tensor[], Tensor?[]
  kGenerator,
  kDropped,  // where or how a result is stored, not what it is: device, layout, …
  kOther,
};

struct ArgInfo {
  std::string name;
  ArgKind kind = ArgKind::kOther;
  bool written = false;
  NumberArgument number;
  bool is_dtype = false;  // a ScalarType, which schemas show as an int
};

struct OpInfo;
struct SessionState;

// Does an op in a way of its own. Requires: the session's lock is held; the arguments of the op are
// on top of the stack.
using Handler = void (*)(SessionState& state, const OpInfo& op, torch::jit::Stack* stack);

struct OpInfo {
  OpInfo(c10::OperatorHandle h, int64_t number);

  c10::OperatorHandle handle;
  int64_t number;       // a hash of the name; stands for the op in keys
  std::string name;     // "aten::add_.Tensor"
  std::string ir_name;  // the name in graphs, where a copy of a view is the view
  std::vector<ArgInfo> args;
  std::vector<int> written;       // argument numbers, in order
  std::vector<int> result_alias;  // per result: the written argument that it returns, or -1
  std::vector<bool> result_is_list;
  int fresh_results = 0;    // results that are not written arguments
  bool is_out = false;      // foo.out(…, *, Tensor(a!) out)
  bool is_view = false;     // some result aliases an argument without a write
  bool is_foreach = false;  // aten::_foreach_…: one op per element of its lists
  bool only_tensors_result = true;
  bool copies_tensor = false;     // the result is a copy of the first argument, and has its mark
  bool casts = false;             // it may change the element type
  bool elementwise = false;       // according to its rule
  StartArgument start;            // a number of elements that is known until it changes
  bool must_run_on_host = false;  // result shapes depend on data, or draws random numbers
  // At the border of a manual region, by the names of its arguments: see
  // csrc/trace/op/manual_axes.h.
  enum class Border : uint8_t { kNone, kEnters, kLeaves };
  Border border = Border::kNone;
  Handler handler = nullptr;  // null for the generic kernel
  bool replayable = true;     // see csrc/trace/recorder/replay.h

  // The op that returns the fresh results, then the new values of the written arguments. It is this
  // op if this op writes nothing, and null if PyTorch has none.
  const OpInfo* functional() const;
  // The overload that takes argument `arg` as a Scalar (add.Tensor → add.Scalar), or null.
  const OpInfo* WithScalar(int arg) const;
  int FindArg(const std::string& name) const;  // -1 when there is none

 private:
  mutable int functional_state_ = 0;  // 0 unknown, 1 known
  mutable const OpInfo* functional_ = nullptr;
  mutable std::vector<std::pair<int, const OpInfo*>> scalar_variants_;
};

// The information about an op, made at first use and never freed. Thread safety: guarded by the
// session's lock, or called during registration.
const OpInfo& OpInfoFor(const c10::OperatorHandle& handle);
OpInfo& MutableOpInfo(const c10::OperatorHandle& handle);
// The op with this name, as the dispatcher writes it; null if there is none.
const OpInfo* FindOp(const std::string& name);
// FindOp for names that must exist.
const OpInfo& GetOp(const std::string& name);

}  // namespace spmd::trace
