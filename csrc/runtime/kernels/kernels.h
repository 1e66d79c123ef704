// SPDX-License-Identifier: Apache-2.0
// The ops of the `spmd` namespace: those that programs need and aten does not have. Schemas are in
// register.cc. All are functional, except those ending in '_': they write into their first
// argument, so that a dead operand can be overwritten. None knows of devices or meshes: where a
// tile begins is an argument (`first_row`, `first_class`, `offset`).
//
// Thread safety: all may be called from any thread. They are parallel inside through
// at::parallel_for, and therefore sequential where the executor already runs tiles in parallel.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>

namespace spmd::runtime::kernels {

using at::IntArrayRef;
using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// linear.cc. grad [..., n], weight [n, k], input and sum [..., k].
Tensor LinearDInput(const Tensor& grad, const Tensor& weight);
Tensor AddLinearDInput(const Tensor& sum, const Tensor& grad, const Tensor& weight);
Tensor& AddLinearDInput_(Tensor& sum, const Tensor& grad, const Tensor& weight);
Tensor LinearDWeight(const Tensor& grad, const Tensor& input);

// grouped_matmul.cc. One product for each of the groups [first_group, first_group + num_groups):
// group g is the indices [offsets[g-1], offsets[g]) of the dimension that the groups divide, of
// which this call holds those from first_index on. Matrices are as in aten::_grouped_mm: self [t,
// k] by mat2 [g, k, n], self [m, t] by mat2 [t, n], or self [g, m, k] by mat2 [k, t]; offsets are
// i32 or i64. The result is zero at indices that belong to none of these groups.
Tensor GroupedMatmul(const Tensor& self, const Tensor& mat2, const Tensor& offsets,
                     int64_t first_group, int64_t num_groups, int64_t first_index);

// attention.cc. query [b, h, s, d], key [b, g, t, d], value [b, g, t, e] with h a multiple of g;
// attn_mask broadcasts to [b, h, s, t]. out is [b, h, s, e], logsumexp [b, h, s] in f32, or in f64
// for f64 queries.
std::tuple<Tensor, Tensor> Attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                     const OptionalTensor& attn_mask, bool is_causal,
                                     std::optional<double> scale);
std::tuple<Tensor, Tensor, Tensor> AttentionBackward(const Tensor& grad_out, const Tensor& query,
                                                     const Tensor& key, const Tensor& value,
                                                     const Tensor& out, const Tensor& logsumexp,
                                                     const OptionalTensor& attn_mask,
                                                     bool is_causal, std::optional<double> scale);

// random.cc. The tile [offset, offset + size) of a random tensor of global_size; see philox.h.
Tensor Random(IntArrayRef size, IntArrayRef offset, IntArrayRef global_size, int64_t seed,
              int64_t counter, std::string_view distribution, double p0, double p1,
              at::ScalarType dtype, std::optional<at::Device> device);
std::tuple<Tensor, Tensor> Dropout(const Tensor& input, double p, int64_t seed, int64_t counter,
                                   IntArrayRef offset, IntArrayRef global_size);

// sampling.cc. Random draws with a parameter per element, for the tile at `offset` of a tensor of
// global_size. Parameters and result have one shape. Dirichlet's last dimension, whose elements sum
// to 1, is whole.
// Errors: c10::Error if a rate is below 0 or NaN.
Tensor Poisson(const Tensor& rate, int64_t seed, int64_t counter, IntArrayRef offset,
               IntArrayRef global_size);
Tensor Binomial(const Tensor& count, const Tensor& prob, int64_t seed, int64_t counter,
                IntArrayRef offset, IntArrayRef global_size);
Tensor StandardGamma(const Tensor& alpha, int64_t seed, int64_t counter, IntArrayRef offset,
                     IntArrayRef global_size);
Tensor Dirichlet(const Tensor& alpha, int64_t seed, int64_t counter, IntArrayRef offset,
                 IntArrayRef global_size);

// simple.cc. As aten::log_sigmoid_forward, with a buffer of the input's size on every device.
std::tuple<Tensor, Tensor> LogSigmoidForward(const Tensor& self);

