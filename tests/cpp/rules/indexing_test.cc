// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <random>

#include "csrc/rules/builder.h"
#include "csrc/rules/registry.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cpp/rules/tiles.h"

namespace spmd::rules {
namespace {

using testing::ElementsAre;
using Ints = std::vector<int64_t>;

int64_t Dim(const Attributes& a, int rank) {
  const int64_t d = a.GetInt("dim");
  return d < 0 ? d + rank : d;
}
int64_t AsIndex(double x) { return static_cast<int64_t>(x); }

std::vector<Array> Embedding(const std::vector<Array>& x, const Attributes& a) {
  const int64_t first = a.GetInt("first_row"), rows = x[0].size(0), width = x[0].size(1);
  Dims dims = x[1].dims;
  dims.push_back(width);
  Array r(dims);
  for (size_t i = 0; i < x[1].data.size(); ++i) {
    const int64_t row = AsIndex(x[1].data[i]) - first;
    for (int64_t j = 0; j < width && row >= 0 && row < rows; ++j) {
      r.data[i * width + j] = x[0].data[row * width + j];
    }
  }
  return {r};
}

std::vector<Array> EmbeddingDWeight(const std::vector<Array>& x, const Attributes& a) {
  const int64_t first = a.GetInt("first_row"), rows = a.GetInt("num_weights");
  const int64_t width = x[0].dims.back();
  Array r({rows, width});
  for (size_t i = 0; i < x[1].data.size(); ++i) {
    const int64_t row = AsIndex(x[1].data[i]) - first;
    if (AsIndex(x[1].data[i]) == a.GetInt("padding_idx") || row < 0 || row >= rows) continue;
    for (int64_t j = 0; j < width; ++j) r.data[row * width + j] += x[0].data[i * width + j];
  }
  return {r};
}

std::vector<Array> Gather(const std::vector<Array>& x, const Attributes& a) {
  const int64_t dim = Dim(a, x[0].rank());
  Array r(x[1].dims);
  ForEachIndex(r.dims, [&](const Dims& i) {
    Dims from = i;
    from[dim] = AsIndex(x[1].at(i));
    r.at(i) = x[0].at(from);
  });
  return {r};
}

std::vector<Array> Scatter(const std::vector<Array>& x, const Attributes& a, bool add) {
  const int64_t dim = Dim(a, x[0].rank());
  Array r = x[0];
  ForEachIndex(x[1].dims, [&](const Dims& i) {
    Dims to = i;
    to[dim] = AsIndex(x[1].at(i));
    r.at(to) = x[2].at(i) + (add ? r.at(to) : 0);
  });
  return {r};
}
std::vector<Array> ScatterSrc(const std::vector<Array>& x, const Attributes& a) {
  return Scatter(x, a, /*add=*/false);
}
std::vector<Array> ScatterAdd(const std::vector<Array>& x, const Attributes& a) {
  return Scatter(x, a, /*add=*/true);
}

std::vector<Array> IndexSelect(const std::vector<Array>& x, const Attributes& a) {
  const int64_t dim = Dim(a, x[0].rank());
  Dims dims = x[0].dims;
  dims[dim] = static_cast<int64_t>(x[1].data.size());
  Array r(dims);
  ForEachIndex(dims, [&](Dims i) {
    const Dims to = i;
    i[dim] = AsIndex(x[1].data[i[dim]]);
    r.at(to) = x[0].at(i);
  });
  return {r};
}

std::vector<Array> IndexAdd(const std::vector<Array>& x, const Attributes& a) {
  const int64_t dim = Dim(a, x[0].rank());
  Array r = x[0];
  ForEachIndex(x[2].dims, [&](Dims i) {
    const double value = x[2].at(i);
    i[dim] = AsIndex(x[1].data[i[dim]]);
    r.at(i) += value;
  });
  return {r};
}

// self[i, :, j] for index tensors that broadcast; which dims are indexed is `present`.
struct Indexing {
  std::vector<bool> present;
  int lead;  // kept dimensions before the broadcast ones
  Dims broadcast;

