// SPDX-License-Identifier: Apache-2.0
// What the device knows of the manual regions that a thread is in
// (docs/design/0041-manual-regions.md). In a region, shards have one leading dimension for each
// axis, and no mark. So a tensor with a mark over a manual axis comes from outside, and is refused
// where an op takes it:
//
//   EnterRegion(/*first_level=*/1, &x);  // ["x"]
//   WatchRegion(args);  // throws if one of them is marked over x, or over a part of x
//   LeaveRegions(/*first_level=*/1);
//
// Other threads are in no region, so what they run in the meantime is not looked at.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/trace/recorder/replay.h"

namespace spmd::trace {

// How many regions this thread is in, and in how many of them operands are checked.
inline thread_local int regions_entered = 0;
inline thread_local int regions_checked = 0;

// `first_level` is the level of torch.func of the region's first axis; regions that are entered
// later have higher ones. Operands are checked if `axes` has names. It lives until the region is
// left.
void EnterRegion(int64_t first_level, const std::vector<std::string>* axes);
// Leaves the regions whose first level is `first_level` or higher.
void LeaveRegions(int64_t first_level);

// Looks at an op with these operands. Requires: the session's lock is held, and regions_entered >
// 0. Throws: c10::ValueError that says which tensor, "a tensor of shape (8,) from outside that is
// sharded over the manual axis 'x'". Python says of which region.
void WatchRegion(const OpInfo& op, const CallArguments& args);

// What does the ops of a thread that runs a region's function on shards
// (csrc/trace/api/shard_run.h).
class ShardOps {
 public:
  virtual ~ShardOps() = default;
  // False if the op has nothing to do with shards, so that it is done as everywhere.
  virtual bool Call(const OpInfo& op, const CallArguments& args, ResultsTo results) = 0;
};
inline thread_local ShardOps* shard_ops = nullptr;

// How many ops of regions of this thread wrote or drew random numbers.
inline thread_local int64_t ops_with_effects = 0;

// True while hooks are set in this thread that see nodes of autograd when they are made:
// torch.autograd.graph.saved_tensors_hooks and, where PyTorch has it, node_creation_hook.
bool NodesAreSeen();

// How many ops of regions of this thread were seen by such hooks.
inline thread_local int64_t ops_under_hooks = 0;

// While it lives on a thread, `spmd::reshard` gives its results no mark, because they become
// shards.
class MakingShards {
 public:
  MakingShards() : before_(making) { making = true; }
  ~MakingShards() { making = before_; }
  MakingShards(const MakingShards&) = delete;
  static bool Now() { return making; }

 private:
  static inline thread_local bool making = false;
  const bool before_;
};

}  // namespace spmd::trace
