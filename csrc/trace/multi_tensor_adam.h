// SPDX-License-Identifier: Apache-2.0
// The default step of torch.optim's Adam and AdamW as one record.
//
// PyTorch does this step in about eight ops on lists of all parameters, and counts steps in one
// host tensor per parameter (torch.optim.adam._multi_tensor_adam). Here the step is one op,
// `spmd::multi_tensor_adam_`, which the compiler decomposes parameter by parameter into the
// element-wise ops that the eight become: the bits and the program are the same. Counters stay on
// the host.
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

// Numbers that the caller computes, in Python's arithmetic.
struct AdamNumbers {
  bool maximize = false, amsgrad = false;
  std::optional<double> shrink;  // parameters are multiplied by it first: decoupled decay
  std::optional<double> decay;   // how much of a parameter is added to its gradient
  double first_weight = 0;       // 1 - beta1
  double beta2 = 0;
  double second_weight = 0;    // 1 - beta2
  double root_correction = 0;  // (1 - beta2^t)^½
  double eps = 0;
  double step_size = 0;  // -lr / (1 - beta1^t)
};

// Records the step and counts it; `step` is its number by the counters. Returns false, and does
// nothing, if PyTorch's own implementation must be used: for tensors of other devices or types, a
// gradient that shares its parameter's memory, counters that are not on the host or differ from
// `step`, a dispatch mode, or gradients through the step.
// Throws: what writing to the tensors of `lists` throws; then nothing is counted.
bool StepAdam(const AdamLists& lists, const AdamNumbers& numbers, double step);

// Defines the op. Called once, before any op is looked up by name.
void DefineMultiTensorAdam();

}  // namespace spmd::trace
