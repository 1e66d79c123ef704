// SPDX-License-Identifier: Apache-2.0
// On the CPU, one pass over the rows. On other devices, ATen ops do the same index arithmetic.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "csrc/runtime/kernels/kernels.h"

namespace spmd::runtime::kernels {
namespace {

// The targets of all rows, as they concern the held classes.
struct Rows {
  Rows(const Tensor& target, const OptionalTensor& weight, at::ScalarType type, int64_t classes,
       int64_t ignore_index, int64_t first_class, int64_t num_classes = -1)
      : target_(target.to(at::kLong).reshape({-1}).contiguous()),
        targets(target_.const_data_ptr<int64_t>()),
        classes(classes),
        ignore_index(ignore_index),
        first_class(first_class),
        num_classes(num_classes) {
    if (weight.has_value() && weight->defined()) {
      weight_ = weight->to(type).contiguous();
      // The weights are those of the held classes, or of all classes.
      weight_is_local = weight_.size(0) == classes;
      TORCH_CHECK(weight_is_local || weight_.size(0) >= first_class + classes,
                  "nll_loss: weight has ", weight_.size(0), " entries for classes ", first_class,
                  " to ", first_class + classes);
    }
  }

  int64_t count() const { return target_.numel(); }
  bool Ignored(int64_t row) const {
    const int64_t t = targets[row];
    if (t == ignore_index) return true;
    TORCH_CHECK_INDEX(t >= 0 && (num_classes < 0 || t < num_classes), "Target ", t,
                      " is out of bounds.");
    return false;
  }
  // The held column of the row's target, or -1.
  int64_t Column(int64_t row) const {
    const int64_t c = targets[row] - first_class;
    return c >= 0 && c < classes ? c : -1;
  }
  template <typename T>
  T Weight(int64_t row) const {
    if (!weight_.defined()) return T(1);
    const int64_t c = targets[row] - (weight_is_local ? first_class : 0);
    TORCH_CHECK_INDEX(c >= 0 && c < weight_.size(0), "Target ", targets[row],
                      " has no entry in the class weights.");
    return weight_.const_data_ptr<T>()[c];
  }

 private:
  Tensor target_;
  Tensor weight_;

 public:
  const int64_t* targets;
  int64_t classes;
  int64_t ignore_index;
  int64_t first_class;
  int64_t num_classes;
  bool weight_is_local = false;
};

Tensor OnHost(const Tensor& x) { return x.is_cpu() ? x : x.cpu(); }
OptionalTensor OnHost(const OptionalTensor& x) {
  if (!x.has_value() || !x->defined()) return std::nullopt;
  return OnHost(*x);
}

// The loss of each row times its class weight; 0 if the target is ignored or held by another shard.
// `weights` (may be null) receives what each row adds to the total weight.
template <typename T, typename Work>
void RowLosses(const Tensor& logp, const Rows& rows, T* losses, Work* weights) {
  const T* p = logp.const_data_ptr<T>();
  const int64_t c = rows.classes;
  at::parallel_for(0, rows.count(), 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t column = rows.Ignored(i) ? -1 : rows.Column(i);
      const Work w = column < 0 ? Work(0) : static_cast<Work>(rows.Weight<Work>(i));
      losses[i] = column < 0 ? T(0) : static_cast<T>(-w * static_cast<Work>(p[i * c + column]));
      if (weights != nullptr) weights[i] = w;
    }
  });
}

void CheckLogp(const Tensor& logp, const Tensor& target) {
  TORCH_CHECK(
      logp.dim() == target.dim() + 1 && logp.sizes().slice(0, target.dim()) == target.sizes(),
      "nll_loss: logp ", logp.sizes(), " and target ", target.sizes(),
      " must be [..., c] and [...]");
}

at::ScalarType LossType(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace

std::tuple<Tensor, Tensor> NllSum(const Tensor& logp, const Tensor& target,
                                  const OptionalTensor& weight, int64_t ignore_index,
                                  int64_t first_class, int64_t num_classes) {
  CheckLogp(logp, target);
  const at::ScalarType work = LossType(logp.scalar_type());
  if (logp.is_meta()) {
    const at::TensorOptions options = logp.options().dtype(work);
    return {at::empty({}, options), at::empty({}, options)};
  }
  const Tensor p = OnHost(logp).contiguous();
  const Rows rows(OnHost(target), OnHost(weight), work, logp.size(-1), ignore_index, first_class,
                  num_classes);
  Tensor loss, total;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, p.scalar_type(), "nll_sum", [&] {
    using Work = at::opmath_type<scalar_t>;
    const scalar_t* in = p.const_data_ptr<scalar_t>();
    double loss_sum = 0, weight_sum = 0;
    for (int64_t i = 0; i < rows.count(); ++i) {
      if (rows.Ignored(i)) continue;
      const int64_t column = rows.Column(i);
      if (column < 0) continue;
      const double w = rows.Weight<Work>(i);
      loss_sum -= w * static_cast<double>(in[i * rows.classes + column]);
      weight_sum += w;
    }
    loss = at::empty({}, p.options().dtype(work)).fill_(loss_sum);
    total = at::empty({}, p.options().dtype(work)).fill_(weight_sum);
  });
  return {loss.to(logp.device()), total.to(logp.device())};
}

