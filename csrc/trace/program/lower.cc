// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/lower.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "csrc/rules/builder.h"
#include "csrc/trace/op/attribute.h"
#include "csrc/trace/program/lower_foreach.h"
#include "csrc/trace/program/lower_starts.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

ir::ScalarKind KindOf(const c10::Scalar& s) {
  if (s.isBoolean()) return ir::ScalarKind::kBool;
  if (s.isIntegral(/*includeBool=*/false)) return ir::ScalarKind::kInt;
  if (s.isComplex()) return ir::ScalarKind::kComplex;
  return ir::ScalarKind::kFloat;
}

class Lowering {
 public:
  Lowering(const Tape& tape, const LowerOptions& options)
      : tape_(tape), options_(options), values_(tape.num_values(), ir::kNoValue) {}

  absl::StatusOr<Lowered> Run(absl::Span<const OutputSpec> outputs) {
    for (size_t g = 0; g < options_.grids->grids.size(); ++g) {
      result_.graph.AddGrid(options_.grids->grids[g], g == 0 ? "m" : absl::StrCat("m", g));
    }
    for (const c10::Scalar& s : tape_.scalars()) result_.graph.AddScalar(KindOf(s));
    needed_ = NeededFor(tape_, outputs, options_.given);
    SPMD_RETURN_IF_ERROR(LowerInputs(outputs));
    LowerGiven();
    for (size_t r = needed_.first_record; r < tape_.records().size(); ++r) {
      if (needed_.records[r]) SPMD_RETURN_IF_ERROR(LowerRecord(static_cast<int>(r)));
    }
    SPMD_RETURN_IF_ERROR(LowerMarks());
    for (const OutputSpec& o : outputs) {
      ir::Output output{values_[o.value]};
      if (!o.apart.empty()) output.value = Apart(output.value, o.apart);
      if (o.like != nullptr) {
        const int rank = result_.graph.type(output.value).rank();
        SPMD_ASSIGN_OR_RETURN(ir::Annotation like, AnnotationOf(*o.like, rank, options_));
        output.value = CopyWith(result_.graph, output.value, std::move(like));
      }
      if (o.becomes != kNoId) output.becomes = values_[o.becomes];
      output.may_stay_unreduced = o.may_stay_unreduced;
      output.held = o.held;
      result_.graph.AddOutput(output);
    }
    return std::move(result_);
  }

 private:
  absl::Status LowerInputs(absl::Span<const OutputSpec> outputs) {
    const std::vector<bool> overwritten = OverwrittenInputs(tape_, outputs);
    for (size_t i = 0; i < tape_.inputs().size(); ++i) {
      if (!needed_.inputs[i]) continue;
      const TapeInput& input = tape_.inputs()[i];
      const TensorType& type = tape_.type(input.id);
      const ir::ValueId v = result_.graph.AddInput(type, absl::StrCat("x", i));
      values_[input.id] = v;
      result_.inputs.push_back(static_cast<int>(i));
      if (input.mark != nullptr && tape_.manual(input.id) == 0) {
        SPMD_ASSIGN_OR_RETURN(ir::Annotation a, AnnotationOf(*input.mark, type.rank(), options_));
        a.of_parameter = input.mark->of_parameter;
        if (!input.mark->name.empty()) {
          result_.input_names[result_.graph.value(v).name] = input.mark->name;
        }
        result_.graph.Annotate(v, std::move(a));
      } else if (const LayoutPtr& layout = tape_.LayoutToTake(i, overwritten[i])) {
        Settle(v, *layout);
      }
    }
    return absl::OkStatus();
  }

  void LowerGiven() {
    for (const TapeId id : needed_.given) {
      values_[id] = result_.graph.AddInput(tape_.type(id), absl::StrCat("t", id));
      result_.inputs.push_back(-1);
      Settle(values_[id], *options_.given->Find(tape_, id));
    }
  }

  void Settle(ir::ValueId v, const Layout& layout) {
    for (size_t g = 0; g < options_.grids->grids.size(); ++g) {
      if (!(*options_.grids->grids[g] == *layout.grid())) continue;
      result_.graph.Annotate(v, {static_cast<int>(g), layout.sharding(), ir::Hold::kSettled});
      return;
    }
  }

