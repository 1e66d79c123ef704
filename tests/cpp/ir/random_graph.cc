// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/ir/random_graph.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"

namespace spmd::ir {
namespace {

int Below(std::mt19937& random, int n) {
  return std::uniform_int_distribution<int>(0, n - 1)(random);
}
bool OneIn(std::mt19937& random, int n) { return Below(random, n) == 0; }

class Generator {
 public:
  explicit Generator(std::mt19937& random) : random_(random) {}

  Graph Generate() {
    AddMeshes();
    for (int n = Below(random_, 3); n > 0; --n)
      graph_.AddScalar(static_cast<ScalarKind>(Below(random_, 4)));
    for (int n = Below(random_, 3); n > 0; --n)
      graph_.AddSource(absl::StrCat("dir/a \"b\".py:", n));
    for (int n = 1 + Below(random_, 12); n > 0; --n) {
      if (OneIn(random_, 3)) {
        AddInput();
      } else {
        AddNode();
      }
    }
    for (int n = Below(random_, 4); n > 0 && graph_.num_values() > 0; --n) AddOutput();
    return std::move(graph_);
  }

 private:
  void AddMeshes() {
    const Mesh first = *Mesh::Create({0, 1, 2, 3, 4, 5, 6, 7}, {2, 4}, {{"data", "model"}});
    const Mesh second = *Mesh::Create({3, 1, 0, 2, 5, 4}, {6}, {{"x"}});
    const int count = Below(random_, 3);
    if (count > 0) graph_.AddGrid(Grid::Of(first), "m");
    if (count > 1) graph_.AddGrid(Grid::Of(second), "other");
  }

  TensorType RandomType() {
    TensorType type{static_cast<DType>(Below(random_, 18)), {}};
    for (int rank = Below(random_, 4); rank > 0; --rank) type.dims.push_back(Below(random_, 20));
    return type;
  }

  // All axes of the grid in random order; taken from the back.
  AxisList Shuffled(const Grid& grid) {
    AxisList axes;
    for (int a = 0; a < grid.num_axes(); ++a) axes.push_back(static_cast<AxisId>(a));
    std::shuffle(axes.begin(), axes.end(), random_);
    return axes;
  }

  AxisList Take(AxisList& from) {
    AxisList taken;
    while (!from.empty() && OneIn(random_, 2)) {
      taken.push_back(from.back());
      from.pop_back();
    }
    return taken;
  }

  void MaybeAnnotate(ValueId id) {
    if (graph_.grids().empty() || OneIn(random_, 2)) return;
    Annotation annotation;
    annotation.grid = Below(random_, static_cast<int>(graph_.grids().size()));
    annotation.hold = static_cast<Hold>(Below(random_, 3));
    const Grid& grid = graph_.grid(annotation.grid);
    AxisList free = Shuffled(grid);
    annotation.sharding = Sharding::Replicated(graph_.type(id).rank());
    for (int d = 0; d < graph_.type(id).rank(); ++d) {
      DimSharding& dim = annotation.sharding.dims[d];
      dim.axes = Take(free);
      dim.open = OneIn(random_, 3);
      if (!dim.axes.empty() && OneIn(random_, 3)) dim.chunk = graph_.type(id).dims[d] + 1;
    }
    annotation.sharding.unreduced = Take(free);
    std::sort(annotation.sharding.unreduced.begin(), annotation.sharding.unreduced.end());
    if (annotation.sharding.IsUnreduced()) {
      annotation.sharding.reduce_kind = static_cast<ReduceKind>(Below(random_, 6));
    }
    graph_.Annotate(id, annotation);
  }

  void AddInput() {
    const ValueId id = graph_.AddInput(RandomType());
    if (OneIn(random_, 2)) graph_.SetName(id, absl::StrCat("layer.", id, ".weight"));
    MaybeAnnotate(id);
  }

