// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/run/recover.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/ir/part.h"
#include "csrc/rules/registry.h"
#include "csrc/trace/run/compile.h"
#include "csrc/trace/run/wait.h"
#include "csrc/trace/session/devices.h"
#include "csrc/trace/session/session_lock.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

using Arguments = std::vector<runtime::LoadedProgram::Argument>;

// The most programs that are run for one that failed.
constexpr int kMostParts = 16;

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

// The dependences of a run's results on missing arguments and fallible ops.
class Dependences {
 public:
  Dependences(const RunInFlight& f, const std::vector<absl::Status>& missing,
              const std::string& failed)
      : f_(f), graph_(f.program->program->traced) {
    std::vector<bool> inputs, all(graph_.inputs().size(), true);
    for (const absl::Status& m : missing) inputs.push_back(!m.ok());
    for (const ir::Node& node : graph_.nodes()) {
      may_fail_.push_back(node.op == failed || MayFail(node));
    }
    const auto by_value = ir::Dependences(graph_, inputs, may_fail_);
    const auto on_all = ir::Dependences(graph_, all, may_fail_);
    for (const ir::Output& output : graph_.outputs()) {
      of_.push_back(by_value[output.value]);
      on_.push_back(on_all[output.value]);
      node_.push_back(graph_.value(output.value).producer);
    }
  }

  const std::vector<int>& Of(int output) const { return of_[output]; }

  // Makes each of `outputs` depend on everything that any of them depends on.
  void Join(const std::vector<int>& outputs) {
    std::vector<int> all;
    for (const int k : outputs) all = Union(all, of_[k]);
    for (const int k : outputs) of_[k] = all;
  }

  // Makes each counter among `wanted` depend on what the value that is written next after it
  // depends on.
  void JoinCounters(const std::vector<int>& wanted) {
    for (const int k : wanted) {
      if (!IsCounter(k)) continue;
      int next = -1;
      for (const int other : wanted) {
        if (node_[other] <= node_[k] || !Replaces(other) || IsCounter(other)) continue;
        if (next < 0 || node_[other] < node_[next]) next = other;
      }
      if (next >= 0 && !MayFailBetween(node_[k], node_[next])) of_[k] = Union(of_[k], of_[next]);
    }
  }

 private:
  static std::vector<int> Union(const std::vector<int>& a, const std::vector<int>& b) {
    std::vector<int> both;
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    return both;
  }
  // The value that the output's Buffer held before.
  ValuePtr Before(int output) const {
    const ValuePtr value = f_.results[output].lock();
    return value == nullptr ? nullptr : value->before;
  }
  bool Replaces(int output) const { return Before(output) != nullptr; }
  bool IsCounter(int output) const {
    const ValuePtr before = Before(output);
    if (before == nullptr || on_[output].size() != 1) return false;
    const size_t input = on_[output].front();
    return input < f_.arguments.size() && f_.arguments[input].value.lock() == before;
  }
  bool MayFail(const ir::Node& node) const {
    return node.num_results == 0 ||
           rules::MayFail(rules::FactsOf(node.op), graph_.type(node.first_result).dtype);
  }
  bool MayFailBetween(ir::NodeId first, ir::NodeId last) const {
    for (ir::NodeId id = first + 1; id < last; ++id) {
      if (may_fail_[id]) return true;
    }
    return false;
  }

  const RunInFlight& f_;
  const ir::Graph& graph_;
  std::vector<bool> may_fail_;        // by node
  std::vector<std::vector<int>> of_;  // by output; see ir::Dependences
  std::vector<std::vector<int>> on_;  // the same if all inputs are counted
  std::vector<ir::NodeId> node_;      // by output: its producer
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

// Groups the results by their dependences; those with fewer dependences come first.
using Group = std::pair<std::vector<int>, std::vector<int>>;
std::vector<Group> GroupsOf(const Dependences& dependences, const std::vector<int>& wanted) {
  std::map<std::vector<int>, std::vector<int>> by_dependences;
  for (const int k : wanted) by_dependences[dependences.Of(k)].push_back(k);
  std::vector<Group> groups(by_dependences.begin(), by_dependences.end());
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& a, const Group& b) { return a.first.size() < b.first.size(); });
  return groups;
}

