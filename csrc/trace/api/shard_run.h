// SPDX-License-Identifier: Apache-2.0
// A region's function on shards that are only numbers (docs/design/0041-manual-regions.md).
//
// A region that comes again mostly calls the same ops. Then nothing needs to be computed, recorded
// or differentiated while its function runs: it is enough that each op is the one that is known to
// come next. A ShardRun hands the function tensors that know their shape and their number:
//
//   known program    0, 1, 2: arguments   3 = mm(0, 1)   4 = tanh(3)   5 = mm(4, 2)   6 = sum(5, x)
//   the function     mm(a, b)             is step 3 of operands 0 and 1: a shard with number 3
//                    tanh(…), mm(…)       steps 4 and 5
//                    psum(…, "x")         step 6, the program's result
//
// If all steps have come, and the tape follows a recording that has done the same at the same
// place, the tape skips what the region recorded there (csrc/trace/api/shard_places.h). Otherwise
// the steps are *performed*: under one level of vmap for each axis of the region, on tensors with
// lanes, which record and make nodes of autograd. A step that is not the one that is known is
// performed after all before it, and so are all that follow; they make up a new program.
//
// The function sees no difference, since shapes, types and errors are those of the ops. An op
// without a shard among its operands is none of the region's: it is done as everywhere. What cannot
// be done on such shards (writing in place, random numbers, reading values, hooks for saved
// tensors, whatever makes nodes of autograd: functions with a gradient of their own) ends the run
// before it is done: `End`. The region then runs its function again, under levels of vmap from the
// start.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "csrc/trace/api/lanes.h"
#include "csrc/trace/compat/keys.h"
#include "csrc/trace/compat/tensor_form.h"
#include "csrc/trace/recorder/region.h"

namespace spmd::trace {

// A function of shards that is one step, such as a collective.
class ShardFunction {
 public:
  virtual ~ShardFunction() = default;
  // Calls it with shards as vmap sees them on the region's levels, which begin with `first`.
  virtual at::Tensor Call(const std::vector<at::Tensor>& shards, int64_t first) const = 0;
};

// A dimension that is the lanes of an axis, as it is seen when those before it are hidden.
struct ShardLane {
  size_t axis;
  int64_t dim;
};
using ShardLanes = absl::InlinedVector<ShardLane, 2>;

// What the function of a region does: steps over numbered shards, the arguments first.
struct ShardProgram {
  struct Shard {
    compat::TensorForm form;
    at::ScalarType dtype = at::kFloat;
    ShardLanes lanes;  // along which axes it varies
    bool differentiable = false;
  };
  struct Argument {
    enum class Kind : uint8_t { kShard, kShards, kNumber, kOther };
    Kind kind = Kind::kOther;
    absl::InlinedVector<int32_t, 1> shards;  // -1: another tensor, or one that is not defined
    std::vector<at::Tensor> others;          // by item of `shards`; empty if there is no other
    c10::IValue value;                       // kNumber, kOther
  };
  // An op, a function of one list of shards, or else the sum of a shard over an axis.
  struct Step {
    const OpInfo* op = nullptr;
    std::shared_ptr<const ShardFunction> function;
    size_t axis = 0;
    bool grad_mode = false;
    at::ScalarType default_dtype = at::kFloat;
    absl::InlinedVector<Argument, 3> args;
    absl::InlinedVector<int32_t, 1> results;     // flattened; -1: not defined
    absl::InlinedVector<int32_t, 1> list_sizes;  // per result of the schema: -1, or how many
  };
  std::vector<compat::TensorForm> lanes;  // of the arguments
  std::vector<Shard> shards;
  std::vector<Step> steps;
  int32_t result = -1;         // of the region
  bool deterministic = false;  // whether PyTorch was told to use deterministic algorithms
  // False if a step depends on more than its shards and numbers (tensors from outside, random
  // numbers), so that it must be performed each time.
  bool repeatable = true;
};
using ShardProgramPtr = std::shared_ptr<const ShardProgram>;

// The levels of vmap of a region, one for each axis. Used by any thread.
class RegionLevels {
 public:
  virtual ~RegionLevels() = default;
  // Enters them; returns the first one.
  virtual int64_t Enter() const = 0;
  virtual void Leave(int64_t first) const = 0;
  virtual size_t axes() const = 0;
};

class ShardRun final : public ShardOps {
 public:
  // `lanes` have no history; `edges` are those of the whole tensors, invalid where nothing is
  // differentiated. axes[k][i] is the axis of dimension i of lanes[k]. `known` may be null. Steps
  // are performed as they come if `at_once`.
  ShardRun(std::shared_ptr<const RegionLevels> levels, std::vector<at::Tensor> lanes,
           absl::Span<const std::vector<int64_t>> axes, torch::autograd::edge_list edges,
           absl::Span<const LaneFormPtr> forms, ShardProgramPtr known, bool at_once);

