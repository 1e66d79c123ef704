// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/unboxed_kernels.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <array>
#include <cstddef>
#include <new>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "csrc/trace/kernel.h"
#include "csrc/trace/unboxed_ops.h"

namespace spmd::trace {

namespace {

template <typename T>
constexpr bool kIsTensor = std::is_same_v<std::decay_t<T>, at::Tensor>;
template <typename T>
constexpr bool kIsOptionalTensor = std::is_same_v<std::decay_t<T>, std::optional<at::Tensor>>;

using Borrow = c10::MaybeOwnedTraits<at::Tensor>;

// The arguments of a call as values, tensors without being counted. They must outlive it.
template <size_t n>
class BorrowedArguments {
 public:
  template <typename... Args>
  explicit BorrowedArguments(const Args&... args) {
    size_t next = 0;
    (Set(next++, args), ...);
  }
  ~BorrowedArguments() {
    // What is borrowed was never counted: it is left as it is.
    for (size_t i = 0; i < n; ++i) {
      if (!borrowed_[i]) value(i)->~IValue();
    }
  }
  BorrowedArguments(const BorrowedArguments&) = delete;

  absl::Span<const c10::IValue> span() const { return absl::MakeConstSpan(value(0), n); }

 private:
  template <typename T>
  void Set(size_t i, const T& arg) {
    if constexpr (kIsTensor<T>) {
      new (value(i)) c10::IValue(Borrow::createBorrow(arg));
      borrowed_[i] = true;
    } else if constexpr (kIsOptionalTensor<T>) {
      if (arg.has_value()) return Set(i, *arg);
      new (value(i)) c10::IValue();
    } else {
      new (value(i)) c10::IValue(arg);
    }
  }
  c10::IValue* value(size_t i) const { return reinterpret_cast<c10::IValue*>(values_) + i; }

  alignas(c10::IValue) mutable std::byte values_[n * sizeof(c10::IValue)];
  std::array<bool, n> borrowed_{};
};

template <typename Schema>
class Kernel;

template <typename Result, typename... Args>
class Kernel<Result(Args...)> final : public c10::OperatorKernel {
 public:
  explicit Kernel(const OpInfo* op) : op_(op) {}

  Result operator()(Args... args) {
    {
      const BorrowedArguments<sizeof...(Args)> borrowed(args...);
      if constexpr (std::is_same_v<Result, at::Tensor>) {
        at::Tensor result;
        if (RunFromRecording(*op_, borrowed.span(), {.tensor = &result})) return result;
      } else if constexpr (std::is_same_v<Result, at::Tensor&>) {
        if (RunFromRecording(*op_, borrowed.span(), {})) return Written(args...);
      } else {
        CallResults results;
        if (RunFromRecording(*op_, borrowed.span(), {.list = &results})) {
          return Taken<Result>(results.data(), args...);
        }
      }
    }
    torch::jit::Stack stack;
    torch::jit::push(stack, args...);
    RunAndRecord(*op_, &stack);
    return Taken<Result>(stack.data(), args...);
  }

 private:
  static at::Tensor& Written(Args... args) { return std::get<0>(std::tie(args...)); }
  template <typename R>
  static R Taken(c10::IValue* values, Args... args) {
    if constexpr (std::is_same_v<R, at::Tensor>) {
      return std::move(values[0]).toTensor();
    } else if constexpr (std::is_same_v<R, at::Tensor&>) {
      return Written(args...);
    } else {
      return TakenEach<R>(values, std::make_index_sequence<std::tuple_size_v<R>>());
    }
  }
  template <typename R, size_t... k>
  static R TakenEach(c10::IValue* values, std::index_sequence<k...>) {
    return R(std::move(values[k]).toTensor()...);
  }

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
