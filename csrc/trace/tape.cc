// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape.h"

#include <algorithm>

namespace spmd::trace {

namespace {

void MixType(Hash128& hash, const TensorType& type) {
  hash.Mix(static_cast<uint64_t>(type.dtype));
  hash.Mix(type.dims);
}

void MixMark(Hash128& hash, const Mark& mark) {
  hash.Mix(mark.mesh.device_ids());
  hash.Mix(mark.mesh.shape());
  for (const std::string& name : mark.mesh.axis_names()) hash.MixText(name);
  hash.MixText(SpecToString(mark.spec));
}

// The run-time scalars in `arg`, in order.
void AppendScalars(const c10::IValue& arg, std::vector<c10::Scalar>& out) {
  if (arg.isScalar()) {
    out.push_back(arg.toScalar());
  } else if (arg.isDoubleList()) {
    for (const double d : arg.toDoubleVector()) out.emplace_back(d);
  } else if (arg.isList()) {
    for (const c10::IValue& item : arg.toListRef()) AppendScalars(item, out);
  }
}

uint64_t next_number = 1;

}  // namespace

uint64_t LooseArguments(const Record& record) {
  static const OpInfo* const select = &GetOp("aten::select.int");
  static const OpInfo* const select_scatter = &GetOp("aten::select_scatter");
  static const OpInfo* const slice = &GetOp("aten::slice.Tensor");
  static const OpInfo* const slice_scatter = &GetOp("aten::slice_scatter");
  const OpInfo* op = record.op;
  const auto known = [&](size_t i) {
    return record.args[i].isInt() && record.args[i].toInt() >= 0;
  };
  if (op == select && known(1) && known(2)) return 1 << 2;
  if (op == select_scatter && known(2) && known(3)) return 1 << 3;
  if (op == slice && known(1) && known(2) && record.args[4].toInt() == 1) {
    return (1 << 2) | (1 << 3);
  }
  if (op == slice_scatter && known(2) && known(3) && record.args[5].toInt() == 1) {
    return (1 << 3) | (1 << 4);
  }
  return 0;
}

bool IsRuntimeValue(const ArgInfo& info, const c10::IValue& arg) {
  if (!info.runtime) return false;
  if (info.default_number.has_value() && arg.isScalar() && !arg.isComplexDouble()) {
    return arg.toScalar().toDouble() != *info.default_number;
  }
  if (info.zero_and_one_are_fixed && arg.isScalar() && !arg.isComplexDouble()) {
    const double v = arg.toScalar().toDouble();
    return v != 0 && v != 1;
  }
  return !arg.isNone();
}

Tape::Tape() : number_(next_number++) {}

TapeId Tape::Use(const ValuePtr& value, const Buffer* from) {
  if (value->tape == number_) return value->id;
  const TapeId id = static_cast<TapeId>(slots_.size());
  value->tape = number_;
  value->id = id;
  slots_.push_back({value, -1, static_cast<int32_t>(inputs_.size())});
  TapeInput input{id, std::nullopt, std::nullopt};
  strict_.Mix(0x1001);
  loose_.Mix(0x1001);
  MixType(strict_, value->type);
  MixType(loose_, value->type);
  if (from != nullptr) {
    input.mark = from->mark;
    input.settled = from->settled;
    if (from->mark.has_value()) {
      MixMark(strict_, *from->mark);
      MixMark(loose_, *from->mark);
    }
  }
  inputs_.push_back(std::move(input));
  return id;
}

void Tape::MixRecord(const Record& record) {
  const uint64_t loose_arguments = LooseArguments(record);
  for (Hash128* hash : {&strict_, &loose_}) {
    hash->Mix(static_cast<uint64_t>(record.op->number) << 8 | 0x02);
    for (const TapeId id : record.operands) hash->Mix(static_cast<uint64_t>(id) + 7);
    for (const ir::OperandGroup& g : record.groups) {
      hash->Mix(static_cast<uint64_t>(g.begin) << 32 | static_cast<uint64_t>(g.size));
    }
    hash->Mix(static_cast<uint64_t>(record.task) << 1 | record.updates_first);
    for (size_t i = 0; i < record.args.size(); ++i) {
      const ArgInfo& arg = record.op->args[i];
      if (arg.kind != ArgKind::kOther) continue;
      const bool left_out = hash == &loose_ && (loose_arguments >> i & 1) != 0;
      MixIValue(*hash, record.args[i], !IsRuntimeValue(arg, record.args[i]) && !left_out);
    }
  }
}

TapeId Tape::Append(Record record, absl::Span<const TensorType> results) {
  record.first_result = static_cast<TapeId>(slots_.size());
  record.num_results = static_cast<int>(results.size());
  record.first_scalar = static_cast<int>(scalars_.size());
  for (size_t i = 0; i < record.args.size(); ++i) {
    if (IsRuntimeValue(record.op->args[i], record.args[i])) AppendScalars(record.args[i], scalars_);
  }
  record.num_scalars = static_cast<int>(scalars_.size()) - record.first_scalar;
  MixRecord(record);
  for (const TensorType& type : results) {
    auto value = c10::make_intrusive<Value>(type);
    value->tape = number_;
    value->id = static_cast<TapeId>(slots_.size());
    value->pending = true;
    MixType(loose_, type);  // lengths, where starts and ends are left out
    slots_.push_back({std::move(value), static_cast<int32_t>(records_.size()), -1});
  }
  records_.push_back(std::move(record));
  prefixes_.push_back(strict_.lo());
  return records_.back().first_result;
}

std::optional<TapeId> Tape::FindView(TapeId base, const Recipe* recipe) const {
  const auto it = views_.find({base, recipe});
  if (it == views_.end()) return std::nullopt;
  return it->second;
}

void Tape::RememberView(TapeId base, const RecipePtr& recipe, TapeId view) {
  views_[{base, recipe.get()}] = view;
  recipes_.push_back(recipe);
}

void Tape::NoteBinding(Buffer* buffer) {
  const auto [it, inserted] = binding_of_.try_emplace(buffer, static_cast<int>(bindings_.size()));
  if (!inserted) {
    // The address may be that of a Buffer that died.
    if (!bindings_[it->second].buffer.expired()) return;
    it->second = static_cast<int>(bindings_.size());
  }
  Binding binding{c10::weak_intrusive_ptr<Buffer>(BufferPtr::reclaim_copy(buffer)), kNoId};
  if (buffer->value != nullptr && !buffer->value->pending) {
    binding.before = Use(buffer->value, buffer);
  }
  bindings_.push_back(std::move(binding));
}

void Tape::Annotate(TapeId value, const Mark& mark) {
  for (Hash128* hash : {&strict_, &loose_}) {
    hash->Mix(0x1003);
    hash->Mix(static_cast<uint64_t>(value));
    MixMark(*hash, mark);
  }
  annotations_.push_back({value, mark});
}

void Tape::SetLine(std::string line) {
  if (line.empty()) return;
  if (sources_.empty() || sources_.back() != line) sources_.push_back(std::move(line));
  records_.back().source = static_cast<int32_t>(sources_.size()) - 1;
}

int Tape::TaskNumber(int64_t graph_task) {
  if (graph_task < 0) return 0;
  if (!tasks_.empty() && tasks_.back() == graph_task) return static_cast<int>(tasks_.size());
  const auto it = std::find(tasks_.begin(), tasks_.end(), graph_task);
  if (it != tasks_.end()) return static_cast<int>(it - tasks_.begin()) + 1;
  tasks_.push_back(graph_task);
  return static_cast<int>(tasks_.size());
}

}  // namespace spmd::trace
