// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/ops/equal_bags.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <vector>

#include "csrc/rules/registry.h"
#include "csrc/trace/op/attribute.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_lock.h"

namespace spmd::trace {

namespace {

// The difference of neighbours in 0, step, 2·step …, if `offsets` is a pending value of this kind.
std::optional<int64_t> StepFromZero(SessionState& state, const at::Tensor& offsets) {
  Buffer* const buffer = BufferOf(offsets);
  if (!buffer->pending() || RecipeOf(buffer, offsets) != nullptr) return std::nullopt;
  const Tape& tape = *state.tape;
  TapeId id = buffer->number();
  if (id == kNoId && buffer->made()->tape == tape.number()) id = buffer->made()->id;
  const int made_by = id == kNoId ? -1 : tape.origin(id).record;
  if (made_by < 0) return std::nullopt;
  const Recording& recording = tape.following() ? tape.lead() : tape.recording();
  const Record& record = recording.records[made_by];
  if (!rules::FactsOf(record.op->ir_name).enumerates) return std::nullopt;
  // Numbers that are passed at each run are the tape's own, whatever tape it follows.
  const std::vector<c10::IValue>& args = tape.ArgumentsOf(made_by);
  std::optional<int64_t> start, step;
  int scalar = record.first_scalar;
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgInfo& arg = record.op->args[i];
    const bool at_run_time = IsRuntimeValue(arg, args[i]);
    if (arg.name != "start" && arg.name != "step") {
      scalar += at_run_time ? 1 : 0;
      continue;
    }
    const c10::Scalar number = at_run_time ? tape.scalars()[scalar++] : args[i].toScalar();
    if (!number.isIntegral(/*includeBool=*/false)) return std::nullopt;
    (arg.name == "start" ? start : step) = number.to<int64_t>();
  }
  return start == 0 ? step : std::nullopt;
}

// The number of indices in each bag.
std::optional<int64_t> SizeOfBags(const BagCall& call) {
  const auto of_indices = [](const at::Tensor& t) {
    return Buffer::IsOurs(t) && t.dim() == 1 && t.numel() > 0 &&
           c10::isIntegralType(t.scalar_type(), /*includeBool=*/false);
  };
  if (!of_indices(call.indices) || !of_indices(call.offsets) || !Buffer::IsOurs(call.weight) ||
      call.weight.dim() != 2) {
    return std::nullopt;
  }
  const int64_t bags = call.offsets.size(0) - (call.include_last_offset ? 1 : 0);
  SessionLock lock;
  const std::optional<int64_t> size = StepFromZero(*lock, call.offsets);
  if (!size.has_value() || bags < 1 || *size < 1) return std::nullopt;
  return bags * *size == call.indices.size(0) ? size : std::nullopt;
}

// True if the ops below do what the call asks for, and PyTorch does not refuse it.
bool CanBeWritten(const BagCall& call) {
  if (call.sparse || call.mode < kSumOfBag || call.mode > kMaxOfBag) return false;
  if (call.mode == kMaxOfBag && call.scale_grad_by_freq) return false;
  const at::Tensor& factors = call.per_sample_weights;
  return !factors.defined() || (call.mode == kSumOfBag && Buffer::IsOurs(factors) &&
                                factors.sizes() == call.indices.sizes() &&
                                factors.scalar_type() == call.weight.scalar_type());
}

}  // namespace

std::optional<BagResults> EqualBags(const BagCall& call) {
  if (!CanBeWritten(call)) return std::nullopt;
  const std::optional<int64_t> size = SizeOfBags(call);
  if (!size.has_value()) return std::nullopt;
  const at::Tensor indices = call.indices.reshape({-1, *size});
  const int64_t bags = indices.size(0);
  const at::ScalarType type = call.weight.scalar_type();
  // [bags, size, width]; sums of half types are rounded once.
  at::Tensor rows =
      at::embedding(call.weight, indices, call.padding_idx, call.scale_grad_by_freq, false);
  if (at::isReducedFloatingType(type)) rows = rows.to(at::kFloat);
  if (call.per_sample_weights.defined()) {
    rows = rows.mul(call.per_sample_weights.view({bags, *size, 1}));
  }
  at::Tensor ignored, counts;  // undefined if all indices count
  if (call.padding_idx >= 0) {
    ignored = indices.eq(call.padding_idx);
    counts = ignored.logical_not().sum(1);
    rows =
        rows.masked_fill(ignored.unsqueeze(2),
                         call.mode == kMaxOfBag ? -std::numeric_limits<double>::infinity() : 0.0);
  }
  const at::TensorOptions of_indices = call.indices.options();
  at::Tensor output, greatest = at::zeros({bags}, of_indices);
  if (call.mode == kMaxOfBag) {
    const auto [values, places] = rows.max(1);
    output = values;
    greatest = indices.gather(1, places);
    if (counts.defined()) {
      const at::Tensor empty = counts.eq(0).unsqueeze(1);
      output = output.masked_fill(empty, 0);
      greatest = greatest.masked_fill(empty, 0);
    }
  } else if (call.mode == kSumOfBag) {
    output = rows.sum(1);
  } else {
    output = counts.defined() ? rows.sum(1).div(counts.clamp_min(1).unsqueeze(1)) : rows.mean(1);
  }
  const at::Tensor bag =
      at::arange(bags, of_indices).unsqueeze(1).expand({bags, *size}).reshape({-1});
  const at::Tensor sizes = call.mode == kSumOfBag ? at::zeros({bags}, of_indices)
                           : counts.defined()     ? counts.to(call.indices.scalar_type())
                                                  : at::full({bags}, *size, of_indices);
  return BagResults(output.to(type), bag, sizes, greatest);
}

}  // namespace spmd::trace
