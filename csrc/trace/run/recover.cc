// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/recover.h"

#include <algorithm>
#include <utility>

#include "csrc/ir/part.h"
#include "csrc/partition/compile.h"
#include "csrc/rules/registry.h"
#include "csrc/runtime/tiled_tensor.h"
#include "csrc/trace/program/single_node.h"
#include "csrc/trace/run/wait.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

using Arguments = std::vector<runtime::LoadedProgram::Argument>;

bool IsWorthIt(const absl::Status& status) {
  return status.code() != absl::StatusCode::kCancelled &&
         status.code() != absl::StatusCode::kResourceExhausted;
}

// Returns the arguments that the run did not take, which get their tiles back. A value whose run
// was over while this one had its tiles was lost only until now.
Arguments TakeBack(RunInFlight& f) {
  Arguments left = f.run->TakeBackArguments();
  left.resize(f.arguments.size());
  for (size_t k = 0; k < left.size(); ++k) {
    const ValuePtr value = f.arguments[k].value.lock();
    if (value == nullptr || left[k].value == nullptr || value->tiles != nullptr) continue;
    value->tiles = left[k].value;
    value->run = nullptr;
    value->poison = absl::OkStatus();
  }
  return left;
}

// Fetches arguments from other failed runs that have computed them since. Returns for each argument
// the failure for which it is missing.
std::vector<absl::Status> FindArguments(SessionState& state, const RunInFlight& f,
                                        const absl::Status& status, Arguments& left) {
  std::vector<absl::Status> missing(left.size());
  for (size_t k = 0; k < left.size(); ++k) {
    if (left[k].value != nullptr) continue;
    missing[k] = status;
    const runtime::PendingRunPtr run = f.arguments[k].run.lock();
    RunInFlight* const maker = run == nullptr ? nullptr : state.in_flight.Find(run);
    if (maker == nullptr || run->Wait().ok()) continue;
    Recover(state, *maker);
    auto result = run->Result(f.arguments[k].output, /*take=*/false);
    if (result.ok()) {
      left[k].value = *std::move(result);
      missing[k] = absl::OkStatus();
    } else {
      missing[k] = maker->errors[f.arguments[k].output];
    }
  }
  return missing;
}

// The values of a graph, computed op by op on whole tensors of the host.
class OpByOp {
 public:
  OpByOp(SessionState& state, RunInFlight& f)
      : state_(state),
        f_(f),
        graph_(f.program->program->traced),
        values_(graph_.num_values()),
        lost_(graph_.num_values()),
        uses_(graph_.num_values()) {}

  // `left` are the program's arguments; those that are `missing` are lost.
  absl::Status Begin(const Arguments& left, const std::vector<absl::Status>& missing) {
    for (size_t k = 0; k < left.size(); ++k) {
      const ir::ValueId v = graph_.inputs()[k];
      lost_[v] = missing[k];
      if (!missing[k].ok() || graph_.value(v).manual != 0) continue;
      SPMD_ASSIGN_OR_RETURN(values_[v], runtime::Download(*left[k].value, /*peers=*/nullptr));
    }
    return absl::OkStatus();
  }

  // Computes what the outputs `wanted` need. An op that fails loses what depends on it.
  // Errors: those after which nothing more is worth computing.
  absl::Status Compute(const std::vector<int>& wanted) {
    const std::vector<bool> needed = CountUses(wanted);
    for (ir::NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (!needed[id]) continue;
      const absl::Status status = RunOp(id);
      if (!status.ok() && !IsWorthIt(status)) return status;
      const ir::Node& node = graph_.node(id);
      for (int r = 0; r < node.num_results; ++r) lost_[graph_.result(id, r)] = status;
      for (const ir::ValueId v : node.operands) {
        if (v != ir::kNoValue && --uses_[v] == 0) values_[v].reset();
      }
    }
    return absl::OkStatus();
  }

  // Why the output is lost, or ok.
  const absl::Status& LossOf(int output) const { return lost_[graph_.outputs()[output].value]; }
  const at::Tensor& ValueOf(int output) const { return values_[graph_.outputs()[output].value]; }

 private:
  // The nodes on which `wanted` depend. Counts how often a value is read, an output once more.
  std::vector<bool> CountUses(const std::vector<int>& wanted) {
    std::vector<bool> needed(graph_.num_nodes());
    const auto use = [&](ir::ValueId v) {
      ++uses_[v];
      if (const ir::NodeId maker = graph_.value(v).producer; maker != ir::kNoNode) {
        needed[maker] = true;
      }
    };
    for (const int k : wanted) use(graph_.outputs()[k].value);
    for (ir::NodeId id = graph_.num_nodes(); id-- > 0;) {
      if (!needed[id]) continue;
      for (const ir::ValueId v : graph_.node(id).operands) {
        if (v != ir::kNoValue) use(v);
      }
    }
    return needed;
  }

