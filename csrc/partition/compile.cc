// SPDX-License-Identifier: Apache-2.0
#include "csrc/partition/compile.h"

#include <time.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/ir/verifier.h"
#include "csrc/partition/base_order.h"
#include "csrc/partition/choose.h"
#include "csrc/partition/compile_many.h"
#include "csrc/partition/early_updates.h"
#include "csrc/partition/gather_again.h"
#include "csrc/partition/join_lanes.h"
#include "csrc/partition/memory_profile.h"
#include "csrc/partition/order.h"
#include "csrc/partition/passes.h"
#include "csrc/partition/plan_memo.h"
#include "csrc/partition/repeated_work.h"
#include "csrc/partition/rings.h"
#include "csrc/program/analysis.h"
#include "csrc/rules/graph_verifier.h"
#include "csrc/util/byte_text.h"
#include "csrc/util/status.h"

namespace spmd::partition {
namespace {

#ifdef NDEBUG
constexpr bool kAlwaysVerify = false;
#else
constexpr bool kAlwaysVerify = true;
#endif

constexpr size_t kMaxRounds = 4;  // rounds of decompositions
// Each reordering is followed by a propagation. Nearly all graphs that need any need one.
constexpr int kMaxReorders = 4;

// CPU time of this thread.
double ThreadMilliseconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

// Runs the passes one by one, and names, times, dumps and verifies each.
class Pipeline {
 public:
  Pipeline(const CompileOptions& options, Compiled& out) : options_(options), out_(out) {}

  template <typename Fn>
  absl::Status Pass(const char* name, Fn&& run) {
    const double begin = ThreadMilliseconds();
    SPMD_RETURN_IF_ERROR(run());
    out_.times.push_back({name, ThreadMilliseconds() - begin});
    const bool is_program = !out_.program.values.empty() || !out_.program.outputs.empty();
    if (options_.dump) {
      options_.dump(name, is_program ? out_.program.ToString() : out_.graph.ToString());
    }
    if (!kAlwaysVerify && !options_.verify) return absl::OkStatus();
    absl::Status sound = is_program ? program::Verify(out_.program) : ir::Verify(out_.graph);
    if (sound.ok() && !is_program) sound = rules::Verify(out_.graph);
    if (sound.ok()) return sound;
    return absl::InternalError(
        absl::StrCat("after the pass '", name, "': ", sound.message(), "\n",
                     is_program ? out_.program.ToString() : out_.graph.ToString()));
  }