// The outputs one by one, except for those in `together`.
std::vector<std::vector<int>> Apart(const std::vector<int>& outputs,
                                    const std::vector<std::vector<int>>& together) {
  std::vector<std::vector<int>> apart;
  std::vector<int> placed;
  for (const int k : outputs) {
    if (std::find(placed.begin(), placed.end(), k) != placed.end()) continue;
    std::vector<int> unit = {k};
    for (const std::vector<int>& set : together) {
      if (std::find(set.begin(), set.end(), k) != set.end()) unit = set;
    }
    placed.insert(placed.end(), unit.begin(), unit.end());
    apart.push_back(std::move(unit));
  }
  return apart;
}

bool IsTraced(const ir::Graph& graph, const std::string& op) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [&](const ir::Node& node) { return node.op == op; });
}

absl::StatusOr<std::shared_ptr<ProgramPart>> PartOf(SessionState& state, CachedProgram& whole,
                                                    const std::vector<int>& outputs) {
  if (const auto known = whole.parts.find(outputs); known != whole.parts.end()) {
    return known->second;
  }
  auto part = std::make_shared<ProgramPart>();
  ir::Part cut = ir::PartFor(whole.program->traced, outputs);
  part->inputs = std::move(cut.inputs);
  part->program = std::make_shared<CompiledProgram>();
  part->program->number = state.diagnostics.next_program++;
  part->program->traced = std::move(cut.graph);
  SPMD_ASSIGN_OR_RETURN(std::shared_ptr<runtime::Backend> backend, TheBackend(state));
  SPMD_ASSIGN_OR_RETURN(
      part->program->compiled,
      partition::Compile(part->program->traced, CompileOptionsFor(state, *backend)));
  runtime::LoadedProgram::Options load = LoadOptions(state);
  load.name = absl::StrCat("a part of program ", whole.program->number);
  SPMD_ASSIGN_OR_RETURN(part->program->loaded,
                        runtime::LoadedProgram::Load(std::move(part->program->compiled.program),
                                                     backend, std::move(load)));
  const program::Program& made = part->program->program();
  for (const program::Output& o : made.outputs) {
    part->layouts.push_back(std::make_shared<const Layout>(made.LayoutOf(o.value)));
  }
  state.programs.NoteExplained(part->program);
  // One failure adds at most kMostParts parts.
  if (whole.parts.size() >= 2 * kMostParts) whole.parts.clear();
  whole.parts[outputs] = part;
  state.programs.CountAgain(whole);
  return part;
}

// Computes these results from arguments that are all available.
absl::Status Make(SessionState& state, RunInFlight& f, const Arguments& left,
                  const std::vector<int>& outputs) {
  SPMD_ASSIGN_OR_RETURN(const std::shared_ptr<ProgramPart> part,
                        PartOf(state, *f.program, outputs));
  std::vector<runtime::ExecutorQueue::Argument> arguments;
  for (const int k : part->inputs) {
    arguments.push_back({{left[k].value, nullptr, 0}, /*donate=*/false});
  }
  runtime::PendingRunPtr run;
  {
    const GilReleased no_gil(state);
    run = state.in_flight.queue->Enqueue(part->program->loaded, std::move(arguments), f.scalars);
  }
  SPMD_RETURN_IF_ERROR(WaitFor(state, *run));
  for (size_t j = 0; j < outputs.size(); ++j) {
    const int k = outputs[j];
    SPMD_ASSIGN_OR_RETURN(runtime::TiledTensorPtr tiles,
                          run->Result(static_cast<int>(j), /*take=*/true));
    f.run->Amend(k, tiles);
    const ValuePtr value = f.results[k].lock();
    if (value == nullptr || value->run != f.run) continue;
    value->tiles = std::move(tiles);
    value->run = nullptr;
    value->before = nullptr;
    value->layout = part->layouts[j];
    value->origin = part->program;
    value->origin_output = static_cast<int>(j);
  }
  return absl::OkStatus();
}