  absl::Status RunOp(ir::NodeId id) {
    const ir::Node& node = graph_.node(id);
    for (const ir::ValueId v : node.operands) {
      if (v != ir::kNoValue && !lost_[v].ok()) return lost_[v];
    }
    // What the devices have of their own is not on the host.
    if (node.manual != 0) return f_.run->Wait();
    SPMD_ASSIGN_OR_RETURN(const std::shared_ptr<runtime::Backend> backend, TheBackend(state_));
    const std::vector<int> made = ResultsWithElements(graph_, id);
    for (int r = 0; r < node.num_results; ++r) {
      const TensorType& type = graph_.type(graph_.result(id, r));
      if (type.NumElements() == 0) values_[graph_.result(id, r)] = EmptyHost(type);
    }
    if (made.empty()) return absl::OkStatus();
    SPMD_ASSIGN_OR_RETURN(partition::Compiled compiled,
                          partition::Compile(ir::PartFor(Alone(graph_, id), made).graph,
                                             CompileOptionsFor(state_, *backend)));
    SPMD_ASSIGN_OR_RETURN(
        const std::shared_ptr<runtime::LoadedProgram> loaded,
        runtime::LoadedProgram::Load(std::move(compiled.program), backend, LoadOptions(state_)));
    std::vector<runtime::ExecutorQueue::Argument> arguments;
    for (const ir::ValueId v : node.operands) {
      if (v == ir::kNoValue) continue;
      const program::ValueId input = loaded->program().inputs[arguments.size()].value;
      arguments.push_back(
          {{runtime::Upload(values_[v], loaded->program().LayoutOf(input), *backend), nullptr, 0},
           /*donate=*/false});
    }
    runtime::PendingRunPtr run;
    {
      const GilReleased no_gil(state_);
      run = state_.in_flight.queue->Enqueue(loaded, std::move(arguments), f_.scalars);
    }
    SPMD_RETURN_IF_ERROR(WaitFor(state_, *run));
    for (size_t k = 0; k < made.size(); ++k) {
      SPMD_ASSIGN_OR_RETURN(const runtime::TiledTensorPtr tiles,
                            run->Result(static_cast<int>(k), /*take=*/true));
      SPMD_ASSIGN_OR_RETURN(values_[graph_.result(id, made[k])],
                            runtime::Download(*tiles, /*peers=*/nullptr));
    }
    return absl::OkStatus();
  }

  SessionState& state_;
  RunInFlight& f_;
  const ir::Graph& graph_;
  // By value. A value that nothing needs any more is freed.
  std::vector<at::Tensor> values_;
  std::vector<absl::Status> lost_;
  std::vector<int> uses_;
};

// Counters among the results of a run.
class Counters {
 public:
  Counters(const RunInFlight& f, std::string failed)
      : f_(f), graph_(f.program->program->traced), failed_(std::move(failed)) {}

  // Each counter among `wanted` is lost with the value that is written next after it.
  void LoseWithNext(const std::vector<int>& wanted, std::vector<absl::Status>& errors) const {
    for (const int k : wanted) {
      if (!errors[k].ok() || !IsCounter(k)) continue;
      int next = -1;
      for (const int other : wanted) {
        if (Node(other) <= Node(k) || Before(other) == nullptr || IsCounter(other)) continue;
        if (next < 0 || Node(other) < Node(next)) next = other;
      }
      if (next >= 0 && !MayFailBetween(Node(k), Node(next))) errors[k] = errors[next];
    }
  }

 private:
  ir::NodeId Node(int output) const {
    return graph_.value(graph_.outputs()[output].value).producer;
  }
  // The value that the output's Buffer held before.
  ValuePtr Before(int output) const {
    const ValuePtr value = f_.results[output].lock();
    return value == nullptr ? nullptr : value->before;
  }
  // Whether the output's new value depends on its old one and on nothing else.
  bool IsCounter(int output) const {
    const ValuePtr before = Before(output);
    if (before == nullptr || Node(output) == ir::kNoNode) return false;
    const ir::Part part = ir::PartFor(graph_, {output});
    for (const ir::Node& node : part.graph.nodes()) {
      if (MayFail(part.graph, node)) return false;
    }
    return part.inputs.size() == 1 && f_.arguments[part.inputs[0]].value.lock() == before;
  }
  bool MayFail(const ir::Graph& graph, const ir::Node& node) const {
    return node.num_results == 0 || node.op == failed_ ||
           rules::MayFail(rules::FactsOf(node.op), graph.type(node.first_result).dtype);
  }
  bool MayFailBetween(ir::NodeId first, ir::NodeId last) const {
    for (ir::NodeId id = first + 1; id < last; ++id) {
      if (MayFail(graph_, graph_.node(id))) return true;
    }
    return false;
  }

