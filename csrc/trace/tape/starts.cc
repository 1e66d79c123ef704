// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/tape/starts.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/rules/builder.h"
#include "csrc/trace/tape/recording.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

using Args = std::vector<c10::IValue>;

// The graph and node data that the lowering of one record writes.
struct Target {
  ir::Graph& graph;
  rules::Builder b;
  const Record& record;
  const std::vector<ir::ValueId>& operands;
  const ir::Graph::NodeSpec& like;
  const TensorType& result;

  RuntimeScalar Slot() { return {graph.AddScalar(ir::ScalarKind::kInt)}; }
  ir::ValueId Add(const char* op, std::vector<ir::ValueId> inputs, Attributes attributes,
                  const TensorType& type, int updates = -1) {
    ir::Graph::NodeSpec spec = like;
    spec.op = op;
    spec.operands.assign(inputs.begin(), inputs.end());
    spec.attributes = std::move(attributes);
    spec.updates = updates;
    return graph.Add(std::move(spec), type);
  }
  ir::ValueId View(ir::ValueId v, const TensorType& type) {
    return Add("aten::view", {v},
               {{"size", std::vector<int64_t>(type.dims.begin(), type.dims.end())}}, type);
  }
};

bool KnownInt(const Args& args, size_t i) { return args[i].isInt() && args[i].toInt() >= 0; }

// --- slices and selects, and what writes into them ---

template <size_t Dim>
bool IsSelect(const Record& record) {
  return record.args[Dim].isInt() && KnownInt(record.args, Dim + 1);
}
template <size_t Dim>
bool IsSlice(const Record& record) {
  return IsSelect<Dim>(record) && record.args[Dim + 3].toInt() == 1;
}

// Gradients have the sizes of the whole among their arguments, so they may count from the end, as
// autograd has it for x[-k-3 : -k].
bool IsSelectGradient(const Record& record) {
  return record.args[2].isInt() && record.args[3].isInt();
}
bool IsSliceGradient(const Record& record) {
  return IsSelectGradient(record) && record.args[4].isInt() && record.args[5].toInt() == 1;
}

int64_t Wrapped(int64_t i, int64_t size) { return i < 0 ? i + size : i; }

// The dimension `dim` of a tensor of which `part` is a part, with or without that dimension.
int64_t DimOf(const c10::IValue& dim, const TensorType& part, bool select) {
  return Wrapped(dim.toInt(), part.rank() + (select ? 1 : 0));
}

TensorType PartType(TensorType part, int64_t dim, bool select) {
  if (select) part.dims.insert(part.dims.begin() + dim, 1);
  return part;
}

template <bool Select>
ir::ValueId LowerRead(Target& t) {
  const int64_t dim = DimOf(t.record.args[1], t.result, Select);
  const TensorType part = PartType(t.result, dim, Select);
  const ir::ValueId v =
      t.Add("spmd::slice_start", {t.operands[0]},
            {{"dim", dim}, {"start", t.Slot()}, {"length", part.dims[dim]}}, part);
  return Select ? t.View(v, t.result) : v;
}

template <bool Select>
ir::ValueId LowerWrite(Target& t) {
  const int64_t dim = DimOf(t.record.args[2], t.graph.type(t.operands[1]), Select);
  const TensorType part = PartType(t.graph.type(t.operands[1]), dim, Select);
  const ir::ValueId source = Select ? t.View(t.operands[1], part) : t.operands[1];
  return t.Add("spmd::slice_start_scatter", {t.operands[0], source},
               {{"dim", dim}, {"start", t.Slot()}}, t.graph.type(t.operands[0]),
               t.record.updates_first ? 0 : -1);
}

// Their gradients: zeros except for the part that was read.
template <bool Select>
ir::ValueId LowerGradient(Target& t) {
  const int64_t dim = DimOf(t.record.args[2], t.graph.type(t.operands[0]), Select);
  const TensorType part = PartType(t.graph.type(t.operands[0]), dim, Select);
  const ir::ValueId grad = Select ? t.View(t.operands[0], part) : t.operands[0];
  const ir::ValueId zeros =
      t.Add("spmd::full", {},
            {{"size", std::vector<int64_t>(t.result.dims.begin(), t.result.dims.end())},
             {"value", int64_t{0}},
             {"dtype", t.result.dtype}},
            t.result);
  return t.Add("spmd::slice_start_scatter", {zeros, grad}, {{"dim", dim}, {"start", t.Slot()}},
               t.result);
}

// --- roll: row i of the result is row (i - shift) mod n ---

bool HasElements(const Record& record) { return record.num_results == 1; }

ir::ValueId LowerRoll(Target& t) {
  const TensorType whole = t.graph.type(t.operands[0]);
  std::vector<int64_t> dims = t.record.args[2].toIntVector();
  ir::ValueId x = t.operands[0];
  TensorType type = whole;
  const bool flat = dims.empty();
  if (flat) {
    type.dims = {whole.NumElements()};
    x = t.View(x, type);
    dims = {0};
  }
  for (int64_t dim : dims) {
    const RuntimeScalar shift = t.Slot();
    if (type.rank() == 0 || type.NumElements() == 0) continue;
    if (dim < 0) dim += type.rank();
    const int64_t n = type.dims[dim];
    const ir::ValueId from = t.b.Call("aten::sub.Scalar", {t.b.Iota(n, 0, 1)},
                                      {{"other", shift}, {"alpha", int64_t{1}}});
    const ir::ValueId row = t.b.Call("aten::remainder.Scalar", {from}, {{"other", n}});
    x = t.Add("aten::index_select", {x, row}, {{"dim", dim}}, type);
  }
  return flat ? t.View(x, whole) : x;
}