// Computes what can be computed of `wanted`, and fills in `errors`.
void MakeWanted(SessionState& state, RunInFlight& f, const absl::Status& status,
                const std::vector<std::vector<int>>& made_by_steps, std::vector<int> wanted) {
  Arguments left = TakeBack(f);
  if (!IsWorthIt(status) || state.closed) return;
  // Which process asks for a lost value, and when, may differ: nothing is run on their own account.
  if (state.processes.several()) return;
  const std::vector<absl::Status> missing = FindArguments(state, f, status, left);
  const ir::Graph& graph = f.program->program->traced;
  const std::string named = runtime::FailedOp(status);
  Dependences dependences(f, missing, named);
  dependences.JoinCounters(wanted);
  for (size_t s = 0; s < f.steps.size(); ++s) {
    const std::vector<int>& made = made_by_steps[s];
    if (!f.steps[s].under_way || !f.steps[s].is_first) {
      dependences.Join(made);
      continue;
    }
    std::erase_if(wanted,
                  [&](int k) { return std::find(made.begin(), made.end(), k) != made.end(); });
  }
  const std::vector<Group> groups = GroupsOf(dependences, wanted);
  // The failed op, if it is an op of the graph: `dependences` counts it as fallible.
  const std::string failed = IsTraced(graph, named) ? named : "";

  // The sets of dependences that are known to fail, each with its failure.
  std::vector<std::pair<std::vector<int>, absl::Status>> failures;
  for (size_t k = 0; k < missing.size(); ++k) {
    if (!missing[k].ok()) failures.push_back({{static_cast<int>(k)}, missing[k]});
  }
  int tried = 0;
  const auto make = [&](const std::vector<int>& outputs) {
    // Running all outputs again would fail as before, unless an argument was missing.
    const bool all = outputs.size() == graph.outputs().size() && f.run->cause() == nullptr;
    if (all || tried == kMostParts) return status;
    ++tried;
    return Make(state, f, left, outputs);
  };
  for (const auto& [behind, outputs] : groups) {
    const std::vector<int>& all = behind;
    const auto known = std::find_if(failures.begin(), failures.end(), [&](const auto& failure) {
      return std::includes(all.begin(), all.end(), failure.first.begin(), failure.first.end());
    });
    const absl::Status result = known != failures.end() ? known->second : make(outputs);
    for (const int k : outputs) f.errors[k] = result;
    if (!IsWorthIt(result)) return;
    if (result.ok() || known != failures.end()) continue;
    const std::string culprit = runtime::FailedOp(result);
    if (!behind.empty() &&
        (culprit == failed || rules::FactsOf(culprit).fails != rules::Failure::kNever)) {
      failures.push_back({behind, result});
      continue;
    }
    // The culprit is not a fallible op, but comes from the decomposition of another op.
    for (const std::vector<int>& unit : Apart(outputs, made_by_steps)) {
      const absl::Status one = unit.size() == outputs.size() ? result : make(unit);
      for (const int k : unit) f.errors[k] = one;
      if (!IsWorthIt(one)) return;
    }
  }
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
  MakeWanted(state, f, status, made_by_steps, wanted);
  for (size_t s = 0; s < f.steps.size(); ++s) {
    const bool lost = std::any_of(made_by_steps[s].begin(), made_by_steps[s].end(),
                                  [&](int k) { return !f.errors[k].ok(); });
    f.steps[s].lost = lost && f.steps[s].is_first;
  }
}

}  // namespace spmd::trace
