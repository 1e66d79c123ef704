// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/shape/cpu_forms.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/ConvUtils.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "csrc/runtime/dispatch_guard.h"
#include "csrc/trace/compat/convolution.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/device/place.h"
#include "csrc/util/sorted.h"

namespace spmd::trace {

thread_local bool MetaAnswersForCpu::on_ = false;

namespace {

using Args = std::vector<c10::IValue>;
using CorrectFn = void (*)(const OpInfo&, const Args&, Inference&);

at::Tensor TensorAt(const Args& args, int i) {
  return args[i].isTensor() ? args[i].toTensor() : at::Tensor();
}

at::IntArrayRef SizesOf(const TensorMeta& meta) { return {meta.sizes.data(), meta.sizes.size()}; }

void SetStrides(TensorMeta& meta, at::IntArrayRef strides) {
  meta.strides.assign(strides.begin(), strides.end());
}

void SetFormat(TensorMeta& meta, at::MemoryFormat format) {
  if (format == at::MemoryFormat::ChannelsLast && meta.sizes.size() == 4) {
    SetStrides(meta, c10::get_channels_last_strides_2d(SizesOf(meta)));
  } else if (format == at::MemoryFormat::ChannelsLast3d && meta.sizes.size() == 5) {
    SetStrides(meta, c10::get_channels_last_strides_3d(SizesOf(meta)));
  } else {
    meta = TensorMeta::Contiguous(meta.dtype, SizesOf(meta));
  }
}

// A tensor with the metadata of `t` and without elements, on any device, for functions that look at
// metadata only.
at::Tensor Described(const at::Tensor& t, const at::Tensor& without_elements) {
  if (t.defined()) {
    without_elements.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides());
  }
  return without_elements;
}
at::Tensor OnMeta(const at::Tensor& t) {
  return Described(t, compat::EmptyOnMeta({0}, {1}, t.scalar_type()));
}
at::Tensor OnCpu(const at::Tensor& t) {
  return Described(t, compat::EmptyOnCpu({0}, t.scalar_type()));
}

// --- strides ---

void Contiguous(const OpInfo& op, const Args& args, Inference& result) {
  for (TensorMeta& meta : result.tensors) {
    if (meta.defined) SetFormat(meta, at::MemoryFormat::Contiguous);
  }
}

// The result is channels last if the first tensor is.
void FormatOfFirst(const OpInfo& op, const Args& args, Inference& result) {
  SetFormat(result.tensors[0], args[0].toTensor().suggest_memory_format());
}

// The same for a gradient, whose second argument is the tensor that it is the gradient of.
void FormatOfSecond(const OpInfo& op, const Args& args, Inference& result) {
  SetFormat(result.tensors[0], args[1].toTensor().suggest_memory_format());
}

// The result has the first tensor's order of dimensions.
void OrderOfFirst(const OpInfo& op, const Args& args, Inference& result) {
  const at::Tensor first = args[0].toTensor();
  if (first.sizes() == SizesOf(result.tensors[0]))
    result.tensors[0].strides = StridesInOrderOf(first);
}

// The result is stored column by column.
void ColumnsOfFirst(const OpInfo& op, const Args& args, Inference& result) {
  Dims& strides = result.tensors[0].strides;
  const Dims& sizes = result.tensors[0].sizes;
  const size_t n = sizes.size();
  if (n < 2) return;
  strides[n - 2] = 1;
  strides[n - 1] = std::max<int64_t>(sizes[n - 2], 1);
}

// The strides that TensorIterator gives for two operands. Meta goes through other ops, which lose
// the information that an operand is expanded.
void IteratorOfTwo(const OpInfo& op, const Args& args, Inference& result) {
  const at::Tensor a = TensorAt(args, 0), b = TensorAt(args, 1);
  TensorMeta& meta = result.tensors[0];
  if (!a.defined() || !b.defined() || at::infer_size(a.sizes(), b.sizes()) != SizesOf(meta).vec()) {
    return;
  }
  const at::Tensor x = OnMeta(a), y = OnMeta(b), none;
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false);
  config.declare_static_dtype_and_device(meta.dtype, at::kMeta);
  config.add_output(none).add_const_input(x).add_const_input(y);
  const at::TensorIterator iterator = config.build();
  SetStrides(meta, iterator.output().strides());
}

// --- convolutions ---

std::vector<c10::SymInt> Symbolic(const c10::IValue& ints) {
  const std::vector<int64_t> v = ints.toIntVector();
  return {v.begin(), v.end()};
}