  Dims ResultDims(const std::vector<Array>& x) const {
    Dims kept;
    for (size_t d = 0; d < x[0].dims.size(); ++d) {
      if (d >= present.size() || !present[d]) kept.push_back(x[0].dims[d]);
    }
    kept.insert(kept.begin() + lead, broadcast.begin(), broadcast.end());
    return kept;
  }
  Dims From(const std::vector<Array>& x, const Dims& i) const {
    const Dims b(i.begin() + lead, i.begin() + lead + broadcast.size());
    Dims kept(i);
    kept.erase(kept.begin() + lead, kept.begin() + lead + broadcast.size());
    Dims from;
    size_t next = 0;
    for (size_t d = 0; d < x[0].dims.size(); ++d) {
      if (d >= present.size() || !present[d]) {
        from.push_back(kept[next++]);
        continue;
      }
      const Array& index = x[1 + d];
      Dims at(b.end() - index.rank(), b.end());
      for (int k = 0; k < index.rank(); ++k) at[k] = index.dims[k] == 1 ? 0 : at[k];
      from.push_back(AsIndex(index.at(at)));
    }
    return from;
  }
};

// The broadcast dims change from tile to tile.
Dims BroadcastOf(const std::vector<Array>& x, const std::vector<bool>& present) {
  Dims dims;
  for (size_t d = 0; d < present.size(); ++d) {
    if (!present[d]) continue;
    const Array& index = x[1 + d];
    while (static_cast<int>(dims.size()) < index.rank()) dims.insert(dims.begin(), 1);
    const size_t shift = dims.size() - index.dims.size();
    for (int k = 0; k < index.rank(); ++k) {
      if (index.dims[k] != 1) dims[shift + k] = index.dims[k];
    }
  }
  return dims;
}

Kernel IndexKernel(std::vector<bool> present, int lead) {
  return [=](const std::vector<Array>& x, const Attributes&) -> std::vector<Array> {
    const Indexing how{present, lead, BroadcastOf(x, present)};
    Array r(how.ResultDims(x));
    ForEachIndex(r.dims, [&](const Dims& i) { r.at(i) = x[0].at(how.From(x, i)); });
    return {r};
  };
}

Kernel IndexPutKernel(std::vector<bool> present, int lead) {
  return [=](const std::vector<Array>& x, const Attributes& a) -> std::vector<Array> {
    const Indexing how{present, lead, BroadcastOf(x, present)};
    const Array& values = x.back();
    Array r = x[0];
    ForEachIndex(how.ResultDims(x), [&](const Dims& i) {
      Dims from(i.end() - values.rank(), i.end());
      for (int k = 0; k < values.rank(); ++k) from[k] = values.dims[k] == 1 ? 0 : from[k];
      double& to = r.at(how.From(x, i));
      to = values.at(from) + (a.GetBoolOr("accumulate", false) ? to : 0);
    });
    return {r};
  };
}

double WeightOf(const Array& weight, int64_t target, int64_t first) {
  if (IsAbsent(weight)) return 1;
  return weight.data[target - first];
}

std::vector<Array> NllRows(const std::vector<Array>& x, const Attributes& a) {
  const int64_t first = a.GetInt("first_class"), classes = x[0].size(1);
  Array loss({x[0].size(0)}), weights({x[0].size(0)});
  for (int64_t i = 0; i < x[0].size(0); ++i) {
    const int64_t t = AsIndex(x[1].data[i]);
    if (t == a.GetInt("ignore_index") || t < first || t >= first + classes) continue;
    weights.data[i] = WeightOf(x[2], t, first);
    loss.data[i] = -x[0].at({i, t - first}) * weights.data[i];
  }
  return {loss, weights};
}
std::vector<Array> NllRowsOnly(const std::vector<Array>& x, const Attributes& a) {
  return {NllRows(x, a)[0]};
}
std::vector<Array> NllSum(const std::vector<Array>& x, const Attributes& a) {
  std::vector<Array> sums = {Array(), Array()};
  const std::vector<Array> rows = NllRows(x, a);
  for (int r = 0; r < 2; ++r) {
    for (double v : rows[r].data) sums[r].data[0] += v;
  }
  return sums;
}

double RowGrad(const Array& grad, int64_t i) { return grad.data[grad.rank() == 0 ? 0 : i]; }

std::vector<Array> NllDInput(const std::vector<Array>& x, const Attributes& a) {
  const int64_t first = a.GetInt("first_class"), classes = a.GetInt("num_classes");
  Array r({x[1].size(0), classes});
  for (int64_t i = 0; i < r.size(0); ++i) {
    const int64_t t = AsIndex(x[1].data[i]);
    if (t == a.GetInt("ignore_index") || t < first || t >= first + classes) continue;
    r.at({i, t - first}) = -WeightOf(x[2], t, first) * RowGrad(x[0], i) * x[3].data[0];
  }
  return {r};
}

std::vector<Array> CrossEntropyDInput(const std::vector<Array>& x, const Attributes& a) {
  const int64_t first = a.GetInt("first_class");
  Array r(x[1].dims);
  ForEachIndex(r.dims, [&](const Dims& i) {
    const int64_t t = AsIndex(x[2].data[i[0]]);
    if (t == a.GetInt("ignore_index")) return;
    const double hit = i[1] + first == t ? 1 : 0;
    r.at(i) =
        (std::exp(x[1].at(i)) - hit) * WeightOf(x[3], t, 0) * RowGrad(x[0], i[0]) * x[4].data[0];
  });
  return {r};
}

class IndexingRulesTest : public testing::Test {
 protected:
  std::mt19937 rng_{7};
  const DType f32_ = DType::kF32, i64_ = DType::kI64;
};

TEST_F(IndexingRulesTest, Embedding) {
  const Case c{"spmd::embedding",
               {Counting({11, 4}), Random(rng_, {3, 5}, 0, 10)},
               {{"first_row", int64_t{0}}},
               {},
               {f32_, i64_}};
  EXPECT_EQ(FactorText(c, Embedding), "a b, c d -> c d b");
  EXPECT_EQ(LocalOfCase(c, Embedding, {0}).ToString(), "first_row=start(o0,0)");
  EXPECT_GT(CheckCuts(c, Embedding), 30);
}

TEST_F(IndexingRulesTest, EmbeddingDWeight) {
  const Case c{
      "spmd::embedding_dweight",
      {Counting({3, 5, 4}), Random(rng_, {3, 5}, 0, 10)},
      {{"num_weights", int64_t{11}}, {"padding_idx", int64_t{6}}, {"first_row", int64_t{0}}},
      {},
      {f32_, i64_}};
  EXPECT_EQ(FactorText(c, EmbeddingDWeight), "a b c, a b -> d c");
  EXPECT_EQ(LocalOfCase(c, EmbeddingDWeight, {3}).ToString(),
            "num_weights=size(r0,0), padding_idx=6, first_row=start(r0,0)");
  EXPECT_GT(CheckCuts(c, EmbeddingDWeight), 30);
}

TEST_F(IndexingRulesTest, Gather) {
  const Case same{"aten::gather",
                  {Counting({4, 9}), Random(rng_, {4, 5}, 0, 8)},
                  {{"dim", int64_t{1}}, {"sparse_grad", false}},
                  {},
                  {f32_, i64_}};
  EXPECT_EQ(FactorText(same, Gather), "a [c], a b -> a b");
  CheckCuts(same, Gather);
  const Case shorter{"aten::gather",
                     {Counting({6, 9, 3}), Random(rng_, {4, 5, 2}, 0, 8)},
                     {{"dim", int64_t{1}}, {"sparse_grad", false}},
                     {},
                     {f32_, i64_}};
  EXPECT_EQ(FactorsOfCase(shorter, Gather).windows.size(), 2u);
  EXPECT_GT(CheckCuts(shorter, Gather), 20);
}

TEST_F(IndexingRulesTest, ScatterAndScatterAdd) {
  for (const Dims& index : {Dims{4, 6}, Dims{3, 6}}) {
    Array order(index);  // every place written once, so that the order of writes does not matter
    ForEachIndex(index,
                 [&](const Dims& i) { order.at(i) = static_cast<double>((i[0] + i[1]) % 7); });
    const Case set{"aten::scatter.src",
                   {Array({4, 7}, -1), order, Counting({4, 8})},
                   {{"dim", int64_t{1}}},
                   {},
                   {f32_, i64_, f32_}};
    EXPECT_GT(CheckCuts(set, ScatterSrc), 4);
    Case add = set;
    add.op = "aten::scatter_add";
    add.operands[1] = Random(rng_, index, 0, 6);
    EXPECT_GT(CheckCuts(add, ScatterAdd), 12);
  }
}

TEST_F(IndexingRulesTest, ScatterAddReducesTheIndex) {
  const Case c{"aten::scatter_add",
               {Counting({4, 7}), Random(rng_, {4, 5}, 0, 6), Counting({4, 5})},
               {{"dim", int64_t{1}}},
               {},
               {f32_, i64_, f32_}};
  EXPECT_EQ(FactorText(c, ScatterAdd), "a [b], a c, a c -> a [b]");
  EXPECT_THAT(Find("aten::scatter_add")->added, ElementsAre(0));
  CheckCuts(c, ScatterAdd);
}

TEST_F(IndexingRulesTest, IndexSelectAndAdd) {
  const Array index = Random(rng_, {5}, 0, 6);
  const Case select{
      "aten::index_select", {Counting({4, 7, 2}), index}, {{"dim", int64_t{1}}}, {}, {f32_, i64_}};
  EXPECT_EQ(FactorText(select, IndexSelect), "a [b] d, c -> a c d");
  CheckCuts(select, IndexSelect);
  const Case add{"aten::index_add",
                 {Counting({4, 7, 2}), index, Counting({4, 5, 2})},
                 {{"dim", int64_t{1}}, {"alpha", int64_t{1}}},
                 {},
                 {f32_, i64_, f32_}};
  EXPECT_EQ(FactorText(add, IndexAdd), "a [b] d, c, a c d -> a [b] d");
  EXPECT_GT(CheckCuts(add, IndexAdd), 20);
}

TEST_F(IndexingRulesTest, IndexTensor) {
  const Array i = Random(rng_, {5, 1}, 0, 3), j = Random(rng_, {6}, 0, 6);
  // x[:, i, j]: adjacent, the broadcast dims stay in place.
  const Case adjacent{"aten::index.Tensor",
                      {Counting({2, 4, 7, 3}), Absent(), i, j},
                      {},
                      {{1, 3}},
                      {f32_, i64_, i64_, i64_}};
  const Kernel kernel = IndexKernel({false, true, true}, 1);
  EXPECT_EQ(FactorText(adjacent, kernel), "a [c] [d] b, (), e 1, f -> a e f b");
  EXPECT_GT(CheckCuts(adjacent, kernel), 20);
  // x[i, :, j]: apart, they come first.
  const Case apart{"aten::index.Tensor",
                   {Counting({4, 2, 7}), i, Absent(), j},
                   {},
                   {{1, 3}},
                   {f32_, i64_, i64_, i64_}};
  const Kernel front = IndexKernel({true, false, true}, 0);
  EXPECT_EQ(FactorText(apart, front), "[b] a [c], d 1, (), e -> d e a");
  EXPECT_GT(CheckCuts(apart, front), 20);
}

TEST_F(IndexingRulesTest, MasksAreWhole) {
  TensorType x{DType::kF32, {4, 3}}, mask{DType::kBool, {4}}, r{DType::kF32, {2, 3}};
  Attributes none;
  OpCall call{"aten::index.Tensor", {&x, &mask}, {{1, 1}}, &none, {r}};
  EXPECT_EQ(FactorsOf(*Find(call.op), call)->ToString(), "1 1, 1 -> 1 1  {}");
}

TEST_F(IndexingRulesTest, IndexPut) {
  for (const bool accumulate : {false, true}) {
    Array i({3});
    i.data = {2, 0, accumulate ? 2.0 : 3.0};
    const Case c{"aten::index_put",
                 {Counting({2, 4, 5}), Absent(), i, Counting({3, 1})},
                 {{"accumulate", accumulate}},
                 {{1, 2}},
                 {f32_, i64_, i64_, f32_}};
    const Kernel kernel = IndexPutKernel({false, true}, 1);
    EXPECT_EQ(FactorText(c, kernel),
              accumulate ? "a [c] b, (), d, d 1 -> a [c] b" : "a [c] b, (), [d], [d] 1 -> a [c] b");
    EXPECT_GT(CheckCuts(c, kernel), accumulate ? 16 : 10);
  }
}

TEST_F(IndexingRulesTest, NegativeLogLikelihood) {
  Array target = Random(rng_, {7}, 0, 10);
  target.data[2] = -100;
  const Attributes attrs = {{"ignore_index", int64_t{-100}}, {"first_class", int64_t{0}}};
  for (const Array& weight : {Absent(), Counting({11})}) {
    const std::vector<Array> operands = {Random(rng_, {7, 11}, -9, 0), target, weight};
    const std::vector<DType> dtypes = {f32_, i64_, f32_};
    const Case sum{"spmd::nll_sum", operands, attrs, {}, dtypes};
    EXPECT_EQ(FactorText(sum, NllSum),
              IsAbsent(weight) ? "a b, a, () -> (), ()" : "a b, a, b -> (), ()");
    EXPECT_EQ(LocalOfCase(sum, NllSum, {1}).ToString(),
              "ignore_index=-100, first_class=start(o0,1)");
    EXPECT_GT(CheckCuts(sum, NllSum), 16);
    EXPECT_GT(CheckCuts({"spmd::nll_rows", operands, attrs, {}, dtypes}, NllRowsOnly), 16);
  }
}

TEST_F(IndexingRulesTest, LikelihoodGradients) {
  Array target = Random(rng_, {7}, 0, 10);
  target.data[2] = -100;
  const Array scale({}, 0.5);
  for (const Array& weight : {Absent(), Counting({11})}) {
    for (const Array& grad : {Array({}, 3), Counting({7})}) {
      const Case nll{"spmd::nll_dinput",
                     {grad, target, weight, scale},
                     {{"num_classes", int64_t{11}},
                      {"ignore_index", int64_t{-100}},
                      {"first_class", int64_t{0}}},
                     {},
                     {f32_, i64_, f32_, f32_}};
      EXPECT_EQ(LocalOfCase(nll, NllDInput, {1}).ToString(),
                "num_classes=size(r0,1), ignore_index=-100, first_class=start(r0,1)");
      EXPECT_GT(CheckCuts(nll, NllDInput), 16);
      Array logp = Random(rng_, {7, 11}, -9, 0);
      const Case fused{"spmd::cross_entropy_dinput",
                       {grad, logp, target, weight, scale},
                       {{"ignore_index", int64_t{-100}}, {"first_class", int64_t{0}}},
                       {},
                       {f32_, f32_, i64_, f32_, f32_}};
      EXPECT_GT(CheckCuts(fused, CrossEntropyDInput), 16);
    }
  }
}

struct DecomposedTypes {
  std::vector<std::string> ops;
  std::vector<TensorType> types;
};
// `types` may hold dims {-1} for an absent operand.
DecomposedTypes DecomposeIndexing(const std::string& op, const std::vector<TensorType>& types,
                                  Attributes attributes, const std::vector<TensorType>& results) {
  ir::Graph from, to;
  ir::Graph::NodeSpec spec;
  spec.op = op;
  std::vector<ir::ValueId> operands;
  for (const TensorType& t : types) {
    const bool absent = t.dims == Dims{-1};
    spec.operands.push_back(absent ? ir::kNoValue : from.AddInput(t));
    operands.push_back(absent ? ir::kNoValue : to.AddInput(t));
  }
  spec.attributes = std::move(attributes);
  const ir::NodeId node = from.AddNode(spec, results);
  Builder builder(&to, 0, -1);
  auto values = Find(op)->decompose(builder, from, from.node(node), operands);
  EXPECT_TRUE(values.ok()) << values.status();
  DecomposedTypes d;
  for (const ir::Node& n : to.nodes()) d.ops.push_back(n.op);
  for (ir::ValueId v : *values) d.types.push_back(to.type(v));
  return d;
}

TEST_F(IndexingRulesTest, LossDecompositions) {
  const TensorType logp{f32_, {7, 11}}, target{i64_, {7}}, none{f32_, {-1}}, scalar{f32_, {}},
      rows{f32_, {7}};
  auto attrs = [](int64_t reduction) -> Attributes {
    return {{"reduction", reduction}, {"ignore_index", int64_t{-100}}};
  };
  DecomposedTypes d =
      DecomposeIndexing("aten::nll_loss_forward", {logp, target, none}, attrs(1), {scalar, scalar});
  EXPECT_THAT(d.ops, ElementsAre("spmd::nll_sum", "aten::ne.Scalar", "aten::sum.dim_IntList",
                                 "aten::div.Tensor"));
  EXPECT_THAT(d.types, ElementsAre(scalar, scalar));
  d = DecomposeIndexing("aten::nll_loss_forward", {logp, target, none}, attrs(0), {rows, scalar});
  EXPECT_THAT(d.ops, ElementsAre("spmd::nll_rows", "spmd::full"));
  EXPECT_THAT(d.types, ElementsAre(rows, scalar));
  d = DecomposeIndexing("aten::nll_loss_forward", {{f32_, {11}}, {i64_, {}}, none}, attrs(0),
                        {scalar, scalar});
  EXPECT_THAT(d.ops, ElementsAre("aten::view", "aten::view", "spmd::nll_rows", "spmd::nll_sum",
                                 "aten::view"));
  EXPECT_THAT(d.types, ElementsAre(scalar, scalar));
  d = DecomposeIndexing("aten::nll_loss_backward", {scalar, logp, target, none, scalar}, attrs(1),
                        {logp});
  EXPECT_THAT(d.ops, ElementsAre("aten::reciprocal", "spmd::nll_dinput"));
  EXPECT_THAT(d.types, ElementsAre(logp));
  const TensorType image{f32_, {2, 5, 3, 4}}, labels{i64_, {2, 3, 4}}, pixels{f32_, {2, 3, 4}};
  d = DecomposeIndexing("aten::nll_loss2d_forward", {image, labels, none}, attrs(0),
                        {pixels, scalar});
  EXPECT_THAT(d.types, ElementsAre(pixels, scalar));
  d = DecomposeIndexing("aten::nll_loss2d_backward", {pixels, image, labels, none, scalar},
                        attrs(0), {image});
  EXPECT_THAT(d.types, ElementsAre(image));
}

TEST_F(IndexingRulesTest, EmbeddingDecompositions) {
  const TensorType weight{f32_, {11, 4}}, indices{i64_, {3, 5}}, rows{f32_, {3, 5, 4}};
  DecomposedTypes d = DecomposeIndexing(
      "aten::embedding", {weight, indices},
      {{"padding_idx", int64_t{-1}}, {"scale_grad_by_freq", false}, {"sparse", false}}, {rows});
  EXPECT_THAT(d.ops, ElementsAre("spmd::embedding"));
  EXPECT_THAT(d.types, ElementsAre(rows));
  auto backward = [&](bool scale) {
    return DecomposeIndexing(
        "aten::embedding_dense_backward", {rows, indices},
        {{"num_weights", int64_t{11}}, {"padding_idx", int64_t{2}}, {"scale_grad_by_freq", scale}},
        {weight});
  };
  EXPECT_THAT(backward(false).ops, ElementsAre("spmd::embedding_dweight"));
  EXPECT_THAT(backward(true).ops,
              ElementsAre("spmd::full", "spmd::embedding_dweight", "spmd::embedding",
                          "aten::div.Tensor", "spmd::embedding_dweight"));
  EXPECT_THAT(backward(true).types, ElementsAre(weight));
}

}  // namespace
}  // namespace spmd::rules