// lstsq.cc. As aten::linalg_lstsq, for a [..., m, n] and b [..., m, k] with equal batches: the
// solution [..., n, k], residuals [..., k], rank [...] and singular values [..., min(m, n)]. What
// the driver does not compute is zero, so that the shapes do not depend on the driver.
std::tuple<Tensor, Tensor, Tensor, Tensor> Lstsq(const Tensor& a, const Tensor& b,
                                                 std::optional<double> rcond,
                                                 std::string_view driver);

// embedding.cc. The tile holds rows [first_row, first_row + n) of the table; indices of other rows
// give zeros and add no gradient. `num_rows` is the size of the whole table, for an IndexError if
// an index is outside it; -1 accepts any index.
Tensor Embedding(const Tensor& weight, const Tensor& indices, int64_t first_row,
                 int64_t num_rows = -1);
Tensor EmbeddingDWeight(const Tensor& grad, const Tensor& indices, int64_t num_weights,
                        int64_t padding_idx, int64_t first_row, int64_t num_rows = -1);

// nll.cc. logp [..., c] for targets [...] holds the classes [first_class, first_class + c); targets
// are global. `weight` is per class, for the held classes or for all. `num_classes` is the number
// of classes of all shards, for an IndexError if a target is outside it; -1 accepts any target.
std::tuple<Tensor, Tensor> NllSum(const Tensor& logp, const Tensor& target,
                                  const OptionalTensor& weight, int64_t ignore_index,
                                  int64_t first_class, int64_t num_classes = -1);
Tensor NllRows(const Tensor& logp, const Tensor& target, const OptionalTensor& weight,
               int64_t ignore_index, int64_t first_class, int64_t num_classes = -1);
Tensor NllDInput(const Tensor& grad, const Tensor& target, const OptionalTensor& weight,
                 const Tensor& scale, int64_t num_classes, int64_t ignore_index,
                 int64_t first_class);
Tensor CrossEntropyDInput(const Tensor& grad, const Tensor& logp, const Tensor& target,
                          const OptionalTensor& weight, const Tensor& scale, int64_t ignore_index,
                          int64_t first_class);

// ctc.cc. As the aten ops, with lengths [n] as tensors and targets [n, s] as rows. log_probs is [t,
// n, c], the loss [n], and log_alpha [n, t, 2 longest + 1], where `longest` is the greatest target
// length of all sequences, including those of other tiles.
std::tuple<Tensor, Tensor> CtcLoss(const Tensor& log_probs, const Tensor& targets,
                                   const Tensor& input_lengths, const Tensor& target_lengths,
                                   int64_t blank, bool zero_infinity, int64_t longest);
Tensor CtcLossBackward(const Tensor& grad, const Tensor& log_probs, const Tensor& targets,
                       const Tensor& input_lengths, const Tensor& target_lengths,
                       const Tensor& loss, const Tensor& log_alpha, int64_t blank,
                       bool zero_infinity);

// indexing.cc. As the aten ops, on a part of the indexed dimensions. Indices are global, `first` is
// where the part begins, and `size` is the size of the whole dimension, for an error if an index is
// outside it. Elements outside the part read as 0 and are not written. `reduce` is "set", "add" or
// "multiply" (ScatterPart), or what scatter_reduce and index_reduce take. `first` and `size` of
// Index…Part are by dimension.
Tensor GatherPart(const Tensor& self, const Tensor& index, int64_t dim, int64_t first,
                  int64_t size);
Tensor ScatterPart(const Tensor& self, const Tensor& index, const Tensor& src, int64_t dim,
                   std::string_view reduce, bool include_self, int64_t first, int64_t size);
Tensor IndexWritePart(const Tensor& self, const Tensor& index, const Tensor& source, int64_t dim,
                      std::string_view reduce, bool include_self, const c10::Scalar& alpha,
                      int64_t first, int64_t size);