Tensor NllRows(const Tensor& logp, const Tensor& target, const OptionalTensor& weight,
               int64_t ignore_index, int64_t first_class, int64_t num_classes) {
  CheckLogp(logp, target);
  Tensor result = at::empty(target.sizes(), logp.options());
  if (logp.is_meta()) return result;
  const Tensor p = OnHost(logp).contiguous();
  const Rows rows(OnHost(target), OnHost(weight), LossType(logp.scalar_type()), logp.size(-1),
                  ignore_index, first_class, num_classes);
  Tensor losses = at::empty(target.sizes(), p.options());
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, p.scalar_type(), "nll_rows", [&] {
    using Work = at::opmath_type<scalar_t>;
    RowLosses<scalar_t, Work>(p, rows, losses.mutable_data_ptr<scalar_t>(), nullptr);
  });
  return losses.to(logp.device());
}

Tensor NllDInput(const Tensor& grad, const Tensor& target, const OptionalTensor& weight,
                 const Tensor& scale, int64_t num_classes, int64_t ignore_index,
                 int64_t first_class) {
  std::vector<int64_t> size = target.sizes().vec();
  size.push_back(num_classes);
  if (grad.is_meta()) return at::empty(size, grad.options());
  Tensor result = at::zeros(size, grad.options().device(at::kCPU));
  const at::ScalarType work = LossType(grad.scalar_type());
  const Rows rows(OnHost(target), OnHost(weight), work, num_classes, ignore_index, first_class);
  const Tensor g = OnHost(grad).to(work).reshape({-1}).contiguous();
  TORCH_CHECK(g.numel() == 1 || g.numel() == rows.count(), "spmd::nll_dinput: grad ", grad.sizes(),
              " must be one number or one per row of ", target.sizes());
  const double factor = OnHost(scale).item<double>();
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, result.scalar_type(), "nll_dinput", [&] {
        using Work = at::opmath_type<scalar_t>;
        const Work* in = g.const_data_ptr<Work>();
        scalar_t* out = result.mutable_data_ptr<scalar_t>();
        const int64_t step = g.numel() == 1 ? 0 : 1;
        for (int64_t i = 0; i < rows.count(); ++i) {
          const int64_t column = rows.Ignored(i) ? -1 : rows.Column(i);
          if (column < 0) continue;
          out[i * num_classes + column] = static_cast<scalar_t>(
              -rows.Weight<Work>(i) * in[i * step] * static_cast<Work>(factor));
        }
      });
  return result.to(grad.device());
}

Tensor CrossEntropyDInput(const Tensor& grad, const Tensor& logp, const Tensor& target,
                          const OptionalTensor& weight, const Tensor& scale, int64_t ignore_index,
                          int64_t first_class) {
  CheckLogp(logp, target);
  if (logp.is_meta()) return at::empty(logp.sizes(), logp.options());
  const int64_t c = logp.size(-1);
  const Tensor p = OnHost(logp).contiguous().view({target.numel(), c});
  Tensor result = at::empty(p.sizes(), p.options());
  const at::ScalarType work = LossType(p.scalar_type());
  const Rows rows(OnHost(target), OnHost(weight), work, c, ignore_index, first_class);
  const Tensor g = OnHost(grad).to(work).reshape({-1}).contiguous();
  const double factor = OnHost(scale).item<double>();
  const bool half = at::isReducedFloatingType(p.scalar_type());
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kHalf, at::kBFloat16, p.scalar_type(), "cross_entropy_dinput", [&] {
        using Work = at::opmath_type<scalar_t>;
        const Work* in = g.const_data_ptr<Work>();
        const int64_t step = g.numel() == 1 ? 0 : 1;
        scalar_t* out = result.mutable_data_ptr<scalar_t>();
        // ATen's vectorized exp computes a few rows, which are then read again while they are in
        // the cache.
        const int64_t block = std::max<int64_t>(1, 16384 / std::max<int64_t>(c, 1));
        at::parallel_for(0, rows.count(), block, [&](int64_t begin, int64_t end) {
          for (int64_t first = begin; first < end; first += block) {
            const int64_t count = std::min(block, end - first);
            // In half precision a probability near 1 would be rounded to 1, and its target's
            // gradient to 0.
            Tensor part = half ? at::empty({count, c}, p.options().dtype(work))
                               : result.narrow(0, first, count);
            at::exp_out(part, p.narrow(0, first, count).to(work));
            const Work* probabilities = part.const_data_ptr<Work>();
            for (int64_t i = first; i < first + count; ++i) {
              const Work* from = probabilities + (i - first) * c;
              scalar_t* row = out + i * c;
              if (rows.Ignored(i)) {
                std::fill_n(row, c, scalar_t(0));
                continue;
              }
              const Work f = rows.Weight<Work>(i) * in[i * step] * static_cast<Work>(factor);
              const int64_t column = rows.Column(i);
              const Work probability = column < 0 ? Work(0) : from[column];
              for (int64_t k = 0; k < c; ++k) row[k] = static_cast<scalar_t>(from[k] * f);
              if (column >= 0) row[column] = static_cast<scalar_t>((probability - Work(1)) * f);
            }
          }
        });
      });
  return result.view(logp.sizes()).to(logp.device());
}

}  // namespace spmd::runtime::kernels
