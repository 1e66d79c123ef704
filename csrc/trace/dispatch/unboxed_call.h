// SPDX-License-Identifier: Apache-2.0
// Calls whose arguments are C++ values, as kernels without a stack get them.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <new>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/types/span.h"
#include "csrc/trace/dispatch/kernel.h"

namespace spmd::trace {

template <typename T>
constexpr bool kIsTensor = std::is_same_v<std::decay_t<T>, at::Tensor>;
template <typename T>
constexpr bool kIsOptionalTensor = std::is_same_v<std::decay_t<T>, std::optional<at::Tensor>>;
template <typename T>
constexpr bool kIsTensors = std::is_same_v<std::decay_t<T>, at::TensorList>;
template <typename T>
constexpr bool kIsTensorVector = std::is_same_v<T, std::vector<at::Tensor>>;

// The arguments of a call as values. Tensors are borrowed without changing their reference counts,
// and lists of integers and tensors are not converted. The arguments must outlive the object.
template <size_t n>
class BorrowedArguments {
 public:
  template <typename... Args>
  explicit BorrowedArguments(const Args&... args) {
    size_t next = 0;
    (Set(next++, args), ...);
  }
  ~BorrowedArguments() {
    // Borrowed tensors were not counted, so their values are not destroyed.
    for (size_t i = 0; i < n; ++i) {
      if (!borrowed_[i]) value(i)->~IValue();
    }
  }
  BorrowedArguments(const BorrowedArguments&) = delete;

  CallArguments get() const {
    return {absl::MakeConstSpan(value(0), n),
            has_lists_ ? absl::MakeConstSpan(lists_) : absl::Span<const BorrowedList>()};
  }

 private:
  using Ints = at::IntArrayRef;
  using Borrow = c10::MaybeOwnedTraits<at::Tensor>;
  template <typename T>
  static constexpr bool kIsInts =
      std::is_same_v<T, at::IntArrayRef> || std::is_same_v<T, c10::SymIntArrayRef> ||
      std::is_same_v<T, at::OptionalIntArrayRef>;

  // nullopt if a number is symbolic, or if no list is given.
  static std::optional<Ints> PlainInts(Ints ints) { return ints; }
  static std::optional<Ints> PlainInts(c10::SymIntArrayRef ints) {
    return c10::asIntArrayRefSlowOpt(ints);
  }
  static std::optional<Ints> PlainInts(const at::OptionalIntArrayRef& ints) {
    return ints.has_value() ? std::optional<Ints>(*ints) : std::nullopt;
  }

  template <typename T>
  void Set(size_t i, const T& arg) {
    if constexpr (kIsTensor<T>) {
      new (value(i)) c10::IValue(Borrow::createBorrow(arg));
      borrowed_[i] = true;
    } else if constexpr (kIsOptionalTensor<T>) {
      if (arg.has_value()) return Set(i, *arg);
      new (value(i)) c10::IValue();
    } else if constexpr (kIsInts<T>) {
      const std::optional<Ints> ints = PlainInts(arg);
      if (ints.has_value()) return SetList(i, *ints);
      new (value(i)) c10::IValue(arg);
    } else if constexpr (kIsTensors<T>) {
      SetList(i, arg);
    } else {
      new (value(i)) c10::IValue(arg);
    }
  }
  void SetList(size_t i, BorrowedList list) {
    new (value(i)) c10::IValue();
    lists_[i] = list;
    has_lists_ = true;
  }
  c10::IValue* value(size_t i) const { return reinterpret_cast<c10::IValue*>(values_) + i; }

  alignas(c10::IValue) mutable std::byte values_[n * sizeof(c10::IValue)];
  std::array<bool, n> borrowed_{};
  std::array<BorrowedList, n> lists_;
  bool has_lists_ = false;
};

// True for an op that writes its first argument, which is a list or a tensor that it returns.
template <typename Result>
constexpr bool kWritesFirst = std::is_reference_v<Result> || std::is_void_v<Result>;

// What a call makes; nothing if it writes its first argument.
template <typename Result>
using Made = std::conditional_t<kWritesFirst<Result>, std::monostate, Result>;

template <typename Result>
constexpr bool kIsTensorTuple = false;
template <typename... Results>
constexpr bool kIsTensorTuple<std::tuple<Results...>> = (kIsTensor<Results> && ...);

// Makes the result from as many values as `Result` has parts.
template <typename Result>
Made<Result> MadeOf(c10::IValue* values) {
  if constexpr (kWritesFirst<Result>) {
    return {};
  } else if constexpr (kIsTensor<Result>) {
    return std::move(values[0]).toTensor();
  } else if constexpr (kIsTensorVector<Result>) {
    return std::move(values[0]).toTensorVector();
  } else {
    return [values]<size_t... k>(std::index_sequence<k...>) {
      return Result(std::move(values[k]).to<std::tuple_element_t<k, Result>>()...);
    }(std::make_index_sequence<std::tuple_size_v<Result>>());
  }
}

// True if the call was replayed from a recording; `made` is then its result.
template <typename Result, typename... Args>
bool ReplayCall(const OpInfo& op, Made<Result>& made, const Args&... args) {
  const BorrowedArguments<sizeof...(Args)> borrowed(args...);
  if constexpr (kWritesFirst<Result>) {
    return RunFromRecording(op, borrowed.get(), {});
  } else if constexpr (kIsTensor<Result>) {
    return RunFromRecording(op, borrowed.get(), {.each = absl::MakeSpan(&made, 1)});
  } else if constexpr (kIsTensorVector<Result>) {
    return RunFromRecording(op, borrowed.get(), {.tensors = &made});
  } else if constexpr (kIsTensorTuple<Result>) {
    std::array<at::Tensor, std::tuple_size_v<Result>> parts;
    if (!RunFromRecording(op, borrowed.get(), {.each = absl::MakeSpan(parts)})) return false;
    made = std::apply([](auto&... part) { return Result(std::move(part)...); }, parts);
    return true;
  } else {
    CallResults results;
    if (!RunFromRecording(op, borrowed.get(), {.list = &results})) return false;
    made = MadeOf<Result>(results.data());
    return true;
  }
}

// The first argument, which is what an op writes.
template <typename First, typename... Args>
First&& FirstOf(First&& first, Args&&...) {
  return std::forward<First>(first);
}

// `made`, or the tensor that was written.
template <typename Result, typename... Args>
Result Returned(Made<Result>& made, Args&&... args) {
  if constexpr (std::is_reference_v<Result>) {
    return FirstOf(args...);
  } else if constexpr (!std::is_void_v<Result>) {
    return std::move(made);
  }
}

}  // namespace spmd::trace