  size_t arguments() const { return lanes_.size(); }
  at::Tensor Argument(size_t k) const { return MakeShard(static_cast<int32_t>(k)); }
  // The number of a shard of this run that nobody has given hooks or a history; nullopt for another
  // tensor.
  std::optional<int32_t> NumberOf(const at::Tensor& t) const;

  // An op of the function. Throws: what the op throws, and c10::Error when the run has ended.
  bool Call(const OpInfo& op, const CallArguments& args, ResultsTo results) override;
  // The sum over an axis; nullopt, having done nothing, if the shard does not vary along that axis
  // alone.
  std::optional<at::Tensor> Sum(const at::Tensor& shard, size_t axis);
  // A function of shards. `is_it` tells whether another one is the same, and `make` makes it, which
  // is needed only if it is not the one that is known to come next. Throws: what it throws.
  at::Tensor Apply(absl::Span<const at::Tensor> shards,
                   absl::FunctionRef<bool(const ShardFunction&)> is_it,
                   absl::FunctionRef<std::shared_ptr<const ShardFunction>()> make);
  // Ends the run, because what is asked for cannot be done on shards. Throws: c10::Error.
  [[noreturn]] void End();
  bool HasEnded() const { return ended_; }
  // True if the function has come to its end, and has done nothing that shards do not show.
  bool IsOver() const { return !ended_ && ShowsAll(); }

  // True if all steps of the known program have come, and no other, and this is its result.
  bool IsAsKnown(int32_t result) const {
    return !performs_ && next_ == program_->steps.size() && program_->result == result;
  }
  const ShardProgramPtr& program() const { return program_; }
  const ShardLanes& LanesOf(int32_t shard) const { return program_->shards[shard].lanes; }
  // Performs the steps that have come.
  void Perform();
  // A run of the same steps, performed once more. Requires: this one's were not performed.
  std::shared_ptr<ShardRun> PerformedCopy() const;
  // Requires, for these: the steps were performed.
  // The program whose result is this shard.
  ShardProgramPtr ProgramOf(int32_t result);
  // The shard as vmap sees it on levels from `first` on.
  at::Tensor Batched(int32_t shard, int64_t first) const;

  const torch::autograd::edge_list& edges() const { return edges_; }

 private:
  using Step = ShardProgram::Step;

  ShardRun(const ShardRun& other);
  bool ShowsAll() const;
  void Check();
  at::Tensor MakeShard(int32_t number) const;
  bool IsShard(const at::Tensor& t, int32_t number) const;
  void GiveResults(const Step& step, ResultsTo results) const;

  bool IsNext(const Step& step, const OpInfo& op, const CallArguments& args) const;
  bool Agrees(const ShardProgram::Argument& known, const CallArguments& args, size_t i) const;

  // The step of the known program that comes next, or null.
  const Step* Next() const;
  void Take(const Step& step, ResultsTo results);

  // The program as far as it has come, to which steps are added.
  ShardProgram& Learned();
  Step StepOf(const OpInfo& op, const CallArguments& args);
  ShardProgram::Argument ArgumentOf(const OpInfo& op, const CallArguments& args, size_t i);
  ShardProgram::Argument Tensors(absl::Span<const at::Tensor> tensors, bool is_list);
  void Learn(Step step, ResultsTo results);

  // The results of a step, as they are seen and as they are kept.
  struct Performed {
    struct Result {
      at::Tensor seen;
      at::Tensor value;
      ShardLanes lanes;
    };
    absl::InlinedVector<Result, 1> results;
    absl::InlinedVector<int32_t, 1> list_sizes;
  };
  Performed PerformStep(const Step& step);
  Performed PerformOp(const Step& step);
  Performed PerformFunction(const Step& step);
  Performed PerformSum(const Step& step) const;
  void Keep(Performed performed);
  std::vector<at::Tensor> OperandTensors(const ShardProgram::Argument& arg, int64_t first) const;
  c10::IValue Operand(const Step& step, size_t i, int64_t first) const;
  Performed::Result Unwrapped(const at::Tensor& seen, int64_t first);

  const uint64_t id_;
  const std::shared_ptr<const RegionLevels> levels_;
  std::vector<at::Tensor> lanes_;
  torch::autograd::edge_list edges_;
  const std::vector<LaneFormPtr> forms_;
  const compat::LocalDispatchKeySet keys_;
  const bool grad_mode_;
  uint64_t next_node_;  // the number of the next node of autograd, unless the function makes some
  ShardProgramPtr program_;
  size_t next_ = 0;        // how many steps have come
  bool performs_ = false;  // whether they were performed
  bool learns_ = false;    // whether program_ is this run's own
  bool ended_ = false;
  std::vector<at::Tensor> values_;  // of performed steps, by number of the shard
};

}  // namespace spmd::trace
