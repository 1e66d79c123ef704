// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/unboxed_kernels.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_softmax_backward_data_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/_to_copy_ops.h>
#include <ATen/ops/_unsafe_view_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addcdiv_ops.h>
#include <ATen/ops/addcmul_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/clone_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/cos_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <ATen/ops/embedding_ops.h>
#include <ATen/ops/eq_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/ge_ops.h>
#include <ATen/ops/gelu_backward_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/gt_ops.h>
#include <ATen/ops/index_copy_ops.h>
#include <ATen/ops/index_select_ops.h>
#include <ATen/ops/le_ops.h>
#include <ATen/ops/lerp_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/ne_ops.h>
#include <ATen/ops/neg_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/reciprocal_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_backward_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/sin_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>

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
    CallResults results;
    {
      BorrowedArguments<sizeof...(Args)> borrowed(args...);
      if (RunFromRecording(*op_, borrowed.span(), results)) {
        return Taken<Result>(results.data(), args...);
      }
    }
    torch::jit::Stack stack;
    torch::jit::push(stack, args...);
    RunAndRecord(*op_, &stack);
    return Taken<Result>(stack.data(), args...);
  }

 private:
  template <typename R>
  static R Taken(c10::IValue* values, Args... args) {
    if constexpr (std::is_same_v<R, at::Tensor>) {
      return std::move(values[0]).toTensor();
    } else if constexpr (std::is_same_v<R, at::Tensor&>) {
      return std::get<0>(std::tie(args...));  // an op that writes returns what it wrote
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

template <typename... Ops>
Table TableOf() {
  Table table;
  (AddTo<Ops>(table), ...);
  return table;
}

}  // namespace

std::optional<c10::KernelFunction> UnboxedKernel(const OpInfo& op) {
  namespace ops = at::_ops;
  static const Table table = TableOf<
      // element by element
      ops::add_Tensor, ops::add__Tensor, ops::sub_Tensor, ops::sub__Tensor, ops::mul_Tensor,
      ops::mul__Tensor, ops::div_Tensor, ops::div__Tensor, ops::pow_Tensor_Scalar, ops::maximum,
      ops::minimum, ops::neg, ops::exp, ops::log, ops::sqrt, ops::rsqrt, ops::reciprocal, ops::sin,
      ops::cos, ops::tanh, ops::tanh_backward, ops::sigmoid, ops::relu, ops::relu_,
      ops::threshold_backward, ops::gelu, ops::gelu_backward, ops::silu, ops::silu_backward,
      ops::eq_Tensor, ops::eq_Scalar, ops::ne_Scalar, ops::lt_Tensor, ops::lt_Scalar,
      ops::le_Tensor, ops::gt_Scalar, ops::ge_Scalar, ops::where_self, ops::masked_fill_Scalar,
      ops::addcmul_, ops::addcdiv_, ops::lerp__Scalar,
      // products, sums, rows
      ops::mm, ops::bmm, ops::addmm, ops::linear, ops::sum_dim_IntList, ops::mean_dim,
      ops::embedding, ops::embedding_dense_backward, ops::index_select, ops::index_copy_,
      ops::native_layer_norm, ops::_softmax, ops::_softmax_backward_data,
      // views and copies
      ops::view, ops::_unsafe_view, ops::t, ops::transpose_int, ops::permute, ops::expand,
      ops::select_int, ops::slice_Tensor, ops::unsqueeze, ops::squeeze_dim, ops::clone, ops::copy_,
      ops::fill__Scalar, ops::zero_, ops::_to_copy>();
  const auto it = table.find(op.name);
  if (it == table.end()) return std::nullopt;
  return it->second(&op);
}

}  // namespace spmd::trace
