// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/partition/random_model.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "csrc/rules/builder.h"

namespace spmd::partition {
namespace {

using Ints = std::vector<int64_t>;
using ir::ValueId;

class Modeller {
 public:
  explicit Modeller(std::mt19937& random) : random_(random), builder_(&graph_, 0, -1) {}

  ir::Graph Make() {
    const std::vector<Ints> shapes = {{2, 2}, {4}, {2, 3}, {3, 2}, {2, 2, 2}};
    const Ints& shape = shapes[Below(static_cast<int>(shapes.size()))];
    const int64_t devices = std::accumulate(shape.begin(), shape.end(), int64_t{1},
                                            [](int64_t a, int64_t b) { return a * b; });
    Ints ids(devices);
    std::iota(ids.begin(), ids.end(), 0);
    const std::vector<std::string> names = {"a", "b", "c"};
    graph_.AddGrid(
        Grid::Of(*Mesh::Create(
            ids, shape, std::vector<std::string>(names.begin(), names.begin() + shape.size()))),
        "m");
    for (int n = 1 + Below(3); n > 0; --n) Input(RandomDims(1 + Below(3)));
    for (int n = 1 + Below(7); n > 0; --n) Step();
    for (ValueId id = 0; id < graph_.num_values(); ++id) {
      const bool used = id + 3 < graph_.num_values() && !OneIn(6);
      if (graph_.value(id).producer == ir::kNoNode || used) continue;
      graph_.AddOutput({.value = id, .becomes = InputLike(id)});
    }
    return std::move(graph_);
  }

 private:
  int Below(int n) { return std::uniform_int_distribution<int>(0, n - 1)(random_); }
  bool OneIn(int n) { return Below(n) == 0; }

  Ints RandomDims(int rank) {
    Ints dims;
    const int64_t sizes[] = {1, 2, 3, 4, 5, 6, 8};
    for (int d = 0; d < rank; ++d) dims.push_back(sizes[Below(7)]);
    return dims;
  }

  // f64, so that sums in another order do not hide anything.
  ValueId Input(const Ints& dims, DType dtype = DType::kF64) {
    const ValueId id = graph_.AddInput({dtype, Dims(dims.begin(), dims.end())});
    if (!OneIn(3)) Annotate(id);
    return id;
  }

  void Annotate(ValueId id) {
    ir::Annotation annotation;
    AxisList free;
    for (int a = 0; a < graph_.grid(0).num_axes(); ++a) free.push_back(static_cast<AxisId>(a));
    std::shuffle(free.begin(), free.end(), random_);
    annotation.sharding = Sharding::Replicated(graph_.type(id).rank());
    for (DimSharding& dim : annotation.sharding.dims) {
      dim.open = OneIn(4);
      while (!free.empty() && OneIn(2)) {
        dim.axes.push_back(free.back());
        free.pop_back();
      }
    }
    annotation.hold = OneIn(3) ? ir::Hold::kSettled : ir::Hold::kCommitted;
    graph_.Annotate(id, std::move(annotation));
  }

  // An input of the value's type that no output replaces yet, now and then.
  ValueId InputLike(ValueId id) {
    for (ValueId input : graph_.inputs()) {
      const bool taken = std::any_of(graph_.outputs().begin(), graph_.outputs().end(),
                                     [&](const ir::Output& o) { return o.becomes == input; });
      if (!taken && graph_.type(input) == graph_.type(id) && OneIn(2)) return input;
    }
    return ir::kNoValue;
  }

  const Dims& dims(ValueId v) const { return graph_.type(v).dims; }
  int rank(ValueId v) const { return graph_.type(v).rank(); }
  int64_t last(ValueId v) const { return dims(v).back(); }

  // Any f64 value of at least this rank.
  ValueId Any(int least_rank) {
    std::vector<ValueId> fit;
    for (ValueId id = 0; id < graph_.num_values(); ++id) {
      if (rank(id) >= least_rank && graph_.type(id).dtype == DType::kF64) fit.push_back(id);
    }
    if (fit.empty()) return Input(RandomDims(least_rank));
    return fit[Below(static_cast<int>(fit.size()))];
  }
  // A value or a new input of exactly these dims.
  ValueId Like(const Ints& wanted) {
    std::vector<ValueId> fit;
    for (ValueId id = 0; id < graph_.num_values(); ++id) {
      if (graph_.type(id) == TensorType{DType::kF64, Dims(wanted.begin(), wanted.end())}) {
        fit.push_back(id);
      }
    }
    if (fit.empty() || OneIn(2)) return Input(wanted);
    return fit[Below(static_cast<int>(fit.size()))];
  }

