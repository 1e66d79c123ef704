// SPDX-License-Identifier: Apache-2.0
#include "csrc/runtime/kernels/register.h"

#include <torch/library.h>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime {
namespace {

namespace k = kernels;

template <typename F>
void Define(torch::Library& library, const char* name, const char* schema, F&& kernel) {
  library.def(schema);
  library.impl(
      name, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, std::forward<F>(kernel)));
}

void DefineMatrixOps(torch::Library& l) {
  Define(l, "linear_dinput", "linear_dinput(Tensor grad, Tensor weight) -> Tensor",
         &k::LinearDInput);
  Define(l, "add_linear_dinput",
         "add_linear_dinput(Tensor sum, Tensor grad, Tensor weight) -> Tensor",
         &k::AddLinearDInput);
  Define(l, "add_linear_dinput_",
         "add_linear_dinput_(Tensor(a!) sum, Tensor grad, Tensor weight) -> Tensor(a!)",
         &k::AddLinearDInput_);
  Define(l, "linear_dweight", "linear_dweight(Tensor grad, Tensor input) -> Tensor",
         &k::LinearDWeight);
  Define(l, "grouped_mm",
         "grouped_mm(Tensor self, Tensor mat2, Tensor offsets, int first_group, int num_groups, "
         "int first_index) -> Tensor",
         &k::GroupedMatmul);
  Define(l, "conv_dinput",
         "conv_dinput(Tensor grad, Tensor weight, int[] input_size, int[] stride, int[] padding, "
         "int[] dilation, int groups, int[] crop_start) -> Tensor",
         &k::ConvDInput);
  Define(l, "conv_dweight",
         "conv_dweight(Tensor grad, Tensor input, int[] weight_size, int[] stride, int[] padding, "
         "int[] dilation, int groups) -> Tensor",
         &k::ConvDWeight);
  Define(l, "lstsq",
         "lstsq(Tensor a, Tensor b, float? rcond, str driver) -> (Tensor solution, Tensor "
         "residuals, Tensor rank, Tensor singular_values)",
         &k::Lstsq);
  Define(l, "attention",
         "attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal, "
         "float? scale) -> (Tensor out, Tensor logsumexp)",
         &k::Attention);
  Define(l, "attention_backward",
         "attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value, Tensor out, "
         "Tensor logsumexp, Tensor? attn_mask, bool is_causal, float? scale) -> (Tensor dq, "
         "Tensor dk, Tensor dv)",
         &k::AttentionBackward);
}

void DefineRandomOps(torch::Library& l) {
  Define(l, "random",
         "random(int[] size, int[] offset, int[] global_size, int seed, int counter, str "
         "distribution, float p0, float p1, ScalarType dtype, *, Device? device=None) -> Tensor",
         &k::Random);
  Define(l, "dropout",
         "dropout(Tensor input, float p, int seed, int counter, int[] offset, int[] global_size) "
         "-> (Tensor out, Tensor mask)",
         &k::Dropout);
  Define(l, "poisson",
         "poisson(Tensor rate, int seed, int counter, int[] offset, int[] global_size) -> Tensor",
         &k::Poisson);
  Define(l, "binomial",
         "binomial(Tensor count, Tensor prob, int seed, int counter, int[] offset, int[] "
         "global_size) -> Tensor",
         &k::Binomial);
  Define(l, "standard_gamma",
         "standard_gamma(Tensor alpha, int seed, int counter, int[] offset, int[] global_size) -> "
         "Tensor",
         &k::StandardGamma);
  Define(l, "dirichlet",
         "dirichlet(Tensor alpha, int seed, int counter, int[] offset, int[] global_size) -> "
         "Tensor",
         &k::Dirichlet);
}

void DefineIndexOps(torch::Library& l) {
  Define(l, "embedding",
         "embedding(Tensor weight, Tensor indices, int first_row, int num_rows=-1) -> Tensor",
         &k::Embedding);
  Define(l, "embedding_dweight",
         "embedding_dweight(Tensor grad, Tensor indices, int num_weights, int padding_idx, int "
         "first_row, int num_rows=-1) -> Tensor",
         &k::EmbeddingDWeight);
  Define(
      l, "nll_sum",
      "nll_sum(Tensor logp, Tensor target, Tensor? weight, int ignore_index, int first_class, int "
      "num_classes=-1) -> (Tensor loss_sum, Tensor weight_sum)",
      &k::NllSum);
  Define(
      l, "nll_rows",
      "nll_rows(Tensor logp, Tensor target, Tensor? weight, int ignore_index, int first_class, int "
      "num_classes=-1) -> Tensor",
      &k::NllRows);
  Define(l, "ctc_loss",
         "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
         "int blank, bool zero_infinity, int longest) -> (Tensor loss, Tensor log_alpha)",
         &k::CtcLoss);
  Define(l, "ctc_loss_backward",
         "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, "
         "Tensor target_lengths, Tensor loss, Tensor log_alpha, int blank, bool zero_infinity) -> "
         "Tensor",
         &k::CtcLossBackward);
  Define(l, "nll_dinput",
         "nll_dinput(Tensor grad, Tensor target, Tensor? weight, Tensor scale, int num_classes, "
         "int ignore_index, int first_class) -> Tensor",
         &k::NllDInput);
  Define(l, "cross_entropy_dinput",
         "cross_entropy_dinput(Tensor grad, Tensor logp, Tensor target, Tensor? weight, Tensor "
         "scale, int ignore_index, int first_class) -> Tensor",
         &k::CrossEntropyDInput);
}

