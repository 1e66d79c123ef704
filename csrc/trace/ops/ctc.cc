// SPDX-License-Identifier: Apache-2.0
// The CTC loss of a batch, one sequence at a time. PyTorch's op takes lengths as numbers and
// concatenated targets; so that the batch can be sharded, lengths become a tensor and targets
// become rows.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/index.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "csrc/trace/dispatch/run_on_host.h"
#include "csrc/trace/ops/handlers.h"
#include "csrc/trace/recorder/arguments.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/recorder/tensor.h"
#include "csrc/trace/session/session_state.h"

namespace spmd::trace {

namespace {

// A tensor of the device with these numbers.
at::Tensor Uploaded(const std::vector<int64_t>& numbers, at::IntArrayRef size) {
  const at::Tensor host = at::tensor(numbers, at::kLong).view(size);
  return NewTensor(TensorMeta::Contiguous(at::kLong, size), HostValue(host, /*steal=*/true));
}

int64_t Longest(const std::vector<int64_t>& lengths) {
  return lengths.empty() ? 0
                         : std::max<int64_t>(0, *std::max_element(lengths.begin(), lengths.end()));
}

// The targets as [batch, longest]; elements beyond the end of a target are never read.
at::Tensor TargetRows(const at::Tensor& targets, const std::vector<int64_t>& lengths) {
  if (targets.dim() == 2) return targets;
  const auto batch = static_cast<int64_t>(lengths.size());
  const int64_t longest = Longest(lengths);
  if (longest == 0) return at::zeros({batch, 0}, targets.options());
  std::vector<int64_t> places;
  int64_t start = 0;
  for (const int64_t length : lengths) {
    for (int64_t k = 0; k < longest; ++k) places.push_back(k < length ? start + k : 0);
    start += length;
  }
  return at::index(targets,
                   c10::List<std::optional<at::Tensor>>({Uploaded(places, {batch, longest})}));
}

struct Batch {
  Batch(const at::Tensor& log_probs, const at::Tensor& all_targets, const c10::IValue& inputs,
        const c10::IValue& given_targets)
      : steps(log_probs.size(0)),
        size(log_probs.size(1)),
        inputs(inputs.toIntVector()),
        given(given_targets.toIntVector()) {
    TORCH_CHECK(static_cast<int64_t>(this->inputs.size()) == size,
                "input_lengths must be of size batch_size");
    TORCH_CHECK(static_cast<int64_t>(given.size()) == size,
                "target_lengths must be of size batch_size");
    for (const int64_t length : this->inputs) {
      TORCH_CHECK(0 <= length && length <= steps, "Expected input_lengths to have value at most ",
                  steps, ", but got value ", length);
    }
    int64_t sum = 0;
    for (const int64_t length : given) {
      TORCH_CHECK(length >= 0, "Expected target_lengths to have value at least 0, but got value ",
                  length);
      sum += length;
    }
    if (all_targets.dim() == 1) {
      TORCH_CHECK(sum == all_targets.size(0), "Expected tensor for argument #2 'targets' to have ",
                  sum, " elements, as many as target_lengths says, but it has ",
                  all_targets.size(0));
    } else {
      TORCH_CHECK(all_targets.dim() == 2 && all_targets.size(0) == size &&
                      all_targets.size(1) >= Longest(given),
                  "Expected tensor for argument #2 'targets' to be [", size, ", at least ",
                  Longest(given), "], but got ", all_targets.sizes());
    }
    targets = TargetRows(all_targets, given);
    input_lengths = Uploaded(this->inputs, {size});
    target_lengths = Uploaded(given, {size});
  }
  int64_t steps, size;
  std::vector<int64_t> inputs, given;
  at::Tensor targets, input_lengths, target_lengths;
};

void CtcLoss(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor log_probs = a[0].toTensor(), targets = a[1].toTensor();
  if (log_probs.dim() != 3 || log_probs.numel() == 0 || !state.shapes.Infer(op, a).ok) {
    return RunOnHost(state, op, stack);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  const Batch batch(log_probs, targets, a[2], a[3]);
  const int64_t longest = Longest(batch.given);
  const TensorMeta loss = TensorMeta::Contiguous(log_probs.scalar_type(), {batch.size});
  const TensorMeta alpha =
      TensorMeta::Contiguous(log_probs.scalar_type(), {batch.size, batch.steps, 2 * longest + 1});
  torch::jit::drop(*stack, op.args.size());
  const TapeId first =
      Emit(state, GetOp("spmd::ctc_loss"),
           {c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue(), a[4], a[5], longest},
           {Read(state, log_probs), Read(state, batch.targets), Read(state, batch.input_lengths),
            Read(state, batch.target_lengths)},
           {TypeOf(loss), TypeOf(alpha)});
  stack->push_back(NewTensor(state, loss, first));
  stack->push_back(NewTensor(state, alpha, first + 1));
}

void CtcLossBackward(SessionState& state, const OpInfo& op, torch::jit::Stack* stack) {
  const Args a = PeekArguments(op, stack);
  const at::Tensor grad = a[0].toTensor(), log_probs = a[1].toTensor();
  if (log_probs.dim() != 3 || log_probs.numel() == 0) return RunOnHost(state, op, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  const Batch batch(log_probs, a[2].toTensor(), a[3], a[4]);
  torch::jit::drop(*stack, op.args.size());
  const TensorMeta meta = TensorMeta::Contiguous(log_probs.scalar_type(), log_probs.sizes());
  const TapeId id = Emit(state, GetOp("spmd::ctc_loss_backward"),
                         {c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue(), c10::IValue(),
                          c10::IValue(), c10::IValue(), a[7], a[8]},
                         {Read(state, grad), Read(state, log_probs), Read(state, batch.targets),
                          Read(state, batch.input_lengths), Read(state, batch.target_lengths),
                          Read(state, a[5].toTensor()), Read(state, a[6].toTensor())},
                         {TypeOf(meta)});
  stack->push_back(NewTensor(state, meta, id));
}

// Calls are not replayed, since lengths are uploaded from numbers that no recording contains.
constexpr HandlerRow kCtcHandlers[] = {
    {"aten::_ctc_loss", &CtcLoss},
    {"aten::_ctc_loss_backward", &CtcLossBackward},
};
static_assert(IsSortedAndUnique(kCtcHandlers, &HandlerRow::op));

}  // namespace

absl::Span<const HandlerRow> CtcHandlers() { return kCtcHandlers; }

}  // namespace spmd::trace
