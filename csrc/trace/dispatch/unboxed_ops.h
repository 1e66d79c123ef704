// SPDX-License-Identifier: Apache-2.0
// The most frequent ops, which get kernels without a stack.
#pragma once

#include <ATen/ops/_foreach_add_ops.h>
#include <ATen/ops/_foreach_addcdiv_ops.h>
#include <ATen/ops/_foreach_addcmul_ops.h>
#include <ATen/ops/_foreach_div_ops.h>
#include <ATen/ops/_foreach_lerp_ops.h>
#include <ATen/ops/_foreach_mul_ops.h>
#include <ATen/ops/_foreach_neg_ops.h>
#include <ATen/ops/_foreach_norm_ops.h>
#include <ATen/ops/_foreach_sqrt_ops.h>
#include <ATen/ops/_reshape_copy_ops.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_fused_attention_overrideable_ops.h>
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
#include <ATen/ops/linear_backward_ops.h>
#include <ATen/ops/linear_ops.h>
#include <ATen/ops/log_ops.h>
#include <ATen/ops/lt_ops.h>
#include <ATen/ops/masked_fill_ops.h>
#include <ATen/ops/maximum_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/minimum_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_layer_norm_backward_ops.h>
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
#include <ATen/ops/split_ops.h>
#include <ATen/ops/split_with_sizes_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/tanh_backward_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/threshold_backward_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unbind_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <ATen/ops/where_ops.h>
#include <ATen/ops/zero_ops.h>

namespace spmd::trace {

template <typename... Op>
struct OpList {};

namespace ops = at::_ops;

using UnboxedOps = OpList<
    // element by element
    ops::add_Tensor, ops::add__Tensor, ops::sub_Tensor, ops::sub__Tensor, ops::mul_Tensor,
    ops::mul__Tensor, ops::div_Tensor, ops::div__Tensor, ops::pow_Tensor_Scalar, ops::maximum,
    ops::minimum, ops::neg, ops::exp, ops::log, ops::sqrt, ops::rsqrt, ops::reciprocal, ops::sin,
    ops::cos, ops::tanh, ops::tanh_backward, ops::sigmoid, ops::relu, ops::relu_,
    ops::threshold_backward, ops::gelu, ops::gelu_backward, ops::silu, ops::silu_backward,
    ops::eq_Tensor, ops::eq_Scalar, ops::ne_Scalar, ops::lt_Tensor, ops::lt_Scalar, ops::le_Tensor,
    ops::gt_Scalar, ops::ge_Scalar, ops::where_self, ops::masked_fill_Scalar, ops::addcmul_,
    ops::addcdiv_, ops::lerp__Scalar,
    // products, sums, rows
    ops::mm, ops::bmm, ops::addmm, ops::linear, ops::linear_backward, ops::sum_dim_IntList,
    ops::mean_dim, ops::embedding, ops::embedding_dense_backward, ops::index_select,
    ops::index_copy_, ops::native_layer_norm, ops::native_layer_norm_backward,
    ops::_scaled_dot_product_fused_attention_overrideable,
    ops::_scaled_dot_product_fused_attention_overrideable_backward, ops::_softmax,
    ops::_softmax_backward_data,
    // optimizers, on lists
    ops::_foreach_add__Scalar, ops::_foreach_add__List, ops::_foreach_mul__Scalar,
    ops::_foreach_mul__Tensor, ops::_foreach_div__ScalarList, ops::_foreach_addcmul__Scalar,
    ops::_foreach_addcdiv__Scalar, ops::_foreach_addcdiv__ScalarList, ops::_foreach_lerp__Scalar,
    ops::_foreach_sqrt, ops::_foreach_neg, ops::_foreach_norm_Scalar,
    // views and copies
    ops::view, ops::_unsafe_view, ops::_reshape_copy, ops::t, ops::transpose_int, ops::permute,
    ops::expand, ops::select_int, ops::slice_Tensor, ops::split_Tensor, ops::split_with_sizes,
    ops::unbind_int, ops::unsqueeze, ops::squeeze_dim, ops::clone, ops::copy_, ops::fill__Scalar,
    ops::zero_, ops::_to_copy>;

}  // namespace spmd::trace
