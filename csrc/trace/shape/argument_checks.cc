// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/shape/argument_checks.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/diagonal.h>
#include <ATen/ops/index.h>
#include <ATen/ops/slice.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <optional>
#include <string_view>

#include "csrc/runtime/dispatch_guard.h"
#include "csrc/trace/compat/tensor.h"
#include "csrc/trace/compat/torch_function.h"
#include "csrc/util/sorted.h"

namespace spmd::trace {

namespace {

using Args = std::vector<c10::IValue>;

at::Tensor MetaLike(const at::Tensor& t) {
  return compat::EmptyOnMeta(t.sizes(), t.strides(), t.scalar_type());
}

// True if the values of an indexed write fit. If an index is a mask, the number of elements depends
// on data, and the kernel checks.
bool TakesIndexedWrite(const OpInfo& op, const Args& args) {
  const at::Tensor self = args[0].toTensor(), values = args[2].toTensor();
  if (self.scalar_type() != values.scalar_type()) return false;
  c10::List<std::optional<at::Tensor>> indices;
  for (const c10::IValue& index : args[1].toListRef()) {
    const at::Tensor t = index.isTensor() ? index.toTensor() : at::Tensor();
    const bool is_mask =
        t.defined() && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
    if (is_mask) return true;
    indices.push_back(t.defined() ? std::optional<at::Tensor>(MetaLike(t)) : std::nullopt);
  }
  try {
    const runtime::DispatchGuard guard;
    const compat::NoTorchFunction no_torch_function;
    return at::is_expandable_to(values.sizes(), at::index(MetaLike(self), indices).sizes());
  } catch (const std::exception&) {
    return false;
  }
}

// True if there are as many pivots as a matrix has. The CPU does not check this.
bool FitsPivots(const OpInfo& op, const Args& args) {
  const at::Tensor matrix = args[0].toTensor(), pivots = args[1].toTensor();
  if (matrix.dim() < 2 || pivots.dim() < 1) return false;
  return pivots.size(-1) == std::min(matrix.size(-2), matrix.size(-1));
}

// True if the operands that the op writes keep their sizes. An observer of rows that has seen none
// yet takes as many as there are, which its kernel decides and Meta does not know.
bool KeepsSizes(const OpInfo& op, const Args& args) {
  const bool of_rows = args[op.FindArg("per_row_fake_quant")].toBool();
  return !of_rows || args[op.FindArg("running_min")].toTensor().numel() > 0;
}

// True if the source of an indexed sum has the sizes of self, but for the indexed dimension.
bool FitsSource(const OpInfo&, const Args& args) {
  const at::Tensor self = args[0].toTensor(), source = args[3].toTensor();
  if (self.dim() != source.dim()) return self.dim() + source.dim() == 1;
  const int64_t dim = args[1].toInt() < 0 ? args[1].toInt() + self.dim() : args[1].toInt();
  for (int64_t d = 0; d < self.dim(); ++d) {
    if (d != dim && self.size(d) != source.size(d)) return false;
  }
  return true;
}

// The sizes of a view of the first argument's metadata; empty if PyTorch refuses the view.
template <typename Fn>
std::optional<std::vector<int64_t>> SizesOf(const Args& args, Fn&& view) {
  try {
    const runtime::DispatchGuard guard;
    const compat::NoTorchFunction no_torch_function;
    return view(MetaLike(args[0].toTensor())).sizes().vec();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// True if the source has the sizes of the part that it replaces: it is not expanded.
bool FitsSlice(const OpInfo&, const Args& args) {
  const auto sizes = SizesOf(args, [&](const at::Tensor& self) {
    return at::slice(self, args[2].toInt(), args[3].toOptional<int64_t>(),
                     args[4].toOptional<int64_t>(), args[5].toInt());
  });
  return sizes.has_value() && args[1].toTensor().sizes() == at::IntArrayRef(*sizes);
}

bool FitsDiagonal(const OpInfo&, const Args& args) {
  const auto sizes = SizesOf(args, [&](const at::Tensor& self) {
    return at::diagonal(self, args[2].toInt(), args[3].toInt(), args[4].toInt());
  });
  return sizes.has_value() && args[1].toTensor().sizes() == at::IntArrayRef(*sizes);
}

// True if all dilations are positive, and a transposed convolution pads its output by less than a
// stride or a dilation.
bool FitsConvolution(const OpInfo& op, const Args& args) {
  const std::vector<int64_t> stride = args[op.FindArg("stride")].toIntVector();
  const std::vector<int64_t> dilation = args[op.FindArg("dilation")].toIntVector();
  const std::vector<int64_t> padding = args[op.FindArg("output_padding")].toIntVector();
  const auto positive = [](int64_t n) { return n > 0; };
  if (!std::all_of(dilation.begin(), dilation.end(), positive)) return false;
  if (!args[op.FindArg("transposed")].toBool()) return true;
  for (size_t d = 0; d < padding.size(); ++d) {
    // A list of one number stands for all dimensions.
    const int64_t step = stride[std::min(d, stride.size() - 1)];
    if (padding[d] >= std::max(step, dilation[std::min(d, dilation.size() - 1)])) return false;
  }
  return true;
}

// True if the range of a histogram has two ends.
bool FitsRange(const OpInfo& op, const Args& args) {
  return std::isfinite(args[op.FindArg("min")].toScalar().toDouble()) &&
         std::isfinite(args[op.FindArg("max")].toScalar().toDouble());
}

// True if there are as many weights as classes.
bool FitsClasses(const OpInfo& op, const Args& args) {
  const c10::IValue& weight = args[op.FindArg("weight")];
  const at::Tensor self = args[0].toTensor();
  return !weight.isTensor() || !weight.toTensor().defined() || self.dim() < 2 ||
         weight.toTensor().numel() == self.size(1);
}

bool FitsPlaces(const OpInfo&, const Args& args) {
  return args[1].toTensor().numel() == args[2].toTensor().numel();
}

// True if there is a dimension, or none is named.
bool HasDims(const OpInfo& op, const Args& args) {
  return args[0].toTensor().dim() > 0 || args[op.FindArg("dims")].toIntVector().empty();
}

struct CheckedRow {
  std::string_view op;  // without its overload
  bool (*takes)(const OpInfo&, const Args&);
};

constexpr CheckedRow kArgumentChecksRows[] = {
    {"aten::_fused_moving_avg_obs_fq_helper", KeepsSizes},
    {"aten::_fused_moving_avg_obs_fq_helper_functional", KeepsSizes},
    {"aten::_index_put_impl", TakesIndexedWrite},
    {"aten::_unsafe_index_put", TakesIndexedWrite},
    {"aten::convolution", FitsConvolution},
    {"aten::diagonal_scatter", FitsDiagonal},
    {"aten::histc", FitsRange},
    {"aten::index_add", FitsSource},
    {"aten::index_put", TakesIndexedWrite},
    {"aten::index_reduce", FitsSource},
    {"aten::lu_unpack", FitsPivots},
    {"aten::nll_loss2d_forward", FitsClasses},
    {"aten::put", FitsPlaces},
    {"aten::roll", HasDims},
    {"aten::slice_scatter", FitsSlice},
};

static_assert(IsSortedAndUnique(kArgumentChecksRows, &CheckedRow::op));

}  // namespace

bool TakesArguments(const OpInfo& op, const Args& args) {
  const std::string_view base = op.handle.operator_name().name;
  const CheckedRow* const row =
      std::lower_bound(std::begin(kArgumentChecksRows), std::end(kArgumentChecksRows), base,
                       [](const CheckedRow& r, std::string_view name) { return r.op < name; });
  return row == std::end(kArgumentChecksRows) || row->op != base || row->takes(op, args);
}

}  // namespace spmd::trace