// Represents images without rows as images of one row, as PyTorch's own convolution does. (It is
// not a view, since the described tensor has no memory.)
at::Tensor WithRows(const at::Tensor& t) {
  if (t.dim() != 3) return t;
  std::vector<int64_t> sizes = t.sizes().vec(), strides = t.strides().vec();
  strides.insert(strides.begin() + 2, sizes[2] * strides[2]);
  sizes.insert(sizes.begin() + 2, 1);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return t;
}
at::Tensor ImageWithRows(const at::Tensor& t) {
  if (t.dim() == 3) t.unsafeGetTensorImpl()->set_sizes_contiguous(t.sizes().vec());
  return WithRows(t);
}
std::vector<c10::SymInt> WithRows(std::vector<c10::SymInt> v, int64_t row) {
  if (v.size() == 1) v.insert(v.begin(), row);
  return v;
}

// The memory format of the CPU kernel's result. `args` are those of a convolution from `first` on:
// stride, padding, dilation, transposed, output_padding, groups.
at::MemoryFormat FormatOfConvolution(const at::Tensor& image, const at::Tensor& kernel,
                                     const Args& args, int first) {
  const at::Tensor input = ImageWithRows(OnCpu(image)), weight = WithRows(OnCpu(kernel));
  const auto backend = at::native::select_conv_backend(
      input, weight, std::nullopt, WithRows(Symbolic(args[first]), 1),
      WithRows(Symbolic(args[first + 1]), 0), WithRows(Symbolic(args[first + 2]), 1),
      args[first + 3].toBool(), WithRows(Symbolic(args[first + 4]), 0), args[first + 5].toInt(),
      std::nullopt);
  return compat::FormatOfConvolution(input, weight, backend);
}

void SetConvolutionFormat(TensorMeta& meta, at::MemoryFormat format) {
  if (!meta.defined) return;
  if (meta.sizes.size() != 3) return SetFormat(meta, format);
  meta.sizes.insert(meta.sizes.begin() + 2, 1);
  SetFormat(meta, format);
  meta.sizes.erase(meta.sizes.begin() + 2);
  meta.strides.erase(meta.strides.begin() + 2);
}

bool HasChannelsAndPlaces(const at::Tensor& t) { return t.dim() >= 3 && t.dim() <= 5; }

void ConvolutionForm(const OpInfo& op, const Args& args, Inference& result) {
  const at::Tensor image = args[0].toTensor(), kernel = args[1].toTensor();
  if (!HasChannelsAndPlaces(image) || !HasChannelsAndPlaces(kernel)) return;
  SetConvolutionFormat(result.tensors[0], FormatOfConvolution(image, kernel, args, 3));
}

void ConvolutionBackwardForm(const OpInfo& op, const Args& args, Inference& result) {
  const at::Tensor image = args[1].toTensor(), kernel = args[2].toTensor();
  if (!HasChannelsAndPlaces(image) || !HasChannelsAndPlaces(kernel)) return;
  const at::MemoryFormat format = FormatOfConvolution(image, kernel, args, 4);
  SetConvolutionFormat(result.tensors[0], format);
  SetConvolutionFormat(result.tensors[1], format);
}

// --- types and sizes ---

// Meta answers as CUDA does, where the statistics of half precision are f32. On the CPU they are
// f32 only if weights or running statistics are.
void StatisticsOfHalfTypes(const OpInfo& op, const Args& args, Inference& result) {
  if (!args[0].isTensor()) return;
  const at::ScalarType input = args[0].toTensor().scalar_type();
  if (!at::isReducedFloatingType(input)) return;
  for (size_t i = 1; i < args.size(); ++i) {
    if (!args[i].isTensor() || !args[i].toTensor().defined()) continue;
    if (args[i].toTensor().scalar_type() != input) return;
  }
  for (size_t r = 1; r < 3 && r < result.tensors.size(); ++r) result.tensors[r].dtype = input;
  // The running statistics follow an empty reserve.
  const std::string& base = op.handle.operator_name().name;
  const bool with_update = base.find("_batch_norm_with_update") != std::string::npos;
  for (size_t r = 4; with_update && r < result.tensors.size(); ++r) result.tensors[r].dtype = input;
}

void BatchNormForm(const OpInfo& op, const Args& args, Inference& result) {
  FormatOfFirst(op, args, result);
  StatisticsOfHalfTypes(op, args, result);
}

// In inference the CPU's kernels save no statistics: the gradient uses the running ones.
void BatchNormWithout(const OpInfo& op, const Args& args, Inference& result) {
  BatchNormForm(op, args, result);
  for (size_t r = 1; r < 3; ++r) {
    result.tensors[r] = TensorMeta::Contiguous(result.tensors[r].dtype, {0});
  }
}

void BatchNormByArgument(const OpInfo& op, const Args& args, Inference& result) {
  const bool trains = args[op.FindArg("training")].toBool();
  return trains ? BatchNormForm(op, args, result) : BatchNormWithout(op, args, result);
}

