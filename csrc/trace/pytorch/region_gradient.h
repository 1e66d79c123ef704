// SPDX-License-Identifier: Apache-2.0
// The gradient of a manual region as one node of autograd, which is replayed as one call.
//
// Nobody sees the inside of a region. So the nodes of its ops need not be run one by one by
// PyTorch's engine, which spends 14,000 instructions on each of them, if it is known what they
// would record:
//
//   const RegionStart start = BeginRegion();
//   at::Tensor y = …;                           nodes  y → SumBackward → … → LanesBackward → x, w
//   JoinNodes(y, start);                               y → RegionBackward → x, w
//
// The first time, the nodes inside run in a pass of the engine of their own, and what they record
// is noted as one call (csrc/trace/recorder/replay.h). From then on the call is replayed.
//
// What is replayed is right because a tape that follows a recording has recorded the same ops, so
// the region has computed the same function. Its derivative depends on that, on which values were
// differentiated, which the nodes and their edges tell, and on the numbers among the arguments of
// ops. All of it is the key of the call.
//
// Nodes stay as they are where somebody sees them or where they do more: hooks of nodes and of
// saved tensors, functions written in Python, anomaly mode, transforms. If second derivatives or
// some of the gradients are asked for, the nodes inside run.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace spmd::trace {

// What is known when a region begins, before its first op.
struct RegionStart {
  uint64_t first_node = 0;  // the sequence number of the next node that this thread makes
  uint64_t tape = 0;
  size_t scalars = 0;  // how many numbers the tape has
  int64_t ops_under_hooks = 0;
};
RegionStart BeginRegion();

// How the nodes of a region were joined.
struct JoinedRegion {
  // The key of the call: the number of the result's value, the structure of the nodes, and the
  // numbers among the arguments of the ops. Once other nodes have recorded the same, as those that
  // vmap makes of another decomposition do, it is theirs. Thread safety: the session's lock.
  std::array<int64_t, 5> key = {};
  std::vector<int32_t> out;   // by edge of the node: the argument to which it leads
  std::vector<int32_t> edge;  // by argument: the edge that leads to it, or -1
};
using JoinedRegionPtr = std::shared_ptr<JoinedRegion>;

// What did not turn out as foreseen of a region. Thread safety: the session's lock.
struct RegionFailures {
  // Gradients that were not noted as a call, or not as the call that a recording has. Then the
  // nodes of the region are not joined any more.
  int other_calls = 0;
  // Gradients for which nodes had to be made, and whether there were some since the flag was
  // cleared.
  int without_nodes = 0;
  bool lately = false;

  bool joins() const { return other_calls < kMost; }
  static constexpr int kMost = 3;
};
using RegionFailuresPtr = std::shared_ptr<RegionFailures>;

// Gives `result` one node in the place of those that were made since `start`, where that can be
// done. Returns how, or null if it was not done or if an edge leads elsewhere than to the
// arguments, whose edges are `arguments`. Requires: `result` is a new tensor that nobody else has;
// the region has been left.
JoinedRegionPtr JoinNodes(const at::Tensor& result, const RegionStart& start,
                          const torch::autograd::edge_list& arguments,
                          const RegionFailuresPtr& failures);

// Whether the gradients of arguments with these edges go the same ways.
bool LeadAlike(const JoinedRegion& joined, const torch::autograd::edge_list& arguments);

// Gives `result` the node that JoinNodes would give it, without nodes inside. `make_inside` makes
// them, in grad mode, each time that they must run: it gives the edge of the result. `tape` is the
// number of the tape that has the result's value.
void JoinWithoutNodes(const at::Tensor& result, const JoinedRegionPtr& joined,
                      const torch::autograd::edge_list& arguments,
                      const RegionFailuresPtr& failures, uint64_t tape,
                      std::function<torch::autograd::Edge()> make_inside);

// Defines the op of the device, once per process.
void RegisterRegionGradient();

}  // namespace spmd::trace