  const RunInFlight& f_;
  const ir::Graph& graph_;
  const std::string failed_;
};

// For each step part, those of `wanted` that it computes.
std::vector<std::vector<int>> MadeBySteps(const RunInFlight& f, const std::vector<int>& wanted) {
  std::vector<std::vector<int>> made(f.steps.size());
  if (f.steps.empty()) return made;
  const CachedProgram& cached = *f.program;
  for (const int k : wanted) {
    const int record = cached.recording->origins[cached.outputs[k].value].record;
    for (size_t s = 0; s < made.size(); ++s) {
      if (record >= 0 && f.steps[s].Has(record)) made[s].push_back(k);
    }
  }
  return made;
}

// Of each step, all that it makes is lost if anything is. Of a step that was under way nothing
// remains.
void LoseSteps(const RunInFlight& f, const std::vector<std::vector<int>>& made_by_steps,
               const absl::Status& status, std::vector<absl::Status>& errors) {
  for (size_t s = 0; s < f.steps.size(); ++s) {
    const std::vector<int>& made = made_by_steps[s];
    const auto first =
        std::find_if(made.begin(), made.end(), [&](int k) { return !errors[k].ok(); });
    const bool under_way = f.steps[s].under_way && f.steps[s].is_first;
    if (first == made.end() && !under_way) continue;
    const absl::Status why = first == made.end() ? status : errors[*first];
    for (const int k : made) errors[k] = why;
  }
}

// Computes what can be computed of `wanted`, and fills in `errors`.
// Errors: those after which everything is lost.
absl::Status MakeWanted(SessionState& state, RunInFlight& f, const absl::Status& status,
                        const std::vector<std::vector<int>>& made_by_steps,
                        const std::vector<int>& wanted) {
  Arguments left = TakeBack(f);
  if (!IsWorthIt(status) || state.closed) return status;
  // Which process asks for a lost value, and when, may differ: nothing is run on their own account.
  if (state.processes.several()) return status;
  const std::vector<absl::Status> missing = FindArguments(state, f, status, left);
  OpByOp ops(state, f);
  SPMD_RETURN_IF_ERROR(ops.Begin(left, missing));
  SPMD_RETURN_IF_ERROR(ops.Compute(wanted));
  std::vector<absl::Status> errors(f.results.size(), status);
  for (const int k : wanted) errors[k] = ops.LossOf(k);
  Counters(f, runtime::FailedOp(status)).LoseWithNext(wanted, errors);
  LoseSteps(f, made_by_steps, status, errors);
  SPMD_ASSIGN_OR_RETURN(const std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  for (const int k : wanted) {
    if (!errors[k].ok()) continue;
    LayoutPtr layout = f.program->layouts[k];
    if (layout->sharding().IsUnreduced()) {
      layout = std::make_shared<const Layout>(layout->grid(), layout->sharding().Reduced(),
                                              layout->dims());
    }
    runtime::TiledTensorPtr tiles = runtime::Upload(ops.ValueOf(k), *layout, *backend);
    f.run->Amend(k, tiles);
    const ValuePtr value = f.results[k].lock();
    if (value == nullptr || value->run != f.run) continue;
    value->tiles = std::move(tiles);
    value->run = nullptr;
    value->before = nullptr;
    value->layout = std::move(layout);
  }
  f.errors = std::move(errors);
  return absl::OkStatus();
}

}  // namespace

void Recover(SessionState& state, RunInFlight& f) {
  if (f.recovered) return;
  f.recovered = true;
  const absl::Status status = f.run->Wait();
  f.errors.assign(f.results.size(), status);
  std::vector<int> wanted;
  for (size_t k = 0; k < f.results.size(); ++k) {
    const ValuePtr value = f.results[k].lock();
    if (value != nullptr && value->run == f.run) wanted.push_back(static_cast<int>(k));
  }
  const std::vector<std::vector<int>> made_by_steps = MadeBySteps(f, wanted);
  const absl::Status made = MakeWanted(state, f, status, made_by_steps, wanted);
  if (!made.ok()) f.errors.assign(f.results.size(), made);
  for (size_t s = 0; s < f.steps.size(); ++s) {
    const bool lost = std::any_of(made_by_steps[s].begin(), made_by_steps[s].end(),
                                  [&](int k) { return !f.errors[k].ok(); });
    f.steps[s].lost = lost && f.steps[s].is_first;
  }
}

}  // namespace spmd::trace
