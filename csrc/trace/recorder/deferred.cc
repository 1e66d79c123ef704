// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/recorder/deferred.h"

#include <algorithm>
#include <utility>

#include "csrc/rules/registry.h"
#include "csrc/rules/tables/row_index.h"
#include "csrc/trace/device/status_to_exception.h"
#include "csrc/trace/recorder/recorder.h"
#include "csrc/trace/session/session_state.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

using rules::RowsUse;

bool IsList(const TensorType& type) {
  const bool integers = type.dtype == DType::kI64 || type.dtype == DType::kI32;
  return integers && type.rank() == 1 && type.dims[0] > 1;
}

// Whether the record is a function of one operand and of nothing that is passed at run time, except
// for starts.
bool IsOfOneOperand(const Record& record) {
  const rules::Rule* const rule = rules::Find(record.op->ir_name);
  return rule != nullptr && !rule->random && record.operands.size() == 1 &&
         record.operands[0] != kNoId && record.groups.empty() && record.num_results == 1 &&
         record.num_scalars == 0;
}

}  // namespace

TapeId UseDeferred(SessionState& state, Value& value) {
  Tape& tape = *state.tape;
  if (value.tape == tape.number()) return value.id;
  // A replayed call reads its operands as inputs.
  state.call.looked_at_values = true;
  const std::shared_ptr<const Deferred> deferred = value.deferred;
  for (const ValuePtr& from : deferred->from) ThrowIfError(from->poison);
  std::vector<TapeId> ids;
  for (const ValuePtr& from : deferred->from) ids.push_back(UseValue(state, from, nullptr));
  for (const Deferred::Step& step : deferred->steps) {
    absl::InlinedVector<TapeId, 4> operands;
    for (const int k : step.operands) operands.push_back(ids[k]);
    ids.push_back(Emit(state, *step.op, step.args, std::move(operands), {step.result}));
  }
  value.tape = tape.number();
  value.id = ids.back();
  return value.id;
}

void RecordDeferred(SessionState& state, Buffer* buffer) {
  if (!buffer->deferred()) return;
  const ValuePtr value = buffer->value();
  ThrowIfError(value->poison);
  const TapeId id = UseDeferred(state, *value);
  state.tape->Bind(*buffer, id);
}

std::optional<ListName> NameOfList(const Tape& tape, absl::Span<const OutputSpec> outputs,
                                   TapeId list) {
  ListName name{list, {}};
  while (true) {
    const auto output = std::find_if(outputs.begin(), outputs.end(),
                                     [&](const OutputSpec& o) { return o.value == name.base; });
    const Origin& origin = tape.origin(name.base);
    const bool free = origin.record < 0 ? tape.inputs()[origin.input].mark == nullptr
                                        : output != outputs.end() && output->may_be_apart &&
                                              output->apart.empty() && output->rows.list == kNoId;
    if (free) break;
    if (origin.record < 0 || !IsOfOneOperand(tape.records()[origin.record])) return std::nullopt;
    name.records.push_back(origin.record);
    name.base = tape.records()[origin.record].operands[0];
  }
  std::reverse(name.records.begin(), name.records.end());
  return name;
}

std::vector<TapeId> ListsOfRows(const Tape& tape, absl::Span<const OutputSpec> outputs) {
  std::vector<TapeId> lists;
  bool writes = false;
  const Needed needed = NeededFor(tape, outputs);
  const auto add = [&](TapeId id) {
    if (id == kNoId || !IsList(tape.type(id))) return;
    if (std::find(lists.begin(), lists.end(), id) == lists.end()) lists.push_back(id);
  };
  for (size_t r = 0; r < tape.records().size(); ++r) {
    const Record& record = tape.records()[r];
    const RowsUse use = rules::RowsUseOf(record.op->ir_name);
    if (use == RowsUse::kNone || !needed.records[r]) continue;
    writes = writes || use == RowsUse::kWrite || use == RowsUse::kAddAlong;
    if (use == RowsUse::kRead) {
      for (size_t k = 1; k < record.operands.size(); ++k) add(record.operands[k]);
    } else if (use == RowsUse::kReadAlong || use == RowsUse::kTogether) {
      add(record.operands[1]);
    }
  }
  if (!writes) return {};
  std::erase_if(lists, [&](TapeId id) { return !NameOfList(tape, outputs, id).has_value(); });
  return lists;
}

std::shared_ptr<const Deferred> DeferredRows(const Tape& tape, absl::Span<const OutputSpec> outputs,
                                             const OutputSpec& output, ValuePtr rows) {
  const std::optional<ListName> name = NameOfList(tape, outputs, output.rows.list);
  SPMD_CHECK(name.has_value(), "a list has lost its name");
  auto deferred = std::make_shared<Deferred>();
  deferred->from = {std::move(rows), tape.value(name->base)};
  int list = 1;
  for (const int r : name->records) {
    const Record& record = tape.records()[r];
    deferred->steps.push_back(
        {record.op, tape.ArgumentsOf(r), {list}, tape.type(record.first_result)});
    list = static_cast<int>(deferred->from.size() + deferred->steps.size()) - 1;
  }
  const OpInfo& together = GetOp(rules::kRowsTogether);
  std::vector<c10::IValue> args(together.args.size());
  args[together.FindArg("dim")] = static_cast<int64_t>(output.rows.of.dim);
  args[together.FindArg("size")] = output.rows.of.size;
  args[together.FindArg("blocks")] = output.rows.of.blocks;
  deferred->steps.push_back({&together, std::move(args), {0, list}, tape.type(output.value)});
  return deferred;
}

}  // namespace spmd::trace