// --- triangles: the numbers of row and column say what is kept ---

bool IsMatrix(const Record& record) { return record.args[1].isInt(); }

template <bool Lower>
ir::ValueId LowerTriangle(Target& t) {
  const int rank = t.result.rank();
  const ir::ValueId row = t.b.Iota(t.result.dims[rank - 2], rank - 2, rank);
  const ir::ValueId column = t.b.Iota(t.result.dims[rank - 1], rank - 1, rank);
  const ir::ValueId last =
      t.b.Call("aten::add.Scalar", {row}, {{"other", t.Slot()}, {"alpha", int64_t{1}}});
  const ir::ValueId kept = t.b.Call(Lower ? "aten::le.Tensor" : "aten::ge.Tensor", {column, last});
  return t.Add("aten::where.self", {kept, t.operands[0], t.b.Constant(0, t.result.dtype)}, {},
               t.result);
}

struct Row {
  const OpInfo* op;
  bool (*applies)(const Record&);
  uint64_t arguments;
  int number;  // the argument that is passed
  ir::ValueId (*lower)(Target&);
};

const Row* Find(const Record& record) {
  static const std::array rows = {
      Row{&GetOp("aten::narrow_copy"), IsSelect<1>, 1 << 2, 2, LowerRead<false>},
      Row{&GetOp("aten::roll"), HasElements, 1 << 1, 1, LowerRoll},
      Row{&GetOp("aten::select.int"), IsSelect<1>, 1 << 2, 2, LowerRead<true>},
      Row{&GetOp("aten::select_backward"), IsSelectGradient, 1 << 3, 3, LowerGradient<true>},
      Row{&GetOp("aten::select_copy.int"), IsSelect<1>, 1 << 2, 2, LowerRead<true>},
      Row{&GetOp("aten::select_scatter"), IsSelect<2>, 1 << 3, 3, LowerWrite<true>},
      Row{&GetOp("aten::slice.Tensor"), IsSlice<1>, 1 << 2 | 1 << 3, 2, LowerRead<false>},
      Row{&GetOp("aten::slice_backward"), IsSliceGradient, 1 << 3 | 1 << 4, 3,
          LowerGradient<false>},
      Row{&GetOp("aten::slice_copy.Tensor"), IsSlice<1>, 1 << 2 | 1 << 3, 2, LowerRead<false>},
      Row{&GetOp("aten::slice_scatter"), IsSlice<2>, 1 << 3 | 1 << 4, 3, LowerWrite<false>},
      Row{&GetOp("aten::tril"), IsMatrix, 1 << 1, 1, LowerTriangle<true>},
      Row{&GetOp("aten::triu"), IsMatrix, 1 << 1, 1, LowerTriangle<false>},
  };
  for (const Row& row : rows) {
    if (row.op == record.op) return row.applies(record) ? &row : nullptr;
  }
  return nullptr;
}

const Row& RowOf(const Record& record) {
  const Row* row = Find(record);
  SPMD_CHECK(row != nullptr, record.op->name, " has no start");
  return *row;
}

}  // namespace

uint64_t StartArguments(const Record& record) {
  const Row* row = Find(record);
  return row == nullptr ? 0 : row->arguments;
}

std::vector<int> RecordsWithStarts(const std::vector<Record>& records) {
  std::vector<int> found;
  for (size_t r = 0; r < records.size(); ++r) {
    if (Find(records[r]) != nullptr) found.push_back(static_cast<int>(r));
  }
  return found;
}

bool SameStarts(const Record& record, const Args& a, const Args& b) {
  const uint64_t arguments = StartArguments(record);
  for (size_t i = 0; i < record.args.size(); ++i) {
    if ((arguments >> i & 1) != 0 && !SameArgument(a[i], b[i], /*value=*/true)) return false;
  }
  return true;
}

std::string StartToString(const Record& record) {
  return absl::StrCat(record.op->args[RowOf(record).number].name, " of ", record.op->name);
}

void AppendStarts(const Record& record, const Args& args, std::vector<c10::Scalar>& scalars) {
  const Row& row = RowOf(record);
  const c10::IValue& number = args[row.number];
  if (row.applies == &IsSelectGradient || row.applies == &IsSliceGradient) {
    const std::vector<int64_t> sizes = args[1].toIntVector();
    const int64_t size = sizes[Wrapped(args[2].toInt(), static_cast<int64_t>(sizes.size()))];
    scalars.emplace_back(std::clamp<int64_t>(Wrapped(number.toInt(), size), 0, size));
  } else if (number.isInt()) {
    scalars.emplace_back(number.toInt());
  } else {
    for (const int64_t n : number.toIntVector()) scalars.emplace_back(n);
  }
}

ir::ValueId LowerStarts(ir::Graph& graph, const Record& record,
                        const std::vector<ir::ValueId>& operands, const ir::Graph::NodeSpec& like,
                        const TensorType& result) {
  Target target{graph, rules::Builder(&graph, like.task, like.source), record, operands, like,
                result};
  return RowOf(record).lower(target);
}

}  // namespace spmd::trace
