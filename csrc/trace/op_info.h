// SPDX-License-Identifier: Apache-2.0
// What the trace knows of an operator, read off its schema once: which arguments are tensors, which
// are written, which op computes the same without writing.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "csrc/trace/number_arguments.h"

namespace spmd::trace {

enum class ArgKind : uint8_t {
  kTensor,      // Tensor, Tensor?
  kTensorList,  // Tensor[], Tensor?[]
  kGenerator,
  kDropped,  // says where or how a result lies, not what it is: device, layout, pin_memory, …
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
using Handler = void (*)(const OpInfo&, torch::jit::Stack*);

struct OpInfo {
  OpInfo(c10::OperatorHandle h, int64_t number);

  c10::OperatorHandle handle;
  int64_t number;       // dense; stands for the op in keys
  std::string name;     // "aten::add_.Tensor"
  std::string ir_name;  // of the op in graphs, which have no strides: a copy of a view is the view
  std::vector<ArgInfo> args;
  std::vector<int> written;       // argument numbers, in order
  std::vector<int> result_alias;  // per result: the written argument that it is, or -1
  std::vector<bool> result_is_list;
  int fresh_results = 0;    // results that are no written argument
  bool is_out = false;      // foo.out(…, *, Tensor(a!) out)
  bool is_view = false;     // some result aliases an argument without a write
  bool is_foreach = false;  // aten::_foreach_…: the same of each element of its lists
  bool only_tensors_result = true;
  bool elementwise = false;       // as its rule says
  bool must_run_on_host = false;  // result shapes depend on data, or draws random numbers
  Handler handler = nullptr;      // null: the generic kernel
  bool replayable = true;         // see csrc/trace/replay.h

  // The op that gives the fresh results, then the new values of the written arguments; this op
  // itself when it writes nothing; null when PyTorch has none.
  const OpInfo* functional() const;
  // The overload that takes argument `arg` as a Scalar (add.Tensor → add.Scalar), or null.
  const OpInfo* WithScalar(int arg) const;
  int FindArg(const std::string& name) const;  // -1 when there is none

 private:
  mutable int functional_state_ = 0;  // 0 unknown, 1 known
  mutable const OpInfo* functional_ = nullptr;
  mutable std::vector<std::pair<int, const OpInfo*>> scalar_variants_;
};

// Every op ever asked for, made at first use and never freed. Thread safety: the session's lock, or
// during registration.
const OpInfo& OpInfoFor(const c10::OperatorHandle& handle);
OpInfo& MutableOpInfo(const c10::OperatorHandle& handle);
// By name, as the dispatcher writes it. Null when there is no such op.
const OpInfo* FindOp(const std::string& name);
// FindOp for names that must exist.
const OpInfo& GetOp(const std::string& name);

}  // namespace spmd::trace