// As aten::index_reduce, which fails for products in half precision if a slice is one element of a
// tensor with several dimensions (PyTorch 2.13).
Tensor IndexReduce(const Tensor& self, int64_t dim, const Tensor& index, const Tensor& source,
                   std::string_view reduce, bool include_self);
// `self` is the part from index `first` on of a dimension of `size`: what it has of the slice, and
// zeros elsewhere; and `self` with that replaced.
Tensor SlicePart(const Tensor& self, int64_t dim, int64_t start, int64_t length, int64_t first,
                 int64_t size);
Tensor SlicePutPart(const Tensor& self, const Tensor& src, int64_t dim, int64_t start,
                    int64_t first, int64_t size);
Tensor& SlicePutPart_(Tensor& self, const Tensor& src, int64_t dim, int64_t start, int64_t first,
                      int64_t size);
Tensor IndexPart(const Tensor& self, const c10::List<OptionalTensor>& indices, IntArrayRef first,
                 IntArrayRef size, bool may_be_negative, IntArrayRef batch);
Tensor IndexPutPart(const Tensor& self, const c10::List<OptionalTensor>& indices,
                    const Tensor& values, bool accumulate, IntArrayRef first, IntArrayRef size,
                    bool may_be_negative, IntArrayRef batch);

// convolution.cc. The gradients of a convolution that is not transposed.
Tensor ConvDInput(const Tensor& grad, const Tensor& weight, IntArrayRef input_size,
                  IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups,
                  IntArrayRef crop_start);
Tensor ConvDWeight(const Tensor& grad, const Tensor& input, IntArrayRef weight_size,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, int64_t groups);

// pooling.cc. `input` begins at `offset` of a plane of spatial sizes `plane` (2 or 3 of them);
// indices are row-major positions in the plane. MaxPoolDInput gives the gradient of the tile of
// `input_size` that begins at `offset`; indices outside it add nothing.
std::tuple<Tensor, Tensor> MaxPool(const Tensor& input, IntArrayRef output_size,
                                   IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding,
                                   IntArrayRef dilation, IntArrayRef offset, IntArrayRef plane);
Tensor MaxPoolDInput(const Tensor& grad, const Tensor& indices, IntArrayRef input_size,
                     IntArrayRef kernel_size, IntArrayRef stride, IntArrayRef padding,
                     IntArrayRef dilation, IntArrayRef offset, IntArrayRef plane);

// resample.cc. Interpolation or a border along `dim`, and its gradient. The `input` is a part of
// num_in inputs that begins at `from`; the result is `size` outputs from `offset` on (for the
// gradient, the other way round). `filter` is nearest, reflect, mean, linear, cubic, linear_aa or
// cubic_aa. csrc/rules/tables/resample.h says which inputs an output reads. Results are as precise
// as the operand.
Tensor Resample(const Tensor& input, int64_t dim, c10::string_view filter, int64_t step,
                int64_t start, int64_t stop, int64_t unit, int64_t num_in, int64_t num_out,
                int64_t from, int64_t offset, int64_t size);
Tensor ResampleDInput(const Tensor& grad, int64_t dim, c10::string_view filter, int64_t step,
                      int64_t start, int64_t stop, int64_t unit, int64_t num_in, int64_t num_out,
                      int64_t from, int64_t offset, int64_t size);

// channels.cc. offset + x · factor, for images [n, c, …] and vectors [1, c, 1, …].
Tensor ChannelAffine(const Tensor& offset, const Tensor& x, const Tensor& factor);
// Sums over all but the channels of images [n, c, …]: ChannelSquares sums (x - mean)²,
// ChannelProducts sums grad and grad · (x - mean). `mean` [c] need not be the mean of these images.
Tensor ChannelSquares(const Tensor& x, const Tensor& mean);
std::tuple<Tensor, Tensor> ChannelMoments(const Tensor& x);
std::tuple<Tensor, Tensor> ChannelProducts(const Tensor& grad, const Tensor& x, const Tensor& mean);