void DefinePartOps(torch::Library& l) {
  Define(l, "gather_part",
         "gather_part(Tensor self, Tensor index, int dim, int first, int size) -> Tensor",
         &k::GatherPart);
  Define(l, "scatter_part",
         "scatter_part(Tensor self, Tensor index, Tensor src, int dim, str reduce, bool "
         "include_self, int first, int size) -> Tensor",
         &k::ScatterPart);
  Define(l, "index_reduce",
         "index_reduce(Tensor self, int dim, Tensor index, Tensor source, str reduce, *, bool "
         "include_self=True) -> Tensor",
         &k::IndexReduce);
  Define(l, "index_write_part",
         "index_write_part(Tensor self, Tensor index, Tensor source, int dim, str reduce, bool "
         "include_self, Scalar alpha, int first, int size) -> Tensor",
         &k::IndexWritePart);
  Define(l, "slice_part",
         "slice_part(Tensor self, int dim, int start, int length, int first, int size) -> Tensor",
         &k::SlicePart);
  Define(l, "slice_put_part",
         "slice_put_part(Tensor self, Tensor src, int dim, int start, int first, int size) -> "
         "Tensor",
         &k::SlicePutPart);
  Define(l, "slice_put_part_",
         "slice_put_part_(Tensor(a!) self, Tensor src, int dim, int start, int first, int size) "
         "-> Tensor(a!)",
         &k::SlicePutPart_);
  Define(l, "index_part",
         "index_part(Tensor self, Tensor?[] indices, int[] first, int[] size, bool "
         "may_be_negative, int[] batch=[]) -> Tensor",
         &k::IndexPart);
  Define(l, "index_put_part",
         "index_put_part(Tensor self, Tensor?[] indices, Tensor values, bool accumulate, int[] "
         "first, int[] size, bool may_be_negative, int[] batch=[]) -> Tensor",
         &k::IndexPutPart);
}

void DefineImageOps(torch::Library& l) {
  Define(l, "max_pool",
         "max_pool(Tensor input, int[] output_size, int[] kernel_size, int[] stride, int[] "
         "padding, int[] dilation, int[] offset, int[] plane) -> (Tensor out, Tensor indices)",
         &k::MaxPool);
  Define(l, "max_pool_dinput",
         "max_pool_dinput(Tensor grad, Tensor indices, int[] input_size, int[] kernel_size, int[] "
         "stride, int[] padding, int[] dilation, int[] offset, int[] plane) -> Tensor",
         &k::MaxPoolDInput);
  Define(l, "im2col",
         "im2col(Tensor image, int[] output_size, int[] kernel_size, int[] dilation, int[] "
         "padding, int[] stride) -> Tensor",
         &k::Im2Col);
  Define(l, "col2im",
         "col2im(Tensor columns, int[] size, int[] kernel_size, int[] dilation, int[] padding, "
         "int[] stride, int[] crop_start) -> Tensor",
         &k::Col2Im);
  Define(l, "resample",
         "resample(Tensor input, int dim, str filter, int step, int start, int stop, int unit, int "
         "num_in, int num_out, int from, int offset, int size) -> Tensor",
         &k::Resample);
  Define(l, "resample_dinput",
         "resample_dinput(Tensor grad, int dim, str filter, int step, int start, int stop, int "
         "unit, int num_in, int num_out, int from, int offset, int size) -> Tensor",
         &k::ResampleDInput);
}

void DefineNormOps(torch::Library& l) {
  Define(l, "channel_affine", "channel_affine(Tensor offset, Tensor x, Tensor factor) -> Tensor",
         &k::ChannelAffine);
  Define(l, "channel_squares", "channel_squares(Tensor x, Tensor mean) -> Tensor",
         &k::ChannelSquares);
  Define(l, "channel_moments", "channel_moments(Tensor x) -> (Tensor sum, Tensor squares)",
         &k::ChannelMoments);
  Define(l, "channel_products",
         "channel_products(Tensor grad, Tensor x, Tensor mean) -> (Tensor sum, Tensor product)",
         &k::ChannelProducts);
}

