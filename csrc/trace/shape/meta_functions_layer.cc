// SPDX-License-Identifier: Apache-2.0
// Convolutions, normalisation, pooling, embeddings. The memory format of a convolution and the type
// of the statistics of half types are set afterwards, in cpu_forms.cc.
#include <ATen/native/ConvUtils.h>

#include <algorithm>
#include <array>

#include "csrc/trace/shape/meta_functions.h"

namespace spmd::trace {

namespace {

using at::IntArrayRef;
using at::OptionalIntArrayRef;
using at::Tensor;
using std::optional;
using Three = std::tuple<Tensor, Tensor, Tensor>;
using ThreeWanted = std::array<bool, 3>;

// --- convolution ---

// Expands a single number to all spatial dimensions.
std::vector<int64_t> ForEachPlace(IntArrayRef list, const Tensor& input) {
  const int64_t places = input.dim() - 2;
  if (list.size() == 1 && places > 0) return std::vector<int64_t>(places, list[0]);
  Know(static_cast<int64_t>(list.size()) == places);
  return list.vec();
}

void KnowConvolution(const Tensor& input, const Tensor& weight, IntArrayRef stride,
                     IntArrayRef padding, IntArrayRef dilation, bool transposed, int64_t groups) {
  const int64_t dims = input.dim();
  Know(dims >= 3 && dims <= 5 && weight.dim() == dims && groups >= 1);
  Know(input.scalar_type() == weight.scalar_type());
  const auto positive = [](int64_t v) { return v > 0; };
  Know(std::all_of(stride.begin(), stride.end(), positive));
  Know(std::all_of(dilation.begin(), dilation.end(), positive));
  Know(std::none_of(padding.begin(), padding.end(), [](int64_t v) { return v < 0; }));
  Know(weight.size(0) % groups == 0);
  Know(input.size(1) == (transposed ? weight.size(0) : weight.size(1) * groups));
}

Tensor Convolution(const Tensor& input, const Tensor& weight, const optional<Tensor>& bias,
                   IntArrayRef strides, IntArrayRef paddings, IntArrayRef dilations,
                   bool transposed, IntArrayRef output_padding, int64_t groups) {
  const std::vector<int64_t> stride = ForEachPlace(strides, input);
  const std::vector<int64_t> padding = ForEachPlace(paddings, input);
  const std::vector<int64_t> dilation = ForEachPlace(dilations, input);
  KnowConvolution(input, weight, stride, padding, dilation, transposed, groups);
  const std::vector<int64_t> sizes =
      transposed
          ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding,
                                        ForEachPlace(output_padding, input), stride, dilation,
                                        groups)
          : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  // A kernel that is larger than the image must be found before the division, which rounds to zero.
  for (size_t d = 2; d < sizes.size(); ++d) {
    const int64_t room = input.size(static_cast<int64_t>(d)) + 2 * padding[d - 2];
    const int64_t kernel = dilation[d - 2] * (weight.size(static_cast<int64_t>(d)) - 1) + 1;
    Know(sizes[d] > 0 && (transposed || room >= kernel));
  }
  if (OrUndefined(bias).defined()) {
    Know(bias->dim() == 1 && bias->size(0) == sizes[1] &&
         bias->scalar_type() == input.scalar_type());
  }
  return MetaOfSizes(sizes, input.scalar_type());
}

Three ConvolutionBackward(const Tensor& grad, const Tensor& input, const Tensor& weight,
                          OptionalIntArrayRef bias_sizes, IntArrayRef stride, IntArrayRef padding,
                          IntArrayRef dilation, bool transposed, IntArrayRef output_padding,
                          int64_t groups, ThreeWanted wanted) {
  KnowConvolution(input, weight, ForEachPlace(stride, input), ForEachPlace(padding, input),
                  ForEachPlace(dilation, input), transposed, groups);
  Know(!wanted[2] || bias_sizes.has_value());
  return {wanted[0] ? MetaContiguousLike(input) : Tensor(),
          wanted[1] ? MetaContiguousLike(weight) : Tensor(),
          wanted[2] ? MetaOfSizes(*bias_sizes, grad.scalar_type()) : Tensor()};
}

// --- normalisation ---

at::ScalarType StatisticsOf(const Tensor& input) {
  return at::isReducedFloatingType(input.scalar_type()) ? at::kFloat : input.scalar_type();
}
bool IsOfChannels(const optional<Tensor>& t, int64_t channels) {
  return !OrUndefined(t).defined() || (t->dim() == 1 && t->size(0) == channels);
}
bool IsShaped(const optional<Tensor>& t, IntArrayRef sizes) {
  return !OrUndefined(t).defined() || t->sizes() == sizes;
}
Tensor LikeIfWanted(const optional<Tensor>& t, bool wanted) {
  return wanted && OrUndefined(t).defined() ? MetaContiguousLike(*t) : Tensor();
}

Three LayerNorm(const Tensor& input, IntArrayRef shape, const optional<Tensor>& weight,
                const optional<Tensor>& bias, double) {
  const size_t dims = input.sizes().size();
  Know(!shape.empty() && shape.size() <= dims && input.is_floating_point());
  const size_t outer = dims - shape.size();
  Know(input.sizes().slice(outer) == shape && IsShaped(weight, shape) && IsShaped(bias, shape));
  std::vector<int64_t> sizes = input.sizes().slice(0, outer).vec();
  sizes.resize(dims, 1);
  const at::ScalarType dtype = StatisticsOf(input);
  return {MetaContiguousLike(input), MetaOfSizes(sizes, dtype), MetaOfSizes(sizes, dtype)};
}

Three LayerNormBackward(const Tensor& grad, const Tensor& input, IntArrayRef shape, const Tensor&,
                        const Tensor&, const optional<Tensor>& weight, const optional<Tensor>& bias,
                        ThreeWanted wanted) {
  Know(grad.sizes() == input.sizes() && grad.scalar_type() == input.scalar_type());
  Know(!wanted[1] || OrUndefined(weight).defined());
  Know(!wanted[2] || OrUndefined(bias).defined());
  return {wanted[0] ? MetaContiguousLike(input) : Tensor(), LikeIfWanted(weight, wanted[1]),
          LikeIfWanted(bias, wanted[2])};
}

Three BatchNorm(const Tensor& input, const optional<Tensor>& weight, const optional<Tensor>& bias,
                const optional<Tensor>& mean, const optional<Tensor>& var, bool training, double,
                double) {
  Know(input.dim() >= 2 && input.is_floating_point());
  const int64_t channels = input.size(1);
  for (const optional<Tensor>& t : {weight, bias, mean, var}) Know(IsOfChannels(t, channels));
  Know(training || (OrUndefined(mean).defined() && OrUndefined(var).defined()));
  const std::vector<int64_t> kept = {training ? channels : 0};
  const at::ScalarType dtype = StatisticsOf(input);
  return {MetaInFormatOf(input, input.sizes()), MetaOfSizes(kept, dtype), MetaOfSizes(kept, dtype)};
}

Three BatchNormOfBatch(const Tensor& input, const optional<Tensor>& weight,
                       const optional<Tensor>& bias, bool training, double momentum, double eps) {
  Know(training);
  return BatchNorm(input, weight, bias, {}, {}, training, momentum, eps);
}

Three BatchNormBackward(const Tensor& grad, const Tensor& input, const optional<Tensor>& weight,
                        const optional<Tensor>&, const optional<Tensor>&, const optional<Tensor>&,
                        const optional<Tensor>&, bool, double, ThreeWanted wanted) {
  Know(grad.sizes() == input.sizes() && grad.scalar_type() == input.scalar_type());
  Know(input.dim() >= 2 && IsOfChannels(weight, input.size(1)));
  const at::ScalarType dtype =
      OrUndefined(weight).defined() ? weight->scalar_type() : input.scalar_type();
  const auto of_channels = [&](bool is_wanted) {
    return is_wanted ? MetaOfSizes({input.size(1)}, dtype) : Tensor();
  };
  return {wanted[0] ? MetaInFormatOf(input, input.sizes()) : Tensor(), of_channels(wanted[1]),
          of_channels(wanted[2])};
}

Three GroupNorm(const Tensor& input, const optional<Tensor>& weight, const optional<Tensor>& bias,
                int64_t n, int64_t channels, int64_t places, int64_t groups, double) {
  Know(input.dim() >= 2 && input.size(0) == n && input.size(1) == channels);
  Know(input.numel() == n * channels * places && groups > 0 && channels % groups == 0);
  Know(!at::isReducedFloatingType(input.scalar_type()) && input.is_floating_point());
  Know(IsOfChannels(weight, channels) && IsOfChannels(bias, channels));
  const at::ScalarType dtype = input.scalar_type();
  return {MetaInFormatOf(input, input.sizes()), MetaOfSizes({n, groups}, dtype),
          MetaOfSizes({n, groups}, dtype)};
}

Three GroupNormBackward(const Tensor& grad, const Tensor& input, const Tensor&, const Tensor&,
                        const optional<Tensor>& weight, int64_t, int64_t channels, int64_t, int64_t,
                        ThreeWanted wanted) {
  Know(grad.sizes() == input.sizes() && grad.scalar_type() == input.scalar_type());
  Know(!at::isReducedFloatingType(input.scalar_type()) && IsOfChannels(weight, channels));
  const auto of_channels = [&](bool is_wanted) {
    return is_wanted ? MetaOfSizes({channels}, input.scalar_type()) : Tensor();
  };
  return {wanted[0] ? MetaInFormatOf(input, input.sizes()) : Tensor(), of_channels(wanted[1]),
          of_channels(wanted[2])};
}

std::tuple<Tensor, Tensor> WeightNormBackward(const Tensor&, const Tensor& v, const Tensor& g,
                                              const Tensor&, int64_t) {
  return {MetaContiguousLike(v), MetaContiguousLike(g)};
}

// --- pooling ---

// True if all dimensions but the batch have elements.
bool HasPlaces(const Tensor& t) {
  return std::none_of(t.sizes().begin() + 1, t.sizes().end(), [](int64_t n) { return n == 0; });
}

Tensor AdaptiveAveragePool(const Tensor& self, IntArrayRef output_size) {
  Know(output_size.size() == 2 && (self.dim() == 3 || self.dim() == 4) && HasPlaces(self));
  std::vector<int64_t> sizes = self.sizes().slice(0, self.dim() - 2).vec();
  sizes.insert(sizes.end(), output_size.begin(), output_size.end());
  return MetaInFormatOf(self, sizes);
}
Tensor AdaptiveAveragePoolBackward(const Tensor& grad, const Tensor& self) {
  Know((self.dim() == 3 || self.dim() == 4) && grad.dim() == self.dim() && HasPlaces(grad));
  Know(grad.scalar_type() == self.scalar_type());
  return MetaInFormatOf(self, self.sizes());
}

Tensor AdaptiveAveragePool3d(const Tensor& self, IntArrayRef output_size) {
  Know(output_size.size() == 3 && (self.dim() == 4 || self.dim() == 5) && HasPlaces(self));
  std::vector<int64_t> sizes = self.sizes().slice(0, self.dim() - 3).vec();
  sizes.insert(sizes.end(), output_size.begin(), output_size.end());
  return MetaOfSizes(sizes, self.scalar_type());
}
Tensor AdaptiveAveragePool3dBackward(const Tensor& grad, const Tensor& self) {
  Know((self.dim() == 4 || self.dim() == 5) && grad.dim() == self.dim() && HasPlaces(grad));
  Know(grad.scalar_type() == self.scalar_type());
  return MetaContiguousLike(self);
}

// True for images [N, C, …] and a grid of places [N, …, 2 or 3].
bool IsImageAndGrid(const Tensor& image, const Tensor& grid) {
  const int64_t dims = image.dim();
  return grid.dim() == dims && grid.size(0) == image.size(0) && grid.size(-1) == dims - 2 &&
         grid.scalar_type() == image.scalar_type() && image.numel() > 0;
}
Tensor GridSampler(const Tensor& image, const Tensor& grid, int64_t, int64_t, bool) {
  Know(IsImageAndGrid(image, grid));
  std::vector<int64_t> sizes = {image.size(0), image.size(1)};
  for (int64_t d = 1; d + 1 < grid.dim(); ++d) sizes.push_back(grid.size(d));
  return MetaOfSizes(sizes, image.scalar_type());
}
std::tuple<Tensor, Tensor> GridSamplerBackward(const Tensor&, const Tensor& image,
                                               const Tensor& grid, int64_t, int64_t, bool,
                                               std::array<bool, 2> wanted) {
  Know(IsImageAndGrid(image, grid));
  return {wanted[0] ? MetaContiguousLike(image) : Tensor(), MetaContiguousLike(grid)};
}

// Takes the windows of images [N, C, H, W] as columns, and the columns back to images.
Tensor Columns(const Tensor& self, IntArrayRef kernel, IntArrayRef dilation, IntArrayRef padding,
               IntArrayRef stride) {
  Know(self.dim() == 4 && HasPlaces(self));
  for (const IntArrayRef list : {kernel, dilation, padding, stride}) Know(list.size() == 2);
  int64_t windows = 1;
  for (int64_t d = 0; d < 2; ++d) {
    Know(kernel[d] > 0 && dilation[d] > 0 && padding[d] >= 0 && stride[d] > 0);
    const int64_t room = self.size(2 + d) + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1;
    Know(room >= 0);
    windows *= room / stride[d] + 1;
  }
  return MetaOfSizes({self.size(0), self.size(1) * kernel[0] * kernel[1], windows},
                     self.scalar_type());
}

// --- embeddings ---

constexpr int64_t kSumOfBag = 0, kMaximumOfBag = 2;

// True if the CPU sums the rows in the order in which they come, and does not note the bag of each
// index.
bool AddsRowsAsTheyCome(const Tensor& weight, const Tensor& scale, int64_t padding_idx) {
  const bool has_kernel = weight.scalar_type() == at::kFloat || weight.scalar_type() == at::kHalf;
  return has_kernel && weight.stride(1) == 1 && padding_idx < 0 &&
         (!scale.defined() || scale.stride(0) == 1);
}

std::tuple<Tensor, Tensor, Tensor, Tensor> EmbeddingBag(
    const Tensor& weight, const Tensor& indices, const Tensor& offsets, bool, int64_t mode, bool,
    const optional<Tensor>& per_sample_weights, bool include_last_offset, int64_t padding_idx) {
  const auto is_index = [](const Tensor& t) {
    return t.dim() == 1 && (t.scalar_type() == at::kLong || t.scalar_type() == at::kInt);
  };
  Know(is_index(indices) && is_index(offsets) && weight.dim() == 2 && weight.is_floating_point());
  Know(indices.scalar_type() == offsets.scalar_type());
  const Tensor scale = OrUndefined(per_sample_weights);
  Know(!scale.defined() || (mode == kSumOfBag && scale.sizes() == indices.sizes() &&
                            scale.scalar_type() == weight.scalar_type()));
  const int64_t bags = offsets.size(0) - (include_last_offset ? 1 : 0);
  Know(bags >= 0);
  const bool adds = mode == kSumOfBag && AddsRowsAsTheyCome(weight, scale, padding_idx);
  const at::ScalarType index = offsets.scalar_type();
  const Tensor output = MetaOfSizes({bags, weight.size(1)}, weight.scalar_type());
  return {output, MetaOfSizes({adds ? 0 : indices.size(0)}, index), MetaOfSizes({bags}, index),
          mode == kMaximumOfBag ? MetaOfSizes(output.sizes(), index) : MetaOfSizes({bags}, index)};
}

Tensor EmbeddingBackward(const Tensor& grad, const Tensor& indices, int64_t rows, int64_t, bool) {
  Know(grad.dim() > 0);
  return MetaOfSizes({rows, grad.size(-1)}, grad.scalar_type());
}

constexpr MetaKernelRow kLayerMetaKernels[] = {
    {"aten::_adaptive_avg_pool2d", &MetaKernel<&AdaptiveAveragePool>},
    {"aten::_adaptive_avg_pool2d_backward", &MetaKernel<&AdaptiveAveragePoolBackward>},
    {"aten::_adaptive_avg_pool3d", &MetaKernel<&AdaptiveAveragePool3d>},
    {"aten::_adaptive_avg_pool3d_backward", &MetaKernel<&AdaptiveAveragePool3dBackward>},
    {"aten::_embedding_bag", &MetaKernel<&EmbeddingBag>},
    {"aten::_native_batch_norm_legit.no_stats", &MetaKernel<&BatchNormOfBatch>},
    {"aten::_weight_norm_interface_backward", &MetaKernel<&WeightNormBackward>},
    {"aten::convolution", &MetaKernel<&Convolution>},
    {"aten::convolution_backward", &MetaKernel<&ConvolutionBackward>},
    {"aten::embedding_dense_backward", &MetaKernel<&EmbeddingBackward>},
    {"aten::grid_sampler_2d", &MetaKernel<&GridSampler>},
    {"aten::grid_sampler_2d_backward", &MetaKernel<&GridSamplerBackward>},
    {"aten::grid_sampler_3d", &MetaKernel<&GridSampler>},
    {"aten::grid_sampler_3d_backward", &MetaKernel<&GridSamplerBackward>},
    {"aten::im2col", &MetaKernel<&Columns>},
    {"aten::native_batch_norm", &MetaKernel<&BatchNorm>},
    {"aten::native_batch_norm_backward", &MetaKernel<&BatchNormBackward>},
    {"aten::native_group_norm", &MetaKernel<&GroupNorm>},
    {"aten::native_group_norm_backward", &MetaKernel<&GroupNormBackward>},
    {"aten::native_layer_norm", &MetaKernel<&LayerNorm>},
    {"aten::native_layer_norm_backward", &MetaKernel<&LayerNormBackward>},
};
static_assert(IsSortedAndUnique(kLayerMetaKernels, &MetaKernelRow::op));

}  // namespace

absl::Span<const MetaKernelRow> LayerMetaKernels() { return kLayerMetaKernels; }

}  // namespace spmd::trace