  void Step() {
    static constexpr void (Modeller::* kSteps[])() = {
        &Modeller::Unary,   &Modeller::Binary,    &Modeller::Linear,    &Modeller::LinearBackward,
        &Modeller::Reduce,  &Modeller::Softmax,   &Modeller::LayerNorm, &Modeller::Reshape,
        &Modeller::Permute, &Modeller::Slice,     &Modeller::Cat,       &Modeller::Unsqueeze,
        &Modeller::Select,  &Modeller::Embedding, &Modeller::Dropout,   &Modeller::Expand,
        &Modeller::Pad,     &Modeller::Bmm,       &Modeller::Roll,      &Modeller::Convolution};
    const ValueId first = graph_.num_values();
    (this->*kSteps[Below(static_cast<int>(std::size(kSteps)))])();
    for (ValueId id = first; id < graph_.num_values(); ++id) {
      const bool computed = graph_.value(id).producer != ir::kNoNode;
      if (computed && graph_.type(id).dtype == DType::kF64 && OneIn(5)) Annotate(id);
    }
  }

  void Unary() {
    const char* ops[] = {"aten::relu", "aten::tanh", "aten::neg", "aten::sigmoid"};
    builder_.Call(ops[Below(4)], {Any(0)});
  }
  void Binary() {
    const ValueId a = Any(0);
    Ints other(dims(a).begin(), dims(a).end());
    for (int64_t& size : other) {
      if (OneIn(4)) size = 1;
    }
    if (!other.empty() && OneIn(4)) other.erase(other.begin());
    const ValueId b = Like(other);
    switch (Below(3)) {
      case 0:
        builder_.Add(a, b);
        break;
      case 1:
        builder_.Sub(b, a);
        break;
      default:
        builder_.Mul(a, b);
    }
  }
  void Linear() {
    const ValueId x = Any(1);
    const int64_t n = RandomDims(1)[0];
    const ValueId w = Like({n, last(x)});
    const ValueId b = OneIn(2) ? ir::kNoValue : Like({n});
    builder_.Call("aten::linear", {x, w, b});
  }
  void LinearBackward() {
    const ValueId g = Any(2);
    if (OneIn(2)) {
      builder_.Call("spmd::linear_dinput", {g, Like({last(g), RandomDims(1)[0]})});
      return;
    }
    Ints in(dims(g).begin(), dims(g).end());
    in.back() = RandomDims(1)[0];
    builder_.Call("spmd::linear_dweight", {g, Like(in)});
  }
  void Bmm() {
    const int64_t b = RandomDims(1)[0], k = RandomDims(1)[0];
    builder_.Call("aten::bmm", {Like({b, RandomDims(1)[0], k}), Like({b, k, RandomDims(1)[0]})});
  }
  void Reduce() {
    const ValueId x = Any(1);
    Ints over;
    for (int d = 0; d < rank(x); ++d) {
      if (OneIn(2)) over.push_back(d);
    }
    if (over.empty()) over.push_back(0);
    if (OneIn(3)) {
      builder_.Amax(x, over, OneIn(2));
    } else {
      builder_.Sum(x, over, OneIn(2));
    }
  }
  void Softmax() {
    const ValueId x = Any(1);
    builder_.Call(OneIn(2) ? "aten::_softmax" : "aten::_log_softmax", {x},
                  {{"dim", int64_t{Below(rank(x))}}, {"half_to_float", false}});
  }
  void LayerNorm() {
    const ValueId x = Any(1);
    builder_.CallAll(
        "aten::native_layer_norm",
        {x, OneIn(2) ? ir::kNoValue : Like({last(x)}), OneIn(2) ? ir::kNoValue : Like({last(x)})},
        {{"normalized_shape", Ints{last(x)}}, {"eps", 0.5}});
  }
  // Merges two neighbours, or splits one dimension.
  void Reshape() {
    const ValueId x = Any(1);
    Ints size(dims(x).begin(), dims(x).end());
    const int d = Below(rank(x));
    if (d + 1 < rank(x) && OneIn(2)) {
      size[d] *= size[d + 1];
      size.erase(size.begin() + d + 1);
    } else {
      const int64_t factor = size[d] % 2 == 0 ? 2 : size[d] % 3 == 0 ? 3 : 1;
      size[d] /= factor;
      size.insert(size.begin() + d + Below(2), factor);
    }
    builder_.View(x, size);
  }
  void Permute() {
    const ValueId x = Any(1);
    Ints order(rank(x));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    builder_.Call("aten::permute", {x}, {{"dims", order}});
  }
  void Slice() {
    const ValueId x = Any(1);
    const int d = Below(rank(x));
    const int64_t start = Below(static_cast<int>(dims(x)[d]));
    const int64_t end = start + 1 + Below(static_cast<int>(dims(x)[d] - start));
    builder_.Call(
        "aten::slice.Tensor", {x},
        {{"dim", int64_t{d}}, {"start", start}, {"end", end}, {"step", int64_t{1 + Below(2)}}});
  }
  void Select() {
    const ValueId x = Any(1);
    const int d = Below(rank(x));
    builder_.Call("aten::select.int", {x},
                  {{"dim", int64_t{d}}, {"index", int64_t{Below(static_cast<int>(dims(x)[d]))}}});
  }
  void Cat() {
    const ValueId x = Any(1);
    const int d = Below(rank(x));
    Ints other(dims(x).begin(), dims(x).end());
    other[d] = RandomDims(1)[0];
    builder_.CallAll("aten::cat", {x, Like(other)}, {{"dim", int64_t{d}}}, {{0, 2}});
  }
  void Unsqueeze() {
    const ValueId x = Any(0);
    builder_.Call("aten::unsqueeze", {x}, {{"dim", int64_t{Below(rank(x) + 1)}}});
  }
  void Expand() {
    const ValueId x = Any(0);
    Ints size(dims(x).begin(), dims(x).end());
    for (int64_t& s : size) {
      if (s == 1 && OneIn(2)) s = RandomDims(1)[0];
    }
    if (OneIn(2)) size.insert(size.begin(), RandomDims(1)[0]);
    builder_.Call("aten::expand", {x}, {{"size", size}, {"implicit", false}});
  }
  void Pad() {
    const ValueId x = Any(1);
    builder_.Call("aten::constant_pad_nd", {x},
                  {{"pad", Ints{Below(3), Below(3)}}, {"value", 0.5}});
  }
  void Roll() {
    const ValueId x = Any(1);
    builder_.Call("aten::roll", {x},
                  {{"shifts", Ints{1 + Below(3)}}, {"dims", Ints{Below(rank(x))}}});
  }
  void Embedding() {
    // Sampled indices are below 4.
    const ValueId table = Like({4 + Below(3), RandomDims(1)[0]});
    builder_.Call("spmd::embedding", {table, Input(RandomDims(1 + Below(2)), DType::kI64)},
                  {{"first_row", int64_t{0}}});
  }
  void Dropout() {
    const ValueId x = Any(1);
    builder_.CallAll("spmd::dropout", {x},
                     {{"p", 0.5},
                      {"seed", int64_t{1}},
                      {"counter", int64_t{Below(100)}},
                      {"offset", Ints(rank(x), 0)},
                      {"global_size", Ints(dims(x).begin(), dims(x).end())}});
  }
  void Convolution() {
    const int64_t groups = 1 + Below(2), kernel = 1 + Below(3);
    const ValueId x = Like({1 + Below(3), 2 * groups, 5 + Below(4)});
    const ValueId w = Like({2 * groups, 2, kernel});
    builder_.Call("aten::convolution", {x, w, OneIn(2) ? ir::kNoValue : Like({2 * groups})},
                  {{"stride", Ints{1 + Below(2)}},
                   {"padding", Ints{Below(2)}},
                   {"dilation", Ints{1 + Below(2)}},
                   {"transposed", false},
                   {"output_padding", Ints{0}},
                   {"groups", groups}});
  }

  std::mt19937& random_;
  ir::Graph graph_;
  rules::Builder builder_;
};

}  // namespace

ir::Graph RandomModel(std::mt19937& random) { return Modeller(random).Make(); }

}  // namespace spmd::partition