// optimizer.cc. A step of Adam (AdamW if `decoupled`) by PyTorch's own fused kernel; the arguments
// have the names of PyTorch's options. Returns the new parameter and averages. `step` (f32 [])
// counts from 1.
std::tuple<Tensor, Tensor, Tensor> Adam(const Tensor& param, const Tensor& grad,
                                        const Tensor& exp_avg, const Tensor& exp_avg_sq,
                                        const Tensor& step, double lr, double beta1, double beta2,
                                        double weight_decay, double eps, bool decoupled,
                                        bool maximize);
// As Adam, written into `param`, `exp_avg` and `exp_avg_sq`.
std::tuple<Tensor, Tensor, Tensor> Adam_(const Tensor& param, const Tensor& grad,
                                         const Tensor& exp_avg, const Tensor& exp_avg_sq,
                                         const Tensor& step, double lr, double beta1, double beta2,
                                         double weight_decay, double eps, bool decoupled,
                                         bool maximize);

// columns.cc. aten's im2col and col2im with the windows' positions as two dimensions: columns [...,
// channels of c·kh·kw, h, w]. `output_size` is the number of positions. `size` is that of the image
// to which the columns are added; the result is the part of it that begins at `crop_start`.
Tensor Im2Col(const Tensor& image, IntArrayRef output_size, IntArrayRef kernel_size,
              IntArrayRef dilation, IntArrayRef padding, IntArrayRef stride);
Tensor Col2Im(const Tensor& columns, IntArrayRef size, IntArrayRef kernel_size,
              IntArrayRef dilation, IntArrayRef padding, IntArrayRef stride,
              IntArrayRef crop_start);

// simple.cc.
Tensor Iota(int64_t size, const at::Scalar& start, const at::Scalar& step, int64_t offset,
            at::ScalarType dtype, std::optional<at::Device> device);
Tensor Full(IntArrayRef size, const at::Scalar& value, at::ScalarType dtype,
            std::optional<at::Device> device);
Tensor Cast(const Tensor& x, at::ScalarType dtype);
Tensor& MulScalar_(Tensor& self, const at::Scalar& other);
// Returns x itself. Errors: `refusal`, if an element is below `low`, above `high` or NaN; "{}" in
// it stands for such an element.
Tensor InRange(const Tensor& x, double low, double high, c10::string_view refusal);
// Index i of dimension `dim` is index[i] of x, zeros if that is -1; x itself if the list is empty.
Tensor Reorder(const Tensor& x, int64_t dim, IntArrayRef index);
// x itself: a device's part of a value at the border of a manual region. Of a Meta tensor, one of
// `size`.
Tensor AtBorder(const Tensor& x, IntArrayRef size, c10::string_view border, c10::string_view mesh);
// x rolled by `shift`, at most |reach| to the side of its sign: x is all of the dimension of
// `size`, or a part of it, and `beside` the |reach| indices before it or behind it.
Tensor RollStart(const Tensor& x, const Tensor& beside, int64_t dim, int64_t shift, int64_t reach,
                 int64_t size);
Tensor SliceStart(const Tensor& x, int64_t dim, int64_t start, int64_t length);
Tensor SliceStartScatter(const Tensor& x, const Tensor& src, int64_t dim, int64_t start);
Tensor& SliceStartScatter_(Tensor& x, const Tensor& src, int64_t dim, int64_t start);
// As aten's, also for windows that share memory, of which aten's kernels write all that share it.
Tensor SliceScatter(const Tensor& x, const Tensor& src, int64_t dim, std::optional<int64_t> start,
                    std::optional<int64_t> end, int64_t step);
Tensor SelectScatter(const Tensor& x, const Tensor& src, int64_t dim, int64_t index);
Tensor DiagonalScatter(const Tensor& x, const Tensor& src, int64_t offset, int64_t dim1,
                       int64_t dim2);
// In-place forms of the first two, which aten does not have.
Tensor& SliceScatter_(Tensor& x, const Tensor& src, int64_t dim, std::optional<int64_t> start,
                      std::optional<int64_t> end, int64_t step);
Tensor& SelectScatter_(Tensor& x, const Tensor& src, int64_t dim, int64_t index);

}  // namespace spmd::runtime::kernels