  Attr RandomAttr() {
    switch (Below(random_, 12)) {
      case 0:
        return NoneAttr();
      case 1:
        return OneIn(random_, 2);
      case 2:
        return static_cast<int64_t>(random_()) - (int64_t{1} << 31);
      case 3:
        return std::ldexp(static_cast<double>(random_()), Below(random_, 200) - 100);
      case 4:
        return std::complex<double>(1.0, -static_cast<double>(Below(random_, 9)) / 8);
      case 5:
        return std::string("a \"quoted\", \\ # // )\n\xc3\xa9");
      case 6:
        return static_cast<DType>(Below(random_, 18));
      case 7:
        if (graph_.scalars().empty()) return NoneAttr();
        return RuntimeScalar{Below(random_, static_cast<int>(graph_.scalars().size()))};
      case 8:
        return std::vector<int64_t>(Below(random_, 3), -7);
      case 9:
        return std::vector<double>(Below(random_, 3), 0.1);
      case 10:
        return std::vector<bool>(Below(random_, 3), true);
      default:
        return OneIn(random_, 2) ? HUGE_VAL : -HUGE_VAL;
    }
  }

  ValueId RandomOperand() {
    return graph_.num_values() == 0 || OneIn(random_, 5) ? kNoValue
                                                         : Below(random_, graph_.num_values());
  }

  void AddNode() {
    Graph::NodeSpec spec;
    spec.op = OneIn(random_, 2) ? "aten::add.Tensor" : "mylib::thing";
    for (int n = Below(random_, 4); n > 0; --n) {
      if (OneIn(random_, 3)) {
        OperandGroup group{static_cast<int>(spec.operands.size()), Below(random_, 3)};
        for (int k = 0; k < group.size; ++k) spec.operands.push_back(RandomOperand());
        spec.groups.push_back(group);
      } else {
        spec.operands.push_back(RandomOperand());
      }
    }
    for (int n = Below(random_, 4); n > 0; --n)
      spec.attributes.Set(absl::StrCat("a", n), RandomAttr());
    for (size_t k = 0; k < spec.operands.size(); ++k) {
      if (spec.operands[k] != kNoValue && OneIn(random_, 4)) spec.updates = static_cast<int>(k);
    }
    if (OneIn(random_, 4)) spec.task = Below(random_, 5) - 1;
    if (!graph_.sources().empty() && OneIn(random_, 2)) {
      spec.source = Below(random_, static_cast<int>(graph_.sources().size()));
    }
    std::vector<TensorType> types;
    for (int n = Below(random_, 8) == 0 ? 0 : 1 + Below(random_, 2); n > 0; --n)
      types.push_back(RandomType());
    const NodeId node = graph_.AddNode(std::move(spec), types);
    for (size_t k = 0; k < types.size(); ++k)
      MaybeAnnotate(graph_.result(node, static_cast<int>(k)));
    MaybeCut(node);
  }

  void MaybeCut(NodeId node) {
    if (graph_.grids().empty() || OneIn(random_, 2)) return;
    const int grid = Below(random_, static_cast<int>(graph_.grids().size()));
    AxisList free = Shuffled(graph_.grid(grid));
    std::vector<FactorCut> cuts;
    for (int f = 0, count = Below(random_, 3); f < count; ++f) {
      cuts.push_back({f - 1, Take(free)});
      if (!cuts.back().axes.empty() && OneIn(random_, 3)) cuts.back().chunk = 6;
    }
    graph_.SetCut(node, grid, std::move(cuts));
  }

  void AddOutput() {
    Output output{Below(random_, graph_.num_values())};
    output.may_stay_unreduced = OneIn(random_, 2);
    for (ValueId input : graph_.inputs()) {
      const bool taken = std::any_of(graph_.outputs().begin(), graph_.outputs().end(),
                                     [&](const Output& o) { return o.becomes == input; });
      if (!taken && graph_.type(input) == graph_.type(output.value)) output.becomes = input;
    }
    graph_.AddOutput(output);
  }

  std::mt19937& random_;
  Graph graph_;
};

}  // namespace

Graph RandomGraph(std::mt19937& random) { return Generator(random).Generate(); }

}  // namespace spmd::ir
