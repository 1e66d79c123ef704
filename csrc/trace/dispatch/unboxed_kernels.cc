// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/dispatch/unboxed_kernels.h"

#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "csrc/trace/dispatch/kernel.h"
#include "csrc/trace/dispatch/unboxed_call.h"
#include "csrc/trace/dispatch/unboxed_ops.h"

namespace spmd::trace {

namespace {

template <typename Schema>
class Kernel;

template <typename Result, typename... Args>
class Kernel<Result(Args...)> final : public c10::OperatorKernel {
 public:
  explicit Kernel(const OpInfo* op) : op_(op) {}

  Result operator()(Args... args) {
    if (op_->is_view) PrepareAutograd();
    if constexpr (std::is_void_v<Result>) CheckWritable(FirstOf(args...));
    Made<Result> made;
    if (!ReplayCall<Result>(*op_, made, args...)) {
      torch::jit::Stack stack;
      torch::jit::push(stack, args...);
      RunAndRecord(*op_, &stack);
      made = MadeOf<Result>(stack.data());
    }
    if constexpr (std::is_void_v<Result>) CountWrites(FirstOf(args...));
    return Returned<Result>(made, args...);
  }

 private:
  const OpInfo* op_;
};

using MakeKernel = c10::KernelFunction (*)(const OpInfo*);
using Table = absl::flat_hash_map<std::string, MakeKernel>;

template <typename Op>
void AddTo(Table& table) {
  const std::string overload = Op::overload_name;
  table.emplace(
      overload.empty() ? std::string(Op::name) : absl::StrCat(Op::name, ".", overload),
      [](const OpInfo* op) {
        using K = Kernel<typename Op::schema>;
        return c10::KernelFunction::makeFromUnboxedFunctor<false, K>(std::make_unique<K>(op));
      });
}

template <typename... Op>
Table TableOf(OpList<Op...>) {
  Table table;
  (AddTo<Op>(table), ...);
  return table;
}

}  // namespace

std::optional<c10::KernelFunction> UnboxedKernel(const OpInfo& op) {
  static const Table table = TableOf(UnboxedOps());
  const auto it = table.find(op.name);
  if (it == table.end()) return std::nullopt;
  return it->second(&op);
}

}  // namespace spmd::trace
