// SPDX-License-Identifier: Apache-2.0
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ScalarOps.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_sigmoid_forward.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {

Tensor Iota(int64_t size, const at::Scalar& start, const at::Scalar& step, int64_t offset,
            at::ScalarType dtype, std::optional<at::Device> device) {
  const at::TensorOptions options =
      at::TensorOptions().device(device.value_or(at::Device(at::kCPU)));
  if (at::isIntegralType(dtype, /*includeBool=*/true) && start.isIntegral(true) &&
      step.isIntegral(true)) {
    Tensor index = at::arange(offset, offset + size, options.dtype(at::kLong));
    return index.mul_(step.toLong()).add_(start.toLong()).to(dtype);
  }
  // start + i*step is computed in doubles and rounded once, so that no element depends on where its
  // tile begins.
  Tensor index = at::arange(offset, offset + size, options.dtype(at::kDouble));
  return index.mul_(step.toDouble()).add_(start.toDouble()).to(dtype);
}

Tensor Full(IntArrayRef size, const at::Scalar& value, at::ScalarType dtype,
            std::optional<at::Device> device) {
  return at::full(size, value,
                  at::TensorOptions().dtype(dtype).device(device.value_or(at::Device(at::kCPU))));
}

std::tuple<Tensor, Tensor> LogSigmoidForward(const Tensor& self) {
  auto [result, buffer] = at::log_sigmoid_forward(self);
  if (buffer.sizes() != self.sizes()) buffer = at::zeros_like(self);
  return {result, buffer};
}

Tensor Cast(const Tensor& x, at::ScalarType dtype) { return x.to(dtype); }

// PyTorch's in-place op rounds the number to the tensor's type before it multiplies; mul.Scalar and
// `x *= 0.9` do not, and in half precision the product differs.
Tensor& MulScalar_(Tensor& self, const at::Scalar& other) {
  return self.mul_(at::native::wrapped_scalar_tensor(other));
}

Tensor InRange(const Tensor& x, double low, double high, c10::string_view refusal) {
  if (x.is_meta()) return at::empty_like(x);
  if (x.numel() == 0) return x;
  const auto [least, most] = at::aminmax(x);
  const bool above = least.item<double>() >= low;  // false for NaN
  if (above && most.item<double>() <= high) return x;
  std::string text(refusal);
  const size_t place = text.find("{}");
  if (place != std::string::npos) {
    const at::Scalar outside = (above ? most : least).item();
    text.replace(place, 2, c10::str(outside));
  }
  TORCH_CHECK(false, text);
}

Tensor AtBorder(const Tensor& x, IntArrayRef size, c10::string_view /*border*/,
                c10::string_view /*mesh*/) {
  return x.is_meta() ? at::empty(size, x.options()) : x.alias();
}

Tensor Reorder(const Tensor& x, int64_t dim, IntArrayRef index) {
  if (index.empty()) return x;
  if (x.is_meta()) return at::empty(x.sizes(), x.options());
  std::vector<int64_t> size = x.sizes().vec();
  std::vector<Tensor> parts;
  for (size_t i = 0; i < index.size();) {
    const bool filled = index[i] < 0;
    size_t end = i + 1;
    while (end < index.size() && index[end] == (filled ? index[i] : index[end - 1] + 1)) ++end;
    const auto count = static_cast<int64_t>(end - i);
    size[dim] = count;
    parts.push_back(filled ? at::zeros(size, x.options()) : x.narrow(dim, index[i], count));
    i = end;
  }
  return at::cat(parts, dim);
}

Tensor RollStart(const Tensor& x, const Tensor& beside, int64_t dim, int64_t shift, int64_t reach,
                 int64_t size) {
  const int64_t length = x.size(dim);
  if (length == size) return x.roll(shift, dim);
  shift = size == 0 ? 0 : (shift % size + size) % size;
  if (shift > size / 2) shift -= size;
  const int64_t rows = std::abs(shift);
  TORCH_CHECK(rows <= std::abs(reach) && (shift == 0 || (shift > 0) == (reach > 0)), "shift ",
              shift, " is not within ", reach);
  if (length == 0) return x.clone();
  if (shift >= 0) {
    return at::cat(
        {beside.narrow(dim, beside.size(dim) - rows, rows), x.narrow(dim, 0, length - rows)}, dim);
  }
  return at::cat({x.narrow(dim, rows, length - rows), beside.narrow(dim, 0, rows)}, dim);
}

Tensor SliceStart(const Tensor& x, int64_t dim, int64_t start, int64_t length) {
  return x.narrow(dim, start, length);
}

Tensor SliceStartScatter(const Tensor& x, const Tensor& src, int64_t dim, int64_t start) {
  Tensor result = x.clone();
  SliceStartScatter_(result, src, dim, start);
  return result;
}

Tensor& SliceStartScatter_(Tensor& x, const Tensor& src, int64_t dim, int64_t start) {
  x.narrow(dim, start, src.size(dim)).copy_(src);
  return x;
}

Tensor SliceScatter(const Tensor& x, const Tensor& src, int64_t dim, std::optional<int64_t> start,
                    std::optional<int64_t> end, int64_t step) {
  Tensor result = x.clone();
  return SliceScatter_(result, src, dim, start, end, step);
}

Tensor SelectScatter(const Tensor& x, const Tensor& src, int64_t dim, int64_t index) {
  Tensor result = x.clone();
  return SelectScatter_(result, src, dim, index);
}

Tensor DiagonalScatter(const Tensor& x, const Tensor& src, int64_t offset, int64_t dim1,
                       int64_t dim2) {
  Tensor result = x.clone();
  result.diagonal(offset, dim1, dim2).copy_(src);
  return result;
}

Tensor& SliceScatter_(Tensor& x, const Tensor& src, int64_t dim, std::optional<int64_t> start,
                      std::optional<int64_t> end, int64_t step) {
  x.slice(dim, start, end, step).copy_(src);
  return x;
}

Tensor& SelectScatter_(Tensor& x, const Tensor& src, int64_t dim, int64_t index) {
  x.select(dim, index).copy_(src);
  return x;
}

}  // namespace spmd::runtime::kernels
