// SPDX-License-Identifier: Apache-2.0
// Which backward passes end in a cut.
//
// If a pass adds to gradients that exist, as micro-steps do, then from then on every pass is a
// program of its own, so that all passes are the same program:
//
//   loss_1.backward(); loss_2.backward(); …; optimizer.step()
//
// until an optimizer steps after a single pass. A pass of torch.autograd.grad, which returns what
// it computes and adds to nothing, is none of them: it is a part of the program around it.
//
// Thread safety: guarded by the session's lock.
#pragma once

#include <cstdint>
#include <utility>

namespace spmd::trace {

class MicroSteps {
 public:
  // Notes an op of the graph task `task` (-1: of no backward pass). `updates_first`: the op writes
  // into its first operand.
  void Note(int64_t task, bool updates_first);
  // The graph task that must end in a cut, once for each task; -1 if there is none.
  int64_t TakeEnding() { return std::exchange(due_, -1); }
  // Notes that an optimizer has stepped.
  void OptimizerStepped();

 private:
  // True if a pass has added to gradients that existed.
  bool accumulates_ = false;
  int64_t last_task_ = -1;    // the graph task of the last op of a backward pass
  bool returns_ = false;      // whether it returns gradients instead of adding them to leaves
  int64_t ending_task_ = -1;  // the graph task that will end in a cut
  int64_t due_ = -1;          // the same, until TakeEnding
  int passes_since_step_ = 0;
};

}  // namespace spmd::trace