// The unreduced loss of a single sample has no dimension, or that of its target.
template <bool OfTarget>
void MarginLoss(const OpInfo& op, const Args& args, Inference& result) {
  if (args[0].toTensor().dim() >= 2 || args[op.FindArg("reduction")].toInt() != 0) return;
  Dims sizes;
  if (OfTarget && args[1].toTensor().dim() > 0) sizes.push_back(1);
  result.tensors[0] =
      TensorMeta::Contiguous(result.tensors[0].dtype, at::IntArrayRef(sizes.data(), sizes.size()));
}

struct FormRow {
  std::string_view op;  // without its overload
  CorrectFn correct;
  bool everywhere = false;  // GPUs give the same
};

constexpr FormRow kCpuFormsRows[] = {
    {"aten::_batch_norm_no_update", BatchNormWithout},
    {"aten::_batch_norm_with_update", BatchNormForm},
    {"aten::_batch_norm_with_update_functional", BatchNormForm},
    {"aten::_log_softmax_backward_data", Contiguous},
    {"aten::_native_batch_norm_legit", BatchNormByArgument},
    {"aten::_native_batch_norm_legit_functional", BatchNormByArgument},
    {"aten::_native_batch_norm_legit_no_training", BatchNormWithout},
    {"aten::_softmax_backward_data", Contiguous},
    {"aten::binary_cross_entropy", OrderOfFirst},
    {"aten::channel_shuffle", FormatOfFirst},
    {"aten::complex", IteratorOfTwo},
    {"aten::convolution", ConvolutionForm},
    {"aten::convolution_backward", ConvolutionBackwardForm},
    {"aten::copysign", IteratorOfTwo},
    {"aten::div", IteratorOfTwo},
    {"aten::floor_divide", IteratorOfTwo},
    {"aten::geqrf", ColumnsOfFirst},
    {"aten::glu_backward", Contiguous},
    {"aten::heaviside", IteratorOfTwo},
    {"aten::huber_loss", OrderOfFirst},
    {"aten::huber_loss_backward", Contiguous},
    {"aten::log_sigmoid_forward", Contiguous},
    {"aten::logaddexp", IteratorOfTwo},
    {"aten::logaddexp2", IteratorOfTwo},
    {"aten::logical_and", IteratorOfTwo},
    {"aten::logical_or", IteratorOfTwo},
    {"aten::logical_xor", IteratorOfTwo},
    {"aten::max_unpool2d", FormatOfFirst},
    {"aten::mse_loss_backward", Contiguous},
    {"aten::multi_margin_loss", MarginLoss<true>, true},
    {"aten::multilabel_margin_loss_forward", MarginLoss<false>, true},
    {"aten::native_batch_norm", BatchNormByArgument},
    {"aten::native_dropout_backward", IteratorOfTwo},
    {"aten::native_layer_norm", StatisticsOfHalfTypes},
    {"aten::normal", Contiguous},
    {"aten::poisson", Contiguous},
    {"aten::polar", IteratorOfTwo},
    {"aten::reflection_pad2d_backward", FormatOfSecond},
    {"aten::reflection_pad3d", FormatOfFirst},
    {"aten::reflection_pad3d_backward", FormatOfSecond},
    {"aten::replication_pad2d", FormatOfFirst},
    {"aten::replication_pad2d_backward", FormatOfSecond},
    {"aten::replication_pad3d", FormatOfFirst},
    {"aten::replication_pad3d_backward", FormatOfSecond},
    {"aten::roll", FormatOfFirst},
    {"aten::rrelu_with_noise", Contiguous},
    {"aten::rrelu_with_noise_functional", Contiguous},
    {"aten::smooth_l1_loss_backward", Contiguous},
    {"aten::special_xlog1py", IteratorOfTwo},
    {"aten::xlogy", IteratorOfTwo},
};

static_assert(IsSortedAndUnique(kCpuFormsRows, &FormRow::op));

}  // namespace

Dims StridesInOrderOf(const at::Tensor& t) {
  const auto strides = t.is_non_overlapping_and_dense()
                           ? t.strides().vec()
                           : at::infer_dense_strides(t.sizes(), t.strides());
  return {strides.begin(), strides.end()};
}

void CorrectAsOnCpu(const OpInfo& op, const std::vector<c10::IValue>& args, Inference& result) {
  const std::string_view base = op.handle.operator_name().name;
  const FormRow* row =
      std::lower_bound(std::begin(kCpuFormsRows), std::end(kCpuFormsRows), base,
                       [](const FormRow& r, std::string_view b) { return r.op < b; });
  if (row == std::end(kCpuFormsRows) || row->op != base || result.tensors.empty()) return;
  if (FirstPlace().is_cuda() && !row->everywhere) return;
  const runtime::DispatchGuard guard;
  row->correct(op, args, result);
}

}  // namespace spmd::trace