  ir::ValueId Apart(ir::ValueId v, const Dims& dims) {
    return OwnBuilder().View(v, {dims.begin(), dims.end()});
  }

  // For ops that no call has recorded.
  rules::Builder OwnBuilder() { return {&result_.graph, /*task=*/0, /*source=*/-1}; }

  absl::Status LowerMarks() {
    for (const Annotation& a : tape_.annotations()) {
      const ir::ValueId v = values_[a.value];
      if (v == ir::kNoValue) continue;
      SPMD_ASSIGN_OR_RETURN(ir::Annotation annotation,
                            AnnotationOf(*a.mark, result_.graph.type(v).rank(), options_));
      result_.graph.Annotate(v, std::move(annotation));
    }
    return absl::OkStatus();
  }

  ir::Graph::NodeSpec SpecOf(const Record& record, const std::string& op) {
    ir::Graph::NodeSpec spec;
    spec.op = op;
    spec.task = record.task;
    if (record.source >= 0) spec.source = Source(record.source);
    return spec;
  }

  int32_t Source(int32_t tape_source) {
    if (sources_.size() < tape_.sources().size()) sources_.resize(tape_.sources().size(), -1);
    if (sources_[tape_source] < 0) {
      sources_[tape_source] = result_.graph.AddSource(tape_.sources()[tape_source]);
    }
    return sources_[tape_source];
  }

  ir::ValueId Map(TapeId id) const { return id == kNoId ? ir::kNoValue : values_[id]; }

  // Writes the sharding of a border of a manual region in the graph's grid.
  absl::Status AtBorder(const Record& record, ir::Graph::NodeSpec& spec) {
    const BorderCall* const border = BorderOf(*record.op, record.args);
    if (border == nullptr) return absl::OkStatus();
    for (size_t m = 0; m < options_.meshes->size(); ++m) {
      if (!((*options_.meshes)[m] == border->mesh)) continue;
      const int grid = options_.grids->grid_of[m];
      const int rank = tape_.type(record.first_result).rank();
      SPMD_ASSIGN_OR_RETURN(const Sharding sharding,
                            border->ShardingIn(*options_.grids->grids[grid], rank));
      spec.attributes.Set(border->enters ? "enter" : "leave",
                          sharding.ToString(*options_.grids->grids[grid]));
      spec.attributes.Set("mesh", result_.graph.grid_name(grid));
      return absl::OkStatus();
    }
    return absl::InternalError(absl::StrCat("unknown mesh ", border->mesh.ToString()));
  }

  absl::Status LowerRecord(int r) {
    const Record& record = tape_.records()[r];
    if (const OpInfo* element = ElementOp(*record.op)) {
      LowerForeach(record, *element);
      return absl::OkStatus();
    }
    ir::Graph::NodeSpec spec = SpecOf(record, record.op->ir_name);
    for (const TapeId id : record.operands) spec.operands.push_back(Map(id));
    spec.groups = record.groups;
    if (std::binary_search(options_.starts.begin(), options_.starts.end(), r)) {
      result_.starts.push_back(r);
      const std::vector<ir::ValueId> operands(spec.operands.begin(), spec.operands.end());
      values_[record.first_result] =
          LowerStarts(result_.graph, record, operands, spec, tape_.type(record.first_result));
      return absl::OkStatus();
    }
    spec.attributes = AttributesOf(record);
    SPMD_RETURN_IF_ERROR(AtBorder(record, spec));
    absl::InlinedVector<TensorType, 2> types;
    for (int k = 0; k < record.num_results; ++k) {
      types.push_back(tape_.type(record.first_result + k));
    }
    if (record.updates_first && !spec.operands.empty() && spec.operands[0] != ir::kNoValue &&
        result_.graph.type(spec.operands[0]) == types[0]) {
      spec.updates = 0;
    }
    const ir::NodeId node = result_.graph.AddNode(std::move(spec), types);
    for (int k = 0; k < record.num_results; ++k) {
      values_[record.first_result + k] = result_.graph.result(node, k);
    }
    return absl::OkStatus();
  }