void DefineOptimizerOps(torch::Library& l) {
  Define(l, "adam",
         "adam(Tensor param, Tensor grad, Tensor exp_avg, Tensor exp_avg_sq, Tensor step, *, float "
         "lr, float beta1, float beta2, float weight_decay, float eps, bool decoupled, bool "
         "maximize) -> (Tensor param, Tensor exp_avg, Tensor exp_avg_sq)",
         &k::Adam);
  Define(l, "adam_",
         "adam_(Tensor(a!) param, Tensor grad, Tensor(b!) exp_avg, Tensor(c!) exp_avg_sq, Tensor "
         "step, *, float lr, float beta1, float beta2, float weight_decay, float eps, bool "
         "decoupled, bool maximize) -> (Tensor(a!) param, Tensor(b!) exp_avg, Tensor(c!) "
         "exp_avg_sq)",
         &k::Adam_);
}

void DefineSimpleOps(torch::Library& l) {
  Define(l, "iota",
         "iota(int size, Scalar start, Scalar step, int offset, ScalarType dtype, *, Device? "
         "device=None) -> Tensor",
         &k::Iota);
  Define(l, "full",
         "full(int[] size, Scalar value, ScalarType dtype, *, Device? device=None) -> Tensor",
         &k::Full);
  Define(l, "log_sigmoid_forward",
         "log_sigmoid_forward(Tensor self) -> (Tensor output, Tensor buffer)",
         &k::LogSigmoidForward);
  Define(l, "cast", "cast(Tensor x, ScalarType dtype) -> Tensor", &k::Cast);
  Define(l, "mul_.Scalar", "mul_.Scalar(Tensor(a!) self, Scalar other) -> Tensor(a!)",
         &k::MulScalar_);
  Define(l, "in_range", "in_range(Tensor x, float low, float high, str refusal) -> Tensor",
         &k::InRange);
  Define(l, "reorder", "reorder(Tensor x, int dim, int[] index) -> Tensor", &k::Reorder);
  Define(l, "to_local", "to_local(Tensor x, int[] size, str enter, str mesh) -> Tensor",
         &k::AtBorder);
  Define(l, "to_global", "to_global(Tensor x, int[] size, str leave, str mesh) -> Tensor",
         &k::AtBorder);
  Define(l, "roll_start",
         "roll_start(Tensor x, Tensor beside, int dim, int shift, int reach, int size) -> Tensor",
         &k::RollStart);
  Define(l, "slice_start", "slice_start(Tensor x, int dim, int start, int length) -> Tensor",
         &k::SliceStart);
  Define(l, "slice_start_scatter",
         "slice_start_scatter(Tensor x, Tensor src, int dim, int start) -> Tensor",
         &k::SliceStartScatter);
  Define(l, "slice_start_scatter_",
         "slice_start_scatter_(Tensor(a!) x, Tensor src, int dim, int start) -> Tensor(a!)",
         &k::SliceStartScatter_);
  Define(l, "slice_scatter",
         "slice_scatter(Tensor x, Tensor src, int dim=0, int? start=None, int? end=None, int "
         "step=1) -> Tensor",
         &k::SliceScatter);
  Define(l, "select_scatter", "select_scatter(Tensor x, Tensor src, int dim, int index) -> Tensor",
         &k::SelectScatter);
  Define(l, "diagonal_scatter",
         "diagonal_scatter(Tensor x, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor",
         &k::DiagonalScatter);
  Define(l, "slice_scatter_",
         "slice_scatter_(Tensor(a!) x, Tensor src, int dim=0, int? start=None, int? end=None, int "
         "step=1) -> Tensor(a!)",
         &k::SliceScatter_);
  Define(l, "select_scatter_",
         "select_scatter_(Tensor(a!) x, Tensor src, int dim, int index) -> Tensor(a!)",
         &k::SelectScatter_);
}

}  // namespace

void RegisterKernels() {
  // Never destroyed: the dispatcher may outlive static objects of this library.
  static torch::Library* library = [] {
    auto* l = new torch::Library(torch::Library::DEF, "spmd", std::nullopt, __FILE__, __LINE__);
    DefineMatrixOps(*l);
    DefineRandomOps(*l);
    DefineIndexOps(*l);
    DefinePartOps(*l);
    DefineImageOps(*l);
    DefineNormOps(*l);
    DefineOptimizerOps(*l);
    DefineSimpleOps(*l);
    return l;
  }();
  (void)library;
}

}  // namespace spmd::runtime
