// SPDX-License-Identifier: Apache-2.0
// PyTorch's own autograd nodes of the most frequent ops, and what each node keeps of a call.
//
// A node is the one that PyTorch's kernel would make, with its formula, name and hooks; its members
// are those of torch/csrc/autograd/generated/Functions.h. What is kept follows the formulas of
// tools/autograd/derivatives.yaml: an operand is kept if the gradient of an operand that needs one
// depends on it. `test_autograd_shortcuts.py` compares every node with PyTorch's.
#pragma once

#include <torch/csrc/autograd/generated/Functions.h>

#include <string>
#include <tuple>

#include "csrc/trace/unboxed_ops.h"

namespace spmd::trace {

namespace nodes = torch::autograd::generated;

// `operand` is a tensor or an optional tensor.
template <typename T>
torch::autograd::SavedVariable Saved(const T& operand) {
  return {operand, /*is_output=*/false};
}
inline torch::autograd::SavedVariable SavedResult(const at::Tensor& result) {
  return {result, /*is_output=*/true};
}

// An op without a node here: PyTorch's kernel makes it. If an op has several results, the first one
// is differentiated.
template <typename Op>
struct Derivative {
  static constexpr bool kKnown = false;
};
template <typename NodeType>
struct DerivativeWith {
  static constexpr bool kKnown = true;
  // True if PyTorch has a formula for complex numbers, too.
  static constexpr bool kComplex = true;
  using Node = NodeType;
};

// a + alpha · b, a - alpha · b
template <typename Node>
struct SumDerivative : DerivativeWith<Node> {
  static void Save(Node& node, const at::Tensor& self, const at::Tensor& other,
                   const at::Scalar& alpha) {
    node.alpha = alpha;
    node.self_scalar_type = self.scalar_type();
    node.other_scalar_type = other.scalar_type();
  }
};
template <>
struct Derivative<ops::add_Tensor> : SumDerivative<nodes::AddBackward0> {};
template <>
struct Derivative<ops::sub_Tensor> : SumDerivative<nodes::SubBackward0> {};

template <>
struct Derivative<ops::mul_Tensor> : DerivativeWith<nodes::MulBackward0> {
  static void Save(Node& node, const at::Tensor& self, const at::Tensor& other) {
    node.self_scalar_type = self.scalar_type();
    node.other_scalar_type = other.scalar_type();
    if (node.should_compute_output(0)) node.other_ = Saved(other);
    if (node.should_compute_output(1)) node.self_ = Saved(self);
  }
};

template <>
struct Derivative<ops::div_Tensor> : DerivativeWith<nodes::DivBackward0> {
  static void Save(Node& node, const at::Tensor& self, const at::Tensor& other) {
    node.self_scalar_type = self.scalar_type();
    node.other_ = Saved(other);
    if (node.should_compute_output(1)) node.self_ = Saved(self);
  }
};

// Ops with one operand, whose nodes keep nothing, the operand, or the result.
template <typename Node>
struct DerivativeOfNothing : DerivativeWith<Node> {
  static void Save(Node&, const at::Tensor&) {}
};
template <typename Node>
struct DerivativeOfOperand : DerivativeWith<Node> {
  static void Save(Node& node, const at::Tensor& self) { node.self_ = Saved(self); }
};
template <typename Node>
struct DerivativeOfResult : DerivativeOfNothing<Node> {
  static void SaveResult(Node& node, const at::Tensor& result) {
    node.result_ = SavedResult(result);
  }
};
template <>
struct Derivative<ops::neg> : DerivativeOfNothing<nodes::NegBackward0> {};
template <>
struct Derivative<ops::silu> : DerivativeOfOperand<nodes::SiluBackward0> {
  static constexpr bool kComplex = false;
};
template <>
struct Derivative<ops::exp> : DerivativeOfResult<nodes::ExpBackward0> {};
template <>
struct Derivative<ops::relu> : DerivativeOfResult<nodes::ReluBackward0> {
  static constexpr bool kComplex = false;
};
template <>
struct Derivative<ops::sigmoid> : DerivativeOfResult<nodes::SigmoidBackward0> {};
template <>
struct Derivative<ops::tanh> : DerivativeOfResult<nodes::TanhBackward0> {};

template <>
struct Derivative<ops::linear> : DerivativeWith<nodes::LinearBackward0> {
  static constexpr bool kComplex = false;
  static void Save(Node& node, const at::Tensor& input, const at::Tensor& weight,
                   const std::optional<at::Tensor>&) {
    node.input_ = Saved(input);
    node.weight_ = Saved(weight);
  }
};

template <>
struct Derivative<ops::native_layer_norm> : DerivativeWith<nodes::NativeLayerNormBackward0> {
  static constexpr bool kComplex = false;
  static void Save(Node& node, const at::Tensor& input, c10::SymIntArrayRef normalized_shape,
                   const std::optional<at::Tensor>& weight, const std::optional<at::Tensor>& bias,
                   double) {
    node.bias_ = Saved(bias);
    node.input_ = Saved(input);
    node.normalized_shape = normalized_shape.vec();
    node.weight_ = Saved(weight);
  }
  static void SaveResult(Node& node, const std::tuple<at::Tensor, at::Tensor, at::Tensor>& result) {
    node.result1_ = SavedResult(std::get<1>(result));
    node.result2_ = SavedResult(std::get<2>(result));
  }
};

template <>
struct Derivative<ops::clone> : DerivativeWith<nodes::CloneBackward0> {
  static void Save(Node&, const at::Tensor&, std::optional<at::MemoryFormat>) {}
};

// Views and similar ops.
template <typename Node>
struct DerivativeOfSizes : DerivativeWith<Node> {
  template <typename... Args>
  static void Save(Node& node, const at::Tensor& self, const Args&...) {
    node.self_sym_sizes = self.sym_sizes().vec();
  }
};
template <>
struct Derivative<ops::view> : DerivativeOfSizes<nodes::ViewBackward0> {};
template <>
struct Derivative<ops::_unsafe_view> : DerivativeOfSizes<nodes::UnsafeViewBackward0> {};
template <>
struct Derivative<ops::_reshape_copy> : DerivativeOfSizes<nodes::ReshapeCopyBackward0> {};
template <>
struct Derivative<ops::expand> : DerivativeOfSizes<nodes::ExpandBackward0> {};
template <>
struct Derivative<ops::t> : DerivativeOfNothing<nodes::TBackward0> {};
template <>
struct Derivative<ops::transpose_int> : DerivativeWith<nodes::TransposeBackward0> {
  static void Save(Node& node, const at::Tensor&, int64_t dim0, int64_t dim1) {
    node.dim0 = dim0;
    node.dim1 = dim1;
  }
};
template <>
struct Derivative<ops::permute> : DerivativeWith<nodes::PermuteBackward0> {
  static void Save(Node& node, const at::Tensor&, at::IntArrayRef dims) { node.dims = dims.vec(); }
};
template <>
struct Derivative<ops::unsqueeze> : DerivativeWith<nodes::UnsqueezeBackward0> {
  static void Save(Node& node, const at::Tensor&, int64_t dim) { node.dim = dim; }
};
template <>
struct Derivative<ops::squeeze_dim> : DerivativeOfSizes<nodes::SqueezeBackward1> {
  static void Save(Node& node, const at::Tensor& self, int64_t dim) {
    DerivativeOfSizes::Save(node, self);
    node.dim = dim;
  }
};
template <>
struct Derivative<ops::select_int> : DerivativeOfSizes<nodes::SelectBackward0> {
  static void Save(Node& node, const at::Tensor& self, int64_t dim, const c10::SymInt& index) {
    DerivativeOfSizes::Save(node, self);
    node.dim = dim;
    node.index = index;
  }
};
template <>
struct Derivative<ops::slice_Tensor> : DerivativeOfSizes<nodes::SliceBackward0> {
  static void Save(Node& node, const at::Tensor& self, int64_t dim,
                   const std::optional<c10::SymInt>& start, const std::optional<c10::SymInt>& end,
                   const c10::SymInt& step) {
    DerivativeOfSizes::Save(node, self);
    node.dim = dim;
    node.start = start;
    node.end = end;
    node.step = step;
  }
};

template <typename Node>
struct DerivativeOfParts : DerivativeWith<Node> {
  static void Save(Node& node, const at::Tensor& self, int64_t dim) {
    node.dim = dim;
    node.self_options = self.options();
    node.self_sym_sizes = self.sym_sizes().vec();
  }
};
template <>
struct Derivative<ops::split_Tensor> : DerivativeOfParts<nodes::SplitBackward0> {
  static void Save(Node& node, const at::Tensor& self, const c10::SymInt& size, int64_t dim) {
    DerivativeOfParts::Save(node, self, dim);
    node.split_size = size;
  }
};
template <>
struct Derivative<ops::split_with_sizes> : DerivativeOfParts<nodes::SplitWithSizesBackward0> {
  static void Save(Node& node, const at::Tensor& self, c10::SymIntArrayRef sizes, int64_t dim) {
    DerivativeOfParts::Save(node, self, dim);
    node.split_sizes = sizes.vec();
  }
};
template <>
struct Derivative<ops::unbind_int> : DerivativeWith<nodes::UnbindBackward0> {
  static void Save(Node& node, const at::Tensor&, int64_t dim) { node.dim = dim; }
};

template <>
struct Derivative<ops::_scaled_dot_product_fused_attention_overrideable>
    : DerivativeWith<nodes::ScaledDotProductFusedAttentionOverrideableBackward0> {
  static constexpr bool kComplex = false;
  static void Save(Node& node, const at::Tensor& query, const at::Tensor& key,
                   const at::Tensor& value, const std::optional<at::Tensor>& attn_bias,
                   double dropout_p, bool is_causal, bool, std::optional<double> scale) {
    node.attn_bias_ = Saved(attn_bias);
    node.dropout_p = dropout_p;
    node.is_causal = is_causal;
    node.key_ = Saved(key);
    node.query_ = Saved(query);
    node.scale = scale;
    node.value_ = Saved(value);
  }
  static void SaveResult(
      Node& node, const std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt,
                                   c10::SymInt, at::Tensor, at::Tensor, at::Tensor>& result) {
    node.output_ = SavedResult(std::get<0>(result));
    node.logsumexp_ = SavedResult(std::get<1>(result));
    node.cum_seq_q_ = SavedResult(std::get<2>(result));
    node.cum_seq_k_ = SavedResult(std::get<3>(result));
    node.max_q = std::get<4>(result);
    node.max_k = std::get<5>(result);
    node.philox_seed_ = SavedResult(std::get<6>(result));
    node.philox_offset_ = SavedResult(std::get<7>(result));
  }
};

template <>
struct Derivative<ops::gelu> : DerivativeWith<nodes::GeluBackward0> {
  static constexpr bool kComplex = false;
  static void Save(Node& node, const at::Tensor& self, std::string_view approximate) {
    node.approximate = std::string(approximate);
    node.self_ = Saved(self);
  }
};

}  // namespace spmd::trace