 private:
  const CompileOptions& options_;
  Compiled& out_;
};

// Removes derived annotations, so that propagation starts from the user's.
void ForgetDerived(ir::Graph& graph) {
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    const auto& annotation = graph.value(v).annotation;
    if (annotation && annotation->hold == ir::Hold::kDerived) graph.ClearAnnotation(v);
  }
}

bool SameAnnotations(const ir::Graph& a, const ir::Graph& b) {
  for (ir::ValueId v = 0; v < a.num_values(); ++v) {
    const auto &x = a.value(v).annotation, &y = b.value(v).annotation;
    if (x->grid != y->grid || !(x->sharding == y->sharding)) return false;
  }
  return true;
}

// A plan, and where the search that found it set out.
struct Found {
  Chosen chosen;
  propagate::Preference preference = propagate::Preference::kActivations;
  std::vector<propagate::Proposal> proposals;
};

// Local search finds the optimum nearest its start. Starts differ if the batch and a weight compete
// for an axis, or if no annotation brings an axis to a contraction. This tries the start that
// propagation finds with `preference` and `proposals`. The cheaper plan is kept in `found`, and
// the annotations from which it was found in `out`. If `keeping` is set, the new plan must keep its
// cuts of contractions.
void TryFrom(propagate::Preference preference, absl::Span<const propagate::Proposal> proposals,
             Compiled& out, const std::vector<propagate::NodeFactors>& factors, PlanMemo& memo,
             Found& found, bool* preference_decided = nullptr,
             const std::vector<NodePlan>* keeping = nullptr) {
  ir::Graph graph = out.graph;
  propagate::Reasons reasons;
  ForgetDerived(graph);
  propagate::Propagate(graph, factors, reasons, preference, proposals, preference_decided);
  if (SameAnnotations(graph, out.graph)) return;
  Chosen other = Choose(graph, factors, memo);
  if (other.seconds >= found.chosen.seconds * (1 - 1e-9)) return;
  if (keeping != nullptr && !KeepsCuts(factors, *keeping, other.plans)) return;
  found = {std::move(other), preference, {proposals.begin(), proposals.end()}};
  out.graph = std::move(graph);
  out.reasons = std::move(reasons);
}

// `preference_decided`: whether the preference decided anything in the propagation that led to
// `found`. If it did not, the other preference would propose the same.
void TryOtherStarts(Compiled& out, const std::vector<propagate::NodeFactors>& factors,
                    PlanMemo& memo, bool preference_decided, Found& found) {
  using propagate::Preference;
  if (preference_decided) TryFrom(Preference::kLarger, {}, out, factors, memo, found);
  const auto share_by = [&](Share share) {
    return ShareRepeatedWork(out.graph, factors, found.chosen.plans, share);
  };
  const std::vector<propagate::Proposal> whole = share_by(Share::kWhole);
  if (whole.empty()) return;
  const std::vector<propagate::Proposal> batch = share_by(Share::kBatch);
  const std::vector<NodePlan> before = found.chosen.plans;
  bool decided = false;
  TryFrom(Preference::kActivations, whole, out, factors, memo, found, &decided);
  if (decided) TryFrom(Preference::kLarger, whole, out, factors, memo, found);
  if (batch.empty()) return;
  TryFrom(Preference::kActivations, batch, out, factors, memo, found, nullptr, &before);
}

// Whether devices have values of their own.
bool HasRegions(const ir::Graph& graph) {
  return std::any_of(graph.nodes().begin(), graph.nodes().end(),
                     [](const ir::Node& node) { return node.manual != 0; });
}

// What CompileAs returns if the earlier plan does not fit; no pass returns that.
absl::Status DoesNotFit() {
  return absl::FailedPreconditionError("the plan does not fit these sizes");
}

// Legalizes and simplifies, at the beginning and after each round of decompositions.
absl::Status PassesBeforePropagation(Pipeline& pipeline, Compiled& out) {
  SPMD_RETURN_IF_ERROR(pipeline.Pass("legalize", [&] { return Legalize(out.graph); }));
  return pipeline.Pass("simplify", [&] { return Simplify(out.graph); });
}

// The passes at the beginning.
absl::Status FirstPasses(Pipeline& pipeline, Compiled& out) {
  SPMD_RETURN_IF_ERROR(PassesBeforePropagation(pipeline, out));
  if (!UsesAxes(out.graph)) return absl::OkStatus();
  return pipeline.Pass("batch_indices", [&] { return BatchIndices(out.graph); });
}

// The graph has changed: as at the beginning. What was derived is forgotten first, since the passes
// keep nodes that are annotated.
absl::Status PassesOnceMore(Pipeline& pipeline, Compiled& out) {
  ForgetDerived(out.graph);
  out.reasons = {};
  return PassesBeforePropagation(pipeline, out);
}

// Puts chains in another order. If the result is true, `factors` and the annotations are stale.
absl::StatusOr<bool> PutInOrder(Pipeline& pipeline,
                                const std::vector<propagate::NodeFactors>& factors, Compiled& out) {
  bool any = false;
  SPMD_RETURN_IF_ERROR(pipeline.Pass("reorder", [&]() -> absl::Status {
    SPMD_ASSIGN_OR_RETURN(any, Reorder(out.graph, factors, out.apart));
    return absl::OkStatus();
  }));
  if (!any) return false;
  SPMD_RETURN_IF_ERROR(PassesOnceMore(pipeline, out));
  return true;
}

absl::Status RingPass(Pipeline& pipeline, Compiled& out) {
  return pipeline.Pass("rings", [&]() -> absl::Status {
    SPMD_ASSIGN_OR_RETURN(out.in_rings.ops, PutInRings(out.graph));
    return absl::OkStatus();
  });
}

// A result with a copy of the graph, which has at least one grid.
Compiled Begin(const ir::Graph& graph) {
  Compiled out;
  out.graph = graph;
  if (out.graph.grids().empty()) out.graph.AddGrid(Grid::SingleDevice(), "m");
  return out;
}

// The machine with as much memory as a program may need.
machine::Machine Limited(const CompileOptions& options) {
  machine::Machine machine = options.machine ? *options.machine : machine::Nominal();
  const int64_t limit = options.memory_limit;
  if (limit > 0 && (machine.memory_bytes == 0 || limit < machine.memory_bytes)) {
    machine.memory_bytes = limit;
  }
  return machine;
}

// Gathers and computes again where memory is short, and says so.
void GatherAgainToFit(const machine::Machine& machine, Compiled& out) {
  out.gathered_again = GatherAgain(out.program, MemoryToFill(machine));
  const GatheredAgain& done = out.gathered_again;
  if (done.values.empty()) return;
  const int64_t computed = static_cast<int64_t>(done.values.size()) - done.gathers;
  out.warnings.push_back(
      {absl::StrCat("gathers again ", done.gathers, " ", computed, " ", done.bytes),
       absl::StrCat("gathers ", done.gathers, " and computes ", computed, " values (",
                    ByteText(done.bytes),
                    " per device) again for their later uses, because the program would hold ",
                    ByteText(done.bytes_before), " per device, and may hold ",
                    ByteText(machine.memory_bytes), "; it holds ", ByteText(done.bytes_after),
                    " now and sends ", ByteText(done.wire_bytes), " more")});
}

bool Communicates(const program::Program& program) {
  return std::any_of(program.instructions.begin(), program.instructions.end(),
                     [](const auto& i) { return program::Communicates(i.code); });
}

// True if the program, in its base order, holds more than it may. Then updates are put into the
// backward pass though collectives make the gradients, for which an update may wait.
bool IsShort(const machine::Machine& machine, const program::Program& program) {
  return MemoryProfile(program).peak() > MemoryToFill(machine);
}

// Lowers the plans: everything that follows from them.
absl::Status LowerPlans(Pipeline& pipeline, const CompileOptions& options,
                        const std::vector<propagate::NodeFactors>& factors,
                        std::vector<NodePlan> plans, Compiled& out) {
  const machine::Machine machine = Limited(options);
  Lowering lowering;
  lowering.plans = std::move(plans);
  lowering.graph = &out.graph;
  lowering.factors = &factors;
  lowering.machine = &machine;
  auto lower = [&](absl::Status (*pass)(Lowering&)) {
    absl::Status status = pass(lowering);
    out.program = lowering.program;
    return status;
  };
  std::optional<Joined> joined;
  SPMD_RETURN_IF_ERROR(pipeline.Pass("reshard", [&] {
    // Regions on local shapes have no lanes.
    if (!HasRegions(out.graph)) joined = JoinLanes(out.graph, factors, lowering.plans);
    if (joined.has_value()) {
      lowering.graph = &joined->graph;
      lowering.factors = &joined->factors;
      lowering.plans = std::move(joined->plans);
    }
    return lower(Reshard);
  }));
  out.warnings = GatherWarnings(lowering, options.warn_gather_bytes);
  SPMD_RETURN_IF_ERROR(pipeline.Pass("windows", [&] { return lower(Windows); }));
  SPMD_RETURN_IF_ERROR(pipeline.Pass("localise", [&] { return lower(Localise); }));
  bool updates_early = false;
  SPMD_RETURN_IF_ERROR(pipeline.Pass("order", [&] {
    BaseOrder(out.program);
    if (machine.memory_bytes > 0) {
      updates_early = (IsShort(machine, out.program) || !Communicates(out.program)) &&
                      UpdateEarly(out.program, MemoryToFill(machine));
      GatherAgainToFit(machine, out);
    }
    Order(out.program, OptionsFor(out.program, machine, options.merge_cap_bytes));
    return absl::OkStatus();
  }));
  return pipeline.Pass("finish", [&] {
    Finish(out.program, lowering.updates,
           updates_early ? LastThatMayFail(out.program) : kAfterAllCalls);
    return absl::OkStatus();
  });
}

// A graph that is propagated, and what is planned from there.
struct Planning {
  Compiled out;
  std::vector<propagate::NodeFactors> factors;
  std::vector<NodePlan> plans;
  double seconds = 0;
  bool preference_decided = false;
  int reorders = 0;
  IntoMade into_made = IntoMade::kDecompose;
  bool any_made = false;                   // whether that decided anything
  const SearchedPlan* earlier = nullptr;   // that is taken over
  bool explains = false;                   // whether reasons are wanted
  bool is_for_later = false;               // whether a later graph may take over the plan
  std::vector<AnnotationsPtr> propagated;  // so far, if it is, or if one is taken over
};

// Takes over what the earlier propagation gave. False if it does not fit.
bool TakePropagated(Planning& planning) {
  const std::vector<AnnotationsPtr>& earlier = planning.earlier->propagated;
  const size_t round = planning.propagated.size();
  if (round >= earlier.size() || !earlier[round]->Take(planning.out.graph)) return false;
  planning.propagated.push_back(earlier[round]);
  return true;
}

absl::Status PropagateAsAsked(Pipeline& pipeline, Planning& planning) {
  Compiled& out = planning.out;
  return pipeline.Pass("propagate", [&]() -> absl::Status {
    SPMD_ASSIGN_OR_RETURN(planning.factors, propagate::ComputeFactors(out.graph));
    if (planning.earlier != nullptr) {
      if (planning.explains) {
        ir::Graph graph = out.graph;
        propagate::Propagate(graph, planning.factors, out.reasons);
      }
      if (TakePropagated(planning)) return absl::OkStatus();
      if (!planning.propagated.empty()) return DoesNotFit();
      planning.earlier = nullptr;
      out.reasons = {};
    }
    propagate::Propagate(out.graph, planning.factors, out.reasons,
                         propagate::Preference::kActivations, {}, &planning.preference_decided);
    if (planning.is_for_later) {
      planning.propagated.push_back(std::make_shared<const Annotations>(out.graph));
    }
    return absl::OkStatus();
  });
}

// What a later graph takes over.
std::shared_ptr<const SearchedPlan> SearchedFrom(const Planning& planning, const Found& found) {
  auto searched = std::make_shared<SearchedPlan>();
  searched->preference = found.preference;
  searched->proposals = found.proposals;
  searched->into_made = planning.into_made;
  searched->nodes = ForLater(found.chosen.plans, planning.out.graph, planning.factors);
  searched->propagated = planning.propagated;
  const bool as_asked =
      found.preference == propagate::Preference::kActivations && found.proposals.empty();
  searched->found = as_asked ? planning.propagated.back()
                             : std::make_shared<const Annotations>(planning.out.graph);
  return searched;
}

// The plan that an earlier search found for other sizes, or nullopt if it does not fit.
std::optional<std::vector<NodePlan>> TakeOver(Planning& planning, PlanMemo& memo) {
  const SearchedPlan& earlier = *planning.earlier;
  Compiled& out = planning.out;
  if (earlier.found != planning.propagated.back()) {
    propagate::Reasons reasons;
    if (planning.explains) {
      ir::Graph graph = out.graph;
      ForgetDerived(graph);
      propagate::Propagate(graph, planning.factors, reasons, earlier.preference, earlier.proposals);
    }
    if (!earlier.found->Take(out.graph)) return std::nullopt;
    out.reasons = std::move(reasons);
  }
  return ChooseAs(earlier.nodes, out.graph, planning.factors, memo);
}

absl::Status PropagateAgain(Pipeline& pipeline, Planning& planning) {
  SPMD_RETURN_IF_ERROR(PassesOnceMore(pipeline, planning.out));
  return PropagateAsAsked(pipeline, planning);
}

// An axis that a merged dimension stopped continues after reordering, and may reach another merged
// dimension. Decompositions merge dimensions, too.
absl::Status ReorderAll(Pipeline& pipeline, Planning& planning) {
  while (planning.reorders < kMaxReorders) {
    SPMD_ASSIGN_OR_RETURN(const bool any, PutInOrder(pipeline, planning.factors, planning.out));
    if (!any) break;
    ++planning.reorders;
    SPMD_RETURN_IF_ERROR(PropagateAsAsked(pipeline, planning));
  }
  return absl::OkStatus();
}

// Decomposes and chooses.
absl::Status PlanFrom(Pipeline& pipeline, MoveMemo& moves, bool sharded, Planning& planning) {
  Compiled& out = planning.out;
  // A decomposition brings new values. They are propagated to in turn, and may have a sharded whole
  // factor themselves.
  for (size_t round = 0; sharded && round < kMaxRounds; ++round) {
    bool any = false;
    SPMD_RETURN_IF_ERROR(pipeline.Pass("decompose", [&]() -> absl::Status {
      SPMD_ASSIGN_OR_RETURN(any, Decompose(out.graph, planning.factors, planning.into_made,
                                           out.decomposed, planning.any_made));
      return absl::OkStatus();
    }));
    if (!any) break;
    SPMD_RETURN_IF_ERROR(PropagateAgain(pipeline, planning));
    SPMD_RETURN_IF_ERROR(ReorderAll(pipeline, planning));
  }
  return pipeline.Pass("choose", [&]() -> absl::Status {
    PlanMemo memo(moves);
    if (planning.earlier != nullptr) {
      std::optional<std::vector<NodePlan>> plans = TakeOver(planning, memo);
      if (!plans) return DoesNotFit();
      planning.plans = *std::move(plans);
    } else {
      Found found{.chosen = Choose(out.graph, planning.factors, memo)};
      if (sharded) {
        TryOtherStarts(out, planning.factors, memo, planning.preference_decided, found);
        if (planning.is_for_later) out.searched = SearchedFrom(planning, found);
      }
      planning.plans = std::move(found.chosen.plans);
      planning.seconds = found.chosen.seconds;
    }
    for (ir::NodeId id = 0; id < out.graph.num_nodes(); ++id) {
      const NodePlan& plan = planning.plans[id];
      out.graph.SetCut(id, plan.grid, ToFactorCuts(plan.choice));
    }
    return absl::OkStatus();
  });
}

int64_t BytesOnWires(const program::Program& program) {
  int64_t bytes = 0;
  for (const program::Traffic& t : program::CollectiveTraffic(program)) bytes += t.wire_bytes;
  return bytes;
}

// Options for what may be dropped again: texts are kept until they are known to be of the result.
class Quiet {
 public:
  explicit Quiet(const CompileOptions& options) : given_(options), quiet_(options) {
    if (!options.dump) return;
    quiet_.dump = [this](absl::string_view name, const std::string& text) {
      kept_.emplace_back(name, text);
    };
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

  const CompileOptions& options() const { return quiet_; }
  void Dump() const {
    for (const auto& [name, text] : kept_) given_.dump(name, text);
  }

 private:
  const CompileOptions& given_;
  CompileOptions quiet_;
  std::vector<std::pair<std::string, std::string>> kept_;
};

// `planning` with ops whole whose targets can be made whole, if that is cheaper. `from` is what it
// was before it was planned.
absl::Status KeepWholeIfCheaper(const CompileOptions& options, MoveMemo& moves, Planning from,
                                Planning& planning) {
  if (!planning.any_made) return absl::OkStatus();
  const Quiet quiet(options);
  Pipeline pipeline(quiet.options(), from.out);
  from.into_made = IntoMade::kKeepWhole;
  SPMD_RETURN_IF_ERROR(PlanFrom(pipeline, moves, /*sharded=*/true, from));
  if (from.seconds >= planning.seconds * (1 - 1e-9)) return absl::OkStatus();
  planning = std::move(from);
  quiet.Dump();
  return absl::OkStatus();
}

// `planning` with ops in rings of devices, if it does not fit as it is and holds less with them.
// `from` is what it was before it was planned.
absl::Status UseRingsToFit(const CompileOptions& options, MoveMemo& moves, Planning from,
                           Planning& planning) {
  const machine::Machine limited = Limited(options);
  if (planning.out.gathered_again.bytes_after <= MemoryToFill(limited)) return absl::OkStatus();
  const Quiet quiet(options);
  Pipeline pipeline(quiet.options(), from.out);
  from.is_for_later = false;
  SPMD_RETURN_IF_ERROR(RingPass(pipeline, from.out));
  if (from.out.in_rings.ops.empty()) return absl::OkStatus();
  SPMD_RETURN_IF_ERROR(PropagateAgain(pipeline, from));
  SPMD_RETURN_IF_ERROR(ReorderAll(pipeline, from));
  SPMD_RETURN_IF_ERROR(PlanFrom(pipeline, moves, /*sharded=*/true, from));
  SPMD_RETURN_IF_ERROR(
      LowerPlans(pipeline, quiet.options(), from.factors, std::move(from.plans), from.out));
  InRings& done = from.out.in_rings;
  done.bytes_before = planning.out.gathered_again.bytes_after;
  done.bytes_after = from.out.gathered_again.bytes_after;
  if (done.bytes_after >= done.bytes_before) return absl::OkStatus();
  done.wire_before = BytesOnWires(planning.out.program);
  done.wire_after = BytesOnWires(from.out.program);
  done.seconds_before = planning.seconds;
  done.seconds_after = from.seconds;
  from.out.warnings.push_back(
      {absl::StrCat("rings ", done.ops.size(), " ", done.bytes_after),
       absl::StrCat(done.ToString(), ", because it may hold ", ByteText(limited.memory_bytes))});
  planning = std::move(from);
  quiet.Dump();
  return absl::OkStatus();
}

// Compiles as planning.earlier says. False if that does not fit; `planning` is then of no use.
absl::StatusOr<bool> CompileAs(const CompileOptions& options, MoveMemo& moves, Planning& planning) {
  const Quiet quiet(options);
  Pipeline pipeline(quiet.options(), planning.out);
  planning.into_made = planning.earlier->into_made;
  const auto run = [&]() -> absl::Status {
    SPMD_RETURN_IF_ERROR(ReorderAll(pipeline, planning));
    SPMD_RETURN_IF_ERROR(PlanFrom(pipeline, moves, /*sharded=*/true, planning));
    SPMD_RETURN_IF_ERROR(LowerPlans(pipeline, quiet.options(), planning.factors,
                                    std::move(planning.plans), planning.out));
    const machine::Machine limited = Limited(options);
    const bool is_short =
        limited.memory_bytes > 0 && planning.out.gathered_again.bytes_after > MemoryToFill(limited);
    return is_short && MayGoInRings(planning.out.graph) ? DoesNotFit() : absl::OkStatus();
  };
  const absl::Status status = run();
  if (absl::IsFailedPrecondition(status)) return false;
  SPMD_RETURN_IF_ERROR(status);
  quiet.Dump();
  return true;
}

}  // namespace

absl::StatusOr<Compiled> Compile(const ir::Graph& graph, const CompileOptions& options) {
  MoveMemo moves(SearchPrices(options.machine ? *options.machine : machine::Nominal()));
  return Compile(graph, options, moves);
}

absl::StatusOr<Compiled> Compile(const ir::Graph& graph, const CompileOptions& options,
                                 MoveMemo& moves) {
  Planning planning{.out = Begin(graph)};
  Pipeline pipeline(options, planning.out);
  SPMD_RETURN_IF_ERROR(FirstPasses(pipeline, planning.out));
  const bool sharded = UsesAxes(planning.out.graph);
  planning.is_for_later = sharded;
  planning.explains = options.explain;
  if (sharded) planning.earlier = options.earlier.get();
  SPMD_RETURN_IF_ERROR(PropagateAsAsked(pipeline, planning));
  if (planning.earlier != nullptr) {
    SPMD_ASSIGN_OR_RETURN(const bool fits, CompileAs(options, moves, planning));
    if (fits) return std::move(planning.out);
    CompileOptions searching = options;
    searching.earlier = nullptr;
    return Compile(graph, searching, moves);
  }
  std::optional<Planning> before;  // if memory may ask for rings
  std::optional<Planning> whole;   // if ops may write to what is made whole
  if (sharded) {
    SPMD_RETURN_IF_ERROR(ReorderAll(pipeline, planning));
    if (Limited(options).memory_bytes > 0 && MayGoInRings(planning.out.graph)) before = planning;
    if (MayWriteToMade(planning.out.graph, planning.factors)) whole = planning;
  }
  SPMD_RETURN_IF_ERROR(PlanFrom(pipeline, moves, sharded, planning));
  if (whole.has_value()) {
    SPMD_RETURN_IF_ERROR(KeepWholeIfCheaper(options, moves, *std::move(whole), planning));
  }
  SPMD_RETURN_IF_ERROR(
      LowerPlans(pipeline, options, planning.factors, std::move(planning.plans), planning.out));
  if (before.has_value()) {
    SPMD_RETURN_IF_ERROR(UseRingsToFit(options, moves, *std::move(before), planning));
  }
  return std::move(planning.out);
}

bool UsesAxes(const ir::Graph& graph) {
  if (HasRegions(graph)) return true;
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    const auto& annotation = graph.value(v).annotation;
    if (annotation && annotation->sharding.UsedAxes() != 0) return true;
  }
  return false;
}

std::vector<std::string> PassNames() {
  return {"legalize", "simplify", "batch_indices", "propagate", "reorder", "rings", "decompose",
          "choose",   "reshard",  "windows",       "localise",  "order",   "finish"};
}

absl::StatusOr<std::string> TextAfter(const ir::Graph& graph, absl::string_view pass,
                                      CompileOptions options) {
  const std::vector<std::string> names = PassNames();
  if (std::find(names.begin(), names.end(), pass) == names.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no pass '", pass, "'; the passes are ", absl::StrJoin(names, ", ")));
  }
  std::string text;
  options.verify = true;
  options.dump = [&](absl::string_view name, const std::string& t) {
    if (name == pass) text = t;
  };
  SPMD_RETURN_IF_ERROR(Compile(graph, options).status());
  return text;
}

}  // namespace spmd::partition
