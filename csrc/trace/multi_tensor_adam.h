// SPDX-License-Identifier: Apache-2.0
// The step that torch.optim's Adam and AdamW take by default, as one record.
//
// PyTorch takes it by some eight ops on lists of all parameters, and counts steps in a tensor of
// the host for each of them (torch.optim.adam._multi_tensor_adam). Here it is one op,
// `spmd::multi_tensor_adam_`, that is taken apart when it is compiled, parameter by parameter, into
// the element-wise ops that the eight become: the same bits, the same program. Counters stay where
// they are.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace spmd::trace {

// One entry per parameter, as _multi_tensor_adam takes them.
struct AdamLists {
  std::vector<at::Tensor> params, grads, exp_avgs, exp_avg_sqs;
  std::vector<at::Tensor> max_exp_avg_sqs;  // empty without amsgrad
  std::vector<at::Tensor> counters;         // of the steps that were taken
};

// As the caller computes them, in Python's arithmetic.
struct AdamNumbers {
  bool maximize = false, amsgrad = false;
  std::optional<double> shrink;  // what parameters are multiplied by first: decoupled decay
  std::optional<double> decay;   // how much of a parameter is added to its gradient
  double first_weight = 0;       // 1 - beta1
  double beta2 = 0;
  double second_weight = 0;    // 1 - beta2
  double root_correction = 0;  // (1 - beta2^t)^½
  double eps = 0;
  double step_size = 0;  // -lr / (1 - beta1^t)
};

// Takes the step, the `step`-th by the counters, and counts it. False, and nothing is done, where
// PyTorch's own way must be gone: tensors of other devices or types, a gradient that lies in its
// parameter, counters that are not the host's or say otherwise, a dispatch mode, gradients through
// the step.
// Throws: what writing to the tensors throws; then nothing is counted.
bool StepAdam(const AdamLists& lists, const AdamNumbers& numbers, double step);

// Once, before anybody asks for an op by name.
void DefineMultiTensorAdam();

}  // namespace spmd::trace
