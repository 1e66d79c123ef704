// SPDX-License-Identifier: Apache-2.0
#include "csrc/trace/program/lower_starts.h"

#include <utility>

#include "csrc/rules/builder.h"
#include "csrc/trace/tape/starts.h"
#include "csrc/util/status.h"

namespace spmd::trace {

namespace {

// What is kept of a select's dimension.
enum class Shape { kSlice, kSelect };

class StartLowering {
 public:
  StartLowering(ir::Graph& graph, const Record& record, const std::vector<ir::ValueId>& operands,
                const ir::Graph::NodeSpec& like, const TensorType& result)
      : graph_(graph),
        b_(&graph, like.task, like.source),
        record_(record),
        operands_(operands),
        like_(like),
        result_(result) {}

  ir::ValueId Run() {
    switch (record_.op->start.use) {
      case StartUse::kNone:
        break;
      case StartUse::kLowerTriangle:
        return Triangle("aten::le.Tensor");
      case StartUse::kUpperTriangle:
        return Triangle("aten::ge.Tensor");
      case StartUse::kRoll:
        return Roll();
      case StartUse::kNarrow:
      case StartUse::kSlice:
        return Read(Shape::kSlice);
      case StartUse::kSelect:
        return Read(Shape::kSelect);
      case StartUse::kSliceInto:
        return Write(Shape::kSlice);
      case StartUse::kSelectInto:
        return Write(Shape::kSelect);
      case StartUse::kSliceGradient:
        return Gradient(Shape::kSlice);
      case StartUse::kSelectGradient:
        return Gradient(Shape::kSelect);
    }
    SPMD_CHECK(false, record_.op->name, " has no start");
    return ir::kNoValue;
  }

 private:
  RuntimeScalar Slot() { return {graph_.AddScalar(ir::ScalarKind::kInt)}; }

  ir::ValueId Add(const char* op, std::vector<ir::ValueId> inputs, Attributes attributes,
                  const TensorType& type, int updates = -1) {
    ir::Graph::NodeSpec spec = like_;
    spec.op = op;
    spec.operands.assign(inputs.begin(), inputs.end());
    spec.attributes = std::move(attributes);
    spec.updates = updates;
    return graph_.Add(std::move(spec), type);
  }

  ir::ValueId View(ir::ValueId v, const TensorType& type) {
    return Add("aten::view", {v},
               {{"size", std::vector<int64_t>(type.dims.begin(), type.dims.end())}}, type);
  }

  // The sliced or selected dimension of a tensor whose part is `part`.
  int64_t DimOf(const TensorType& part, Shape shape) const {
    const int64_t dim = record_.args[record_.op->start.number - 1].toInt();
    return dim < 0 ? dim + part.rank() + (shape == Shape::kSelect ? 1 : 0) : dim;
  }

  // `part` with the dimension that a select has taken away.
  static TensorType WithDim(TensorType part, int64_t dim, Shape shape) {
    if (shape == Shape::kSelect) part.dims.insert(part.dims.begin() + dim, 1);
    return part;
  }

  ir::ValueId Read(Shape shape) {
    const int64_t dim = DimOf(result_, shape);
    const TensorType part = WithDim(result_, dim, shape);
    const ir::ValueId v = Add("spmd::slice_start", {operands_[0]},
                              {{"dim", dim}, {"start", Slot()}, {"length", part.dims[dim]}}, part);
    return shape == Shape::kSelect ? View(v, result_) : v;
  }

  ir::ValueId Write(Shape shape) {
    return WriteInto(operands_[0], operands_[1], shape, record_.updates_first ? 0 : -1);
  }

  // Zeros except for the part that was read.
  ir::ValueId Gradient(Shape shape) {
    const ir::ValueId zeros =
        Add("spmd::full", {},
            {{"size", std::vector<int64_t>(result_.dims.begin(), result_.dims.end())},
             {"value", int64_t{0}},
             {"dtype", result_.dtype}},
            result_);
    return WriteInto(zeros, operands_[0], shape, /*updates=*/-1);
  }

  ir::ValueId WriteInto(ir::ValueId whole, ir::ValueId part, Shape shape, int updates) {
    const int64_t dim = DimOf(graph_.type(part), shape);
    const TensorType with_dim = WithDim(graph_.type(part), dim, shape);
    if (shape == Shape::kSelect) part = View(part, with_dim);
    return Add("spmd::slice_start_scatter", {whole, part}, {{"dim", dim}, {"start", Slot()}},
               graph_.type(whole), updates);
  }

  // Row i of the result is row (i - shift) mod n, which is known to be near if the shift is short
  // (ReachOf in csrc/trace/tape/starts.h).
  ir::ValueId Roll() {
    const TensorType whole = graph_.type(operands_[0]);
    std::vector<int64_t> dims = record_.args[2].toIntVector();
    ir::ValueId x = operands_[0];
    TensorType type = whole;
    const bool flat = dims.empty();
    if (flat) {
      type.dims = {whole.NumElements()};
      x = View(x, type);
      dims = {0};
    }
    const std::vector<int64_t> shifts = record_.args[1].toIntVector();
    for (size_t i = 0; i < dims.size(); ++i) {
      const RuntimeScalar shift = Slot();
      if (type.rank() == 0 || type.NumElements() == 0) continue;
      const int64_t dim = dims[i] < 0 ? dims[i] + type.rank() : dims[i];
      const int64_t n = type.dims[dim];
      const int64_t reach = ReachOf(shifts[i], n);
      if (reach == 0) continue;
      if (reach != n) {
        x = Add("spmd::roll_start", {x, x},
                {{"dim", dim}, {"shift", shift}, {"reach", reach}, {"size", n}}, type);
        continue;
      }
      const ir::ValueId from = b_.Call("aten::sub.Scalar", {b_.Iota(n, 0, 1)},
                                       {{"other", shift}, {"alpha", int64_t{1}}});
      const ir::ValueId row = b_.Call("aten::remainder.Scalar", {from}, {{"other", n}});
      x = Add("aten::index_select", {x, row}, {{"dim", dim}}, type);
    }
    return flat ? View(x, whole) : x;
  }

  // The numbers of row and column say what is kept.
  ir::ValueId Triangle(const char* compare) {
    const int rank = result_.rank();
    const ir::ValueId row = b_.Iota(result_.dims[rank - 2], rank - 2, rank);
    const ir::ValueId column = b_.Iota(result_.dims[rank - 1], rank - 1, rank);
    const ir::ValueId last =
        b_.Call("aten::add.Scalar", {row}, {{"other", Slot()}, {"alpha", int64_t{1}}});
    const ir::ValueId kept = b_.Call(compare, {column, last});
    return Add("aten::where.self", {kept, operands_[0], b_.Constant(0, result_.dtype)}, {},
               result_);
  }

  ir::Graph& graph_;
  rules::Builder b_;
  const Record& record_;
  const std::vector<ir::ValueId>& operands_;
  const ir::Graph::NodeSpec& like_;
  const TensorType& result_;
};

}  // namespace

ir::ValueId LowerStarts(ir::Graph& graph, const Record& record,
                        const std::vector<ir::ValueId>& operands, const ir::Graph::NodeSpec& like,
                        const TensorType& result) {
  return StartLowering(graph, record, operands, like, result).Run();
}

}  // namespace spmd::trace
