// SPDX-License-Identifier: Apache-2.0
// Reductions. Their sizes are those of a sum or a maximum, for which PyTorch has C++ functions.
#include <ATen/MetaFunctions.h>

#include "csrc/trace/shape/meta_functions.h"

namespace spmd::trace {

namespace {

using at::IntArrayRef;
using at::OptionalIntArrayRef;
using at::Tensor;
using std::optional;
using Two = std::tuple<Tensor, Tensor>;

Tensor Extreme(const Tensor& self) {
  Know(self.numel() > 0 && !self.is_complex());
  return MetaOfSizes({}, self.scalar_type());
}
Tensor Median(const Tensor& self) { return MetaOfSizes({}, self.scalar_type()); }
Tensor Product(const Tensor& self, optional<at::ScalarType> dtype) {
  return at::meta::sum(self, OptionalIntArrayRef(IntArrayRef{}), false, dtype);
}
Tensor NanSum(const Tensor& self, OptionalIntArrayRef dims, bool keepdim,
              optional<at::ScalarType> dtype) {
  Know(!self.is_complex());
  return at::meta::sum(self, dims, keepdim, dtype);
}
Tensor CountNonzero(const Tensor& self, IntArrayRef dims) {
  return at::meta::sum(self, dims, false, at::kLong);
}

// A value and its index along a dimension.
Two ValueAndPlace(const Tensor& self, int64_t dim, bool keepdim) {
  return at::meta::max(self, dim, keepdim);
}
Two KthValue(const Tensor& self, int64_t k, int64_t dim, bool keepdim) {
  Know(k >= 1 && k <= (self.dim() == 0 ? 1 : self.size(dim)));
  return at::meta::max(self, dim, keepdim);
}

Tensor Spread(const Tensor& self, OptionalIntArrayRef dims, const optional<at::Scalar>&,
              bool keepdim) {
  Know(self.is_floating_point() || self.is_complex());
  return at::meta::sum(self, dims, keepdim, c10::toRealValueType(self.scalar_type()));
}
Two SpreadAndMean(const Tensor& self, OptionalIntArrayRef dims,
                  const optional<at::Scalar>& correction, bool keepdim) {
  return {Spread(self, dims, correction, keepdim),
          at::meta::sum(self, dims, keepdim, self.scalar_type())};
}

Tensor Dot(const Tensor& self, const Tensor& other) {
  Know(self.dim() == 1 && self.sizes() == other.sizes());
  Know(self.scalar_type() == other.scalar_type());
  return MetaOfSizes({}, self.scalar_type());
}
Tensor Trace(const Tensor& self) {
  Know(self.dim() == 2);
  const bool whole = at::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  return MetaOfSizes({}, whole ? at::kLong : self.scalar_type());
}

constexpr MetaKernelRow kReductionMetaKernels[] = {
    {"aten::count_nonzero.dim_IntList", &MetaKernel<&CountNonzero>},
    {"aten::dot", &MetaKernel<&Dot>},
    {"aten::kthvalue", &MetaKernel<&KthValue>},
    {"aten::max", &MetaKernel<&Extreme>},
    {"aten::median", &MetaKernel<&Median>},
    {"aten::median.dim", &MetaKernel<&ValueAndPlace>},
    {"aten::min", &MetaKernel<&Extreme>},
    {"aten::mode", &MetaKernel<&ValueAndPlace>},
    {"aten::nanmedian", &MetaKernel<&Median>},
    {"aten::nanmedian.dim", &MetaKernel<&ValueAndPlace>},
    {"aten::nansum", &MetaKernel<&NanSum>},
    {"aten::prod", &MetaKernel<&Product>},
    {"aten::std.correction", &MetaKernel<&Spread>},
    {"aten::std_mean.correction", &MetaKernel<&SpreadAndMean>},
    {"aten::trace", &MetaKernel<&Trace>},
    {"aten::var.correction", &MetaKernel<&Spread>},
    {"aten::var_mean.correction", &MetaKernel<&SpreadAndMean>},
    {"aten::vdot", &MetaKernel<&Dot>},
};
static_assert(IsSortedAndUnique(kReductionMetaKernels, &MetaKernelRow::op));

}  // namespace

absl::Span<const MetaKernelRow> ReductionMetaKernels() { return kReductionMetaKernels; }

}  // namespace spmd::trace