  void LowerForeach(const Record& record, const OpInfo& element) {
    for (int k = 0; k < record.num_results; ++k) {
      ElementCall call = ElementOf(record, element, k, record.num_results);
      ir::Graph::NodeSpec spec = SpecOf(record, element.name);
      for (const TapeId id : call.operands) spec.operands.push_back(Map(id));
      spec.attributes = std::move(call.attributes);
      const TensorType& type = tape_.type(record.first_result + k);
      if (record.updates_first && result_.graph.type(spec.operands[0]) == type) spec.updates = 0;
      values_[record.first_result + k] = result_.graph.Add(std::move(spec), type);
    }
  }

  const Tape& tape_;
  const LowerOptions& options_;
  Lowered result_;
  std::vector<ir::ValueId> values_;  // by tape number
  std::vector<int32_t> sources_;
  Needed needed_;
};

}  // namespace

Needed NeededFor(const Tape& tape, absl::Span<const OutputSpec> outputs, const Given* given) {
  Needed needed{std::vector<bool>(tape.records().size()), std::vector<bool>(tape.inputs().size())};
  needed.first_record = static_cast<int>(tape.records().size());
  absl::flat_hash_set<TapeId> taken;
  const auto need = [&](TapeId id) {
    if (id == kNoId) return;
    const Origin& origin = tape.origin(id);
    if (given != nullptr && given->Find(tape, id) != nullptr) {
      if (taken.insert(id).second) needed.given.push_back(id);
    } else if (origin.record >= 0) {
      needed.records[origin.record] = true;
      needed.first_record = std::min(needed.first_record, origin.record);
    } else {
      needed.inputs[origin.input] = true;
    }
  };
  for (const OutputSpec& o : outputs) {
    need(o.value);
    need(o.becomes);
  }
  for (int r = static_cast<int>(tape.records().size()); r-- > needed.first_record;) {
    if (!needed.records[r]) continue;
    for (const TapeId id : tape.records()[r].operands) need(id);
  }
  return needed;
}

Attributes AttributesOf(const Record& record) {
  Attributes attributes;
  int slot = record.first_scalar;
  for (size_t i = 0; i < record.args.size(); ++i) {
    const ArgInfo& info = record.op->args[i];
    if (info.kind != ArgKind::kOther) continue;
    if (IsRuntimeValue(info, record.args[i])) {
      attributes.Set(info.name, RuntimeScalar{slot++});
    } else {
      attributes.Set(info.name, AttrOf(info, record.args[i]));
    }
  }
  return attributes;
}

std::vector<bool> OverwrittenInputs(const Tape& tape, absl::Span<const OutputSpec> outputs) {
  std::vector<bool> overwritten(tape.inputs().size());
  for (const OutputSpec& o : outputs) {
    if (o.becomes != kNoId) overwritten[tape.origin(o.becomes).input] = true;
  }
  return overwritten;
}

absl::StatusOr<ir::Annotation> AnnotationOf(const Mark& mark, int rank, const LowerOptions& options,
                                            absl::string_view caller) {
  for (size_t m = 0; m < options.meshes->size(); ++m) {
    if (!((*options.meshes)[m] == mark.mesh)) continue;
    const int grid = options.grids->grid_of[m];
    SPMD_ASSIGN_OR_RETURN(Sharding sharding, ResolveSpec(caller, mark.spec, mark.mesh,
                                                         *options.grids->grids[grid], rank));
    return ir::Annotation{grid, std::move(sharding), ir::Hold::kCommitted};
  }
  return absl::InternalError(absl::StrCat("unknown mesh ", mark.mesh.ToString()));
}

absl::StatusOr<Lowered> Lower(const Tape& tape, absl::Span<const OutputSpec> outputs,
                              const LowerOptions& options) {
  return Lowering(tape, options).Run(outputs);
}

ir::ValueId CopyWith(ir::Graph& graph, ir::ValueId v, ir::Annotation annotation) {
  const std::optional<ir::Annotation>& own = graph.value(v).annotation;
  if (own.has_value() && own->grid == annotation.grid && own->sharding == annotation.sharding) {
    return v;
  }
  rules::Builder builder(&graph, /*task=*/0, /*source=*/-1);
  if (const ir::NodeId id = graph.value(v).producer; id != ir::kNoNode) {
    const ir::Node& maker = graph.node(id);
    builder = {&graph, maker.task, maker.source};
  }
  const ir::ValueId copy = builder.Alias(v);
  graph.Annotate(copy, std::move(annotation));
  return copy;
}

}  // namespace spmd::trace
