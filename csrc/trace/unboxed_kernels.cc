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

// Lists of integers that are plain numbers; none where one is symbolic, or no list is given.
std::optional<at::IntArrayRef> PlainInts(at::IntArrayRef ints) { return ints; }
std::optional<at::IntArrayRef> PlainInts(c10::SymIntArrayRef ints) {
  return c10::asIntArrayRefSlowOpt(ints);
}
std::optional<at::IntArrayRef> PlainInts(const at::OptionalIntArrayRef& ints) {
  return ints.has_value() ? std::optional<at::IntArrayRef>(*ints) : std::nullopt;
}
template <typename T>
constexpr bool kIsInts =
    std::is_same_v<T, at::IntArrayRef> || std::is_same_v<T, c10::SymIntArrayRef> ||
    std::is_same_v<T, at::OptionalIntArrayRef>;

using Borrow = c10::MaybeOwnedTraits<at::Tensor>;

// The arguments of a call as values, tensors without being counted, lists of integers without being
// made. They must outlive it.
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

  using Ints = at::IntArrayRef;
  CallArguments get() const {
    return {absl::MakeConstSpan(value(0), n),
            has_ints_ ? absl::MakeConstSpan(ints_) : absl::Span<const std::optional<Ints>>()};
  }

 private:
  template <typename T>
  void Set(size_t i, const T& arg) {
    if constexpr (kIsTensor<T>) {
      new (value(i)) c10::IValue(Borrow::createBorrow(arg));
      borrowed_[i] = true;
    } else if constexpr (kIsOptionalTensor<T>) {
      if (arg.has_value()) return Set(i, *arg);
      new (value(i)) c10::IValue();
    } else if constexpr (kIsInts<T>) {
      ints_[i] = PlainInts(arg);
      has_ints_ = has_ints_ || ints_[i].has_value();
      if (ints_[i].has_value()) {
        new (value(i)) c10::IValue();
      } else {
        new (value(i)) c10::IValue(arg);
      }
    } else {
      new (value(i)) c10::IValue(arg);
    }
  }
  c10::IValue* value(size_t i) const { return reinterpret_cast<c10::IValue*>(values_) + i; }

  alignas(c10::IValue) mutable std::byte values_[n * sizeof(c10::IValue)];
  std::array<bool, n> borrowed_{};
  std::array<std::optional<Ints>, n> ints_;
  bool has_ints_ = false;
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
        if (RunFromRecording(*op_, borrowed.get(), {.tensor = &result})) return result;
      } else if constexpr (std::is_same_v<Result, at::Tensor&>) {
        if (RunFromRecording(*op_, borrowed.get(), {})) return Written(args...);
      } else {
        CallResults results;
        if (RunFromRecording(*op_, borrowed.get(), {.list = &results})) {
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
