// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
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

int64_t At(const Attributes& a, const char* name, size_t i) {
  const Ints list = a.GetIntsOr(name, {});
  if (list.empty()) return 0;
  return list.size() == 1 ? list[0] : list[i];
}

// Visits every (batch, output channel, output position, input channel in group, kernel position) of
// a convolution, with the input position that these meet in; it may lie outside.
struct Meeting {
  Dims output, input, weight;  // indices
};
void ForEachMeeting(const Dims& output, const Dims& weight, const Attributes& a,
                    const std::function<void(const Meeting&)>& visit) {
  const int64_t groups = a.GetIntOr("groups", 1), per_group = weight[0] / groups;
  Dims inner(weight.begin() + 1, weight.end());
  ForEachIndex(output, [&](const Dims& o) {
    ForEachIndex(inner, [&](const Dims& k) {
      Meeting m{o, {o[0], (o[1] / per_group) * weight[1] + k[0]}, {o[1]}};
      m.weight.insert(m.weight.end(), k.begin(), k.end());
      for (size_t d = 2; d < output.size(); ++d) {
        m.input.push_back(o[d] * At(a, "stride", d - 2) - At(a, "padding", d - 2) +
                          k[d - 1] * At(a, "dilation", d - 2));
      }
      visit(m);
    });
  });
}

bool Inside(const Dims& index, const Dims& dims) {
  for (size_t d = 0; d < dims.size(); ++d) {
    if (index[d] < 0 || index[d] >= dims[d]) return false;
  }
  return true;
}

std::vector<Array> Convolution(const std::vector<Array>& x, const Attributes& a) {
  Dims dims = {x[0].size(0), x[1].size(0)};
  for (int d = 2; d < x[0].rank(); ++d) {
    const int64_t span = (x[1].size(d) - 1) * At(a, "dilation", d - 2) + 1;
    dims.push_back((x[0].size(d) + 2 * At(a, "padding", d - 2) - span) / At(a, "stride", d - 2) +
                   1);
  }
  Array r(dims);
  if (!IsAbsent(x[2])) {
    ForEachIndex(dims, [&](const Dims& i) { r.at(i) = x[2].data[i[1]]; });
  }
  ForEachMeeting(dims, x[1].dims, a, [&](const Meeting& m) {
    if (Inside(m.input, x[0].dims)) r.at(m.output) += x[0].at(m.input) * x[1].at(m.weight);
  });
  return {r};
}

std::vector<Array> Transposed(const std::vector<Array>& x, const Attributes& a) {
  Dims dims = {x[0].size(0), x[1].size(1) * a.GetIntOr("groups", 1)};
  for (int d = 2; d < x[0].rank(); ++d) {
    dims.push_back((x[0].size(d) - 1) * At(a, "stride", d - 2) - 2 * At(a, "padding", d - 2) +
                   (x[1].size(d) - 1) * At(a, "dilation", d - 2) + 1 +
                   At(a, "output_padding", d - 2));
  }
  Array r(dims);
  if (!IsAbsent(x[2])) {
    ForEachIndex(dims, [&](const Dims& i) { r.at(i) = x[2].data[i[1]]; });
  }
  ForEachMeeting(x[0].dims, x[1].dims, a, [&](const Meeting& m) {
    if (Inside(m.input, dims)) r.at(m.input) += x[0].at(m.output) * x[1].at(m.weight);
  });
  return {r};
}

std::vector<Array> ConvDInput(const std::vector<Array>& x, const Attributes& a) {
  const Ints& size = a.GetInts("input_size");
  Array r(Dims(size.begin(), size.end()));
  ForEachMeeting(x[0].dims, x[1].dims, a, [&](const Meeting& m) {
    Dims to = m.input;
    for (size_t d = 2; d < to.size(); ++d) to[d] -= At(a, "crop_start", d - 2);
    if (Inside(to, r.dims)) r.at(to) += x[0].at(m.output) * x[1].at(m.weight);
  });
  return {r};
}

std::vector<Array> ConvDWeight(const std::vector<Array>& x, const Attributes& a) {
  const Ints& size = a.GetInts("weight_size");
  Array r(Dims(size.begin(), size.end()));
  ForEachMeeting(x[0].dims, r.dims, a, [&](const Meeting& m) {
    if (Inside(m.input, x[1].dims)) r.at(m.weight) += x[0].at(m.output) * x[1].at(m.input);
  });
  return {r};
}

// The windows of a pool over the last dims of `input`, as lists of positions inside.
struct Pool {
  Dims out;
  int leading;

  Pool(const Dims& input, const Attributes& a, int rank) {
    out = input;
    leading = static_cast<int>(input.size()) - rank;
    for (int i = 0; i < rank; ++i) {
      const int64_t k = At(a, "kernel_size", i), p = At(a, "padding", i), s = Stride(a, i);
      const int64_t room = input[leading + i] + 2 * p - k;
      int64_t n = room / s + 1;
      if (a.GetBoolOr("ceil_mode", false)) {
        n = (room + s - 1) / s + 1;
        if ((n - 1) * s >= input[leading + i] + p) --n;
      }
      out[leading + i] = n;
    }
  }
  static int64_t Stride(const Attributes& a, int i) {
    const int64_t s = At(a, "stride", i);
    return s == 0 ? At(a, "kernel_size", i) : s;
  }
};

// Visits each output and each input index that its window sees, with the divisor.
void ForEachAveraged(const Dims& input, const Attributes& a, int rank,
                     const std::function<void(const Dims&, const Dims&, double)>& visit) {
  const Pool pool(input, a, rank);
  ForEachIndex(pool.out, [&](const Dims& o) {
    Dims window, start;
    int64_t counted = 1, inside = 1;
    for (int i = 0; i < rank; ++i) {
      const int64_t n = input[pool.leading + i], p = At(a, "padding", i);
      int64_t begin = o[pool.leading + i] * Pool::Stride(a, i) - p;
      int64_t end = std::min(begin + At(a, "kernel_size", i), n + p);
      counted *= end - begin;
      begin = std::max<int64_t>(begin, 0);
      end = std::min(end, n);
      inside *= end - begin;
      start.push_back(begin);
      window.push_back(end - begin);
    }
    const double divisor = a.IsNone("divisor_override")
                               ? (a.GetBoolOr("count_include_pad", true) ? counted : inside)
                               : a.GetInt("divisor_override");
    ForEachIndex(window, [&](const Dims& k) {
      Dims at = o;
      for (int i = 0; i < rank; ++i) at[pool.leading + i] = start[i] + k[i];
      visit(o, at, divisor);
    });
  });
}

std::vector<Array> AvgPool2d(const std::vector<Array>& x, const Attributes& a) {
  Array r(Pool(x[0].dims, a, 2).out);
  ForEachAveraged(x[0].dims, a, 2, [&](const Dims& o, const Dims& i, double divisor) {
    r.at(o) += x[0].at(i) / divisor;
  });
  return {r};
}
std::vector<Array> AvgPool2dBackward(const std::vector<Array>& x, const Attributes& a) {
  Array r(x[1].dims);
  ForEachAveraged(x[1].dims, a, 2, [&](const Dims& o, const Dims& i, double divisor) {
    r.at(i) += x[0].at(o) / divisor;
  });
  return {r};
}

std::vector<Array> MaxPool(const std::vector<Array>& x, const Attributes& a) {
  const Ints& size = a.GetInts("output_size");
  const Ints& plane = a.GetInts("plane");
  const int rank = static_cast<int>(plane.size()), leading = x[0].rank() - rank;
  Dims dims = x[0].dims, kernel;
  std::copy(size.begin(), size.end(), dims.begin() + leading);
  for (int i = 0; i < rank; ++i) kernel.push_back(At(a, "kernel_size", i));
  Array out(dims, -std::numeric_limits<double>::infinity()), indices(dims);
  ForEachIndex(dims, [&](const Dims& o) {
    ForEachIndex(kernel, [&](const Dims& k) {
      Dims at = o;
      int64_t flat = 0;
      for (int i = 0; i < rank; ++i) {
        int64_t& p = at[leading + i];
        p = p * At(a, "stride", i) - At(a, "padding", i) + k[i] * At(a, "dilation", i);
        flat = flat * plane[i] + p + At(a, "offset", i);
      }
      if (!Inside(at, x[0].dims) || x[0].at(at) <= out.at(o)) return;
      out.at(o) = x[0].at(at);
      indices.at(o) = static_cast<double>(flat);
    });
  });
  return {out, indices};
}

std::vector<Array> MaxPoolDInput(const std::vector<Array>& x, const Attributes& a) {
  const Ints& size = a.GetInts("input_size");
  const Ints& plane = a.GetInts("plane");
  const int rank = static_cast<int>(plane.size()), leading = x[0].rank() - rank;
  Dims dims = x[0].dims;
  std::copy(size.begin(), size.end(), dims.begin() + leading);
  Array r(dims);
  ForEachIndex(x[0].dims, [&](const Dims& o) {
    int64_t flat = static_cast<int64_t>(x[1].at(o));
    Dims to = o;
    for (int i = rank - 1; i >= 0; --i) {
      to[leading + i] = flat % plane[i] - At(a, "offset", i);
      flat /= plane[i];
    }
    if (Inside(to, dims)) r.at(to) += x[0].at(o);
  });
  return {r};
}

std::vector<Array> Nearest2d(const std::vector<Array>& x, const Attributes& a) {
  const Ints& size = a.GetInts("output_size");
  Dims dims = x[0].dims;
  std::copy(size.begin(), size.end(), dims.end() - 2);
  Array r(dims);
  ForEachIndex(dims, [&](const Dims& o) {
    Dims i = o;
    for (int d = r.rank() - 2; d < r.rank(); ++d) i[d] = o[d] * x[0].size(d) / r.size(d);
    r.at(o) = x[0].at(i);
  });
  return {r};
}

Attributes ConvAttributes(std::mt19937& rng, int rank, int64_t groups) {
  std::uniform_int_distribution<int64_t> pick(0, 2);
  Ints stride, padding, dilation;
  for (int i = 0; i < rank; ++i) {
    stride.push_back(1 + pick(rng));
    padding.push_back(pick(rng));
    dilation.push_back(1 + pick(rng) / 2);
  }
  return {{"stride", stride}, {"padding", padding}, {"dilation", dilation}, {"groups", groups}};
}
Attributes With(Attributes a, const std::string& name, Attr value) {
  a.Set(name, std::move(value));
  return a;
}

Case Conv2d(Ints stride, Ints padding) {
  return {"aten::convolution",
          {Counting({2, 3, 9, 8}), Counting({4, 3, 3, 3}), Counting({4})},
          {{"stride", stride},
           {"padding", padding},
           {"dilation", Ints{1, 1}},
           {"transposed", false},
           {"output_padding", Ints{0, 0}},
           {"groups", int64_t{1}}}};
}

TEST(Convolution, FactorsAndWindows) {
  const Case c = Conv2d({1, 2}, {1, 1});
  EXPECT_EQ(FactorsOfCase(c, Convolution).ToString(),
            "a b d e, c b [f] [g], c -> a c d e  {a=2, b=3, c=4, d=9, e=4, f=3, g=3} "
            "window(o0,2 d: start(r0,0)-1 to start(r0,0)+size(r0,0)+1 of 9) "
            "window(o0,3 e: start(r0,0)*2-1 to (start(r0,0)+size(r0,0))*2 of 4)");
  EXPECT_THAT(Find(c.op)->added, ElementsAre(2));
  EXPECT_EQ(AttrToString(*LocalOfCase(c, Convolution, {3}).Find("padding")), "[0,1]");
  EXPECT_EQ(AttrToString(*LocalOfCase(c, Convolution, {0, 2}).Find("padding")), "[1,1]");
}

TEST(Convolution, PointwiseNeedsNoWindow) {
  Case c = Conv2d({1, 1}, {0, 0});
  c.operands[1] = Counting({4, 3, 1, 1});
  EXPECT_EQ(FactorText(c, Convolution), "a b d e, c b 1 1, c -> a c d e");
  EXPECT_TRUE(FactorsOfCase(c, Convolution).windows.empty());
}

TEST(Convolution, GroupsAreAFactor) {
  Case c = Conv2d({1, 1}, {1, 1});
  c.operands = {Counting({1, 4, 5, 5}), Counting({6, 2, 3, 3}), Absent()};
  c.attributes.Set("groups", int64_t{2});
  EXPECT_EQ(FactorText(c, Convolution), "1 (a b) d e, (a c) b [f] [g], () -> 1 (a c) d e");
  EXPECT_EQ(AttrToString(*LocalOfCase(c, Convolution, {0}).Find("groups")),
            "floordiv(size(o0,1),size(o1,1))");
}

TEST(Convolution, AllCutsOfRandomShapes) {
  std::mt19937 rng(11);
  std::uniform_int_distribution<int64_t> size(3, 9);
  for (int round = 0; round < 8; ++round) {
    const int rank = 1 + round % 2;
    const int64_t groups = round % 3 == 0 ? 2 : 1;
    Dims input = {2, 2 * groups}, weight = {2 * groups, 2};
    for (int i = 0; i < rank; ++i) {
      weight.push_back(1 + size(rng) % 3);
      input.push_back(2 + size(rng));
    }
    const Attributes lists = ConvAttributes(rng, rank, groups);
    const Array x = Random(rng, input, -4, 4), w = Random(rng, weight, -4, 4);
    const Attributes forward =
        With(With(lists, "transposed", false), "output_padding", Ints(rank, 0));
    const Case conv{"aten::convolution", {x, w, Counting({weight[0]})}, forward};
    const Array y = Convolution(conv.operands, forward)[0];
    if (y.data.empty()) continue;
    EXPECT_GT(CheckCuts(conv, Convolution), 10);
    ASSERT_FALSE(HasFailure()) << round << " " << lists.ToString();

    const Attributes dinput = With(With(lists, "input_size", Ints(input.begin(), input.end())),
                                   "crop_start", Ints(rank, 0));
    EXPECT_GT(CheckCuts({"spmd::conv_dinput", {y, w}, dinput}, ConvDInput), 10);
    ASSERT_FALSE(HasFailure()) << round << " " << lists.ToString();

    const Attributes dweight = With(lists, "weight_size", Ints(weight.begin(), weight.end()));
    EXPECT_GT(CheckCuts({"spmd::conv_dweight", {y, x}, dweight}, ConvDWeight), 10);
    ASSERT_FALSE(HasFailure()) << round << " " << lists.ToString();

    const Attributes backward =
        With(With(lists, "transposed", true), "output_padding", Ints(rank, 0));
    const Case transposed{
        "aten::convolution", {Random(rng, {2, weight[0], 4, 5}, -3, 3), w, Absent()}, backward};
    if (rank == 2) CheckCuts(transposed, Transposed);
    ASSERT_FALSE(HasFailure()) << round << " " << lists.ToString();
  }
}

TEST(ConvDInput, LocalAttributes) {
  const Case c{"spmd::conv_dinput",
               {Counting({2, 4, 5, 8}), Counting({4, 3, 3, 3})},
               {{"input_size", Ints{2, 3, 9, 8}},
                {"stride", Ints{2, 1}},
                {"padding", Ints{1, 1}},
                {"dilation", Ints{1, 1}},
                {"groups", int64_t{1}},
                {"crop_start", Ints{0, 0}}}};
  const Attributes local = LocalOfCase(c, ConvDInput, {3, 4});
  EXPECT_EQ(AttrToString(*local.Find("input_size")), "[2,3,size(r0,2),size(r0,3)]");
  EXPECT_EQ(AttrToString(*local.Find("padding")), "[0,0]");
  EXPECT_EQ(AttrToString(*local.Find("crop_start")),
            "[start(r0,2)+1-ceildiv(start(r0,2)-1,2)*2,2]");
}

TEST(ConvDInput, RegionsOfTheGradient) {
  std::mt19937 rng(12);
  const Case c{"spmd::conv_dinput",
               {Random(rng, {1, 2, 6}, -4, 4), Random(rng, {2, 3, 2}, -4, 4)},
               {{"input_size", Ints{1, 3, 9}},
                {"stride", Ints{3}},
                {"padding", Ints{1}},
                {"dilation", Ints{1}},
                {"groups", int64_t{1}},
                {"crop_start", Ints{4}}}};
  EXPECT_GT(CheckCuts(c, ConvDInput), 10);
}

TEST(Convolution, TransposedWithoutOverlapPasses) {
  const Case c{"aten::convolution",
               {Counting({2, 4, 5, 3}), Counting({4, 3, 2, 2}), Counting({3})},
               {{"stride", Ints{2, 2}},
                {"padding", Ints{0, 0}},
                {"dilation", Ints{1, 1}},
                {"transposed", true},
                {"output_padding", Ints{0, 0}},
                {"groups", int64_t{1}}}};
  EXPECT_EQ(FactorText(c, Transposed), "a c d f, c b [h] [i], b -> a b (d [e]) (f [g])");
  EXPECT_GT(CheckCuts(c, Transposed), 20);
}

TEST(AvgPool, Windows) {
  const Case c{"aten::avg_pool2d",
               {Counting({2, 3, 9, 8})},
               {{"kernel_size", Ints{3, 2}},
                {"stride", Ints{2, 1}},
                {"padding", Ints{1, 0}},
                {"ceil_mode", false},
                {"count_include_pad", true},
                {"divisor_override", NoneAttr{}}}};
  EXPECT_EQ(FactorsOfCase(c, AvgPool2d).windows.size(), 2u);
  EXPECT_GT(CheckCuts(c, AvgPool2d), 30);
}

TEST(AvgPool, DimensionsWithSeveralDivisorsAreWhole) {
  Case c{"aten::avg_pool2d",
         {Counting({1, 1, 9, 8})},
         {{"kernel_size", Ints{3, 2}},
          {"stride", Ints{}},
          {"padding", Ints{1, 0}},
          {"ceil_mode", false},
          {"count_include_pad", false},
          {"divisor_override", NoneAttr{}}}};
  EXPECT_EQ(FactorText(c, AvgPool2d), "1 1 [a] c -> 1 1 [b] c");
  CheckCuts(c, AvgPool2d);
  c.attributes.Set("divisor_override", int64_t{5});
  EXPECT_EQ(FactorText(c, AvgPool2d), "1 1 a b -> 1 1 a b");
  CheckCuts(c, AvgPool2d);
  c.attributes = {{"kernel_size", Ints{3, 3}}, {"stride", Ints{2, 2}},
                  {"padding", Ints{0}},        {"ceil_mode", true},
                  {"count_include_pad", true}, {"divisor_override", NoneAttr{}}};
  EXPECT_EQ(FactorText(c, AvgPool2d), "1 1 a [b] -> 1 1 a [c]");
  CheckCuts(c, AvgPool2d);
}

TEST(AvgPool, BackwardWithoutOverlapPasses) {
  const Case c{"aten::avg_pool2d_backward",
               {Counting({2, 3, 4, 3}), Counting({2, 3, 8, 8})},
               {{"kernel_size", Ints{2, 3}},
                {"stride", Ints{2, 2}},
                {"padding", Ints{0, 0}},
                {"ceil_mode", false},
                {"count_include_pad", true},
                {"divisor_override", NoneAttr{}}}};
  EXPECT_EQ(FactorText(c, AvgPool2dBackward), "a b c [e], a b (c [d]) [f] -> a b (c [d]) [f]");
  EXPECT_GT(CheckCuts(c, AvgPool2dBackward), 20);
}

TEST(MaxPool, IndicesAreGlobalOnTiles) {
  std::mt19937 rng(13);
  for (int round = 0; round < 10; ++round) {
    std::uniform_int_distribution<int64_t> pick(1, 3);
    Array x = Counting({2, 9, 7});
    std::shuffle(x.data.begin(), x.data.end(), rng);  // no two maxima are equal
    Attributes a;
    Ints kernel = {pick(rng), pick(rng)}, stride = {pick(rng), pick(rng)};
    const Ints padding = {kernel[0] / 2, kernel[1] / 2}, dilation = {1, 1 + pick(rng) / 3};
    Ints out;
    for (int i = 0; i < 2; ++i) {
      out.push_back(
          (x.size(1 + i) + 2 * padding[i] - (kernel[i] - 1) * dilation[i] - 1) / stride[i] + 1);
    }
    const Attributes lists = {{"kernel_size", kernel}, {"stride", stride},
                              {"padding", padding},    {"dilation", dilation},
                              {"offset", Ints{0, 0}},  {"plane", Ints{9, 7}}};
    const Case pool{"spmd::max_pool", {x}, With(lists, "output_size", out)};
    EXPECT_GT(CheckCuts(pool, MaxPool), 10);
    ASSERT_FALSE(HasFailure()) << lists.ToString();
    const Array indices = MaxPool(pool.operands, pool.attributes)[1];
    const Case backward{"spmd::max_pool_dinput",
                        {Counting(indices.dims), indices},
                        With(lists, "input_size", Ints{9, 7}),
                        {},
                        {DType::kF32, DType::kI64}};
    EXPECT_GT(CheckCuts(backward, MaxPoolDInput), 10);
    ASSERT_FALSE(HasFailure()) << lists.ToString();
  }
}

TEST(Upsample, NearestByAWholeNumberPasses) {
  Case c{"aten::upsample_nearest2d",
         {Counting({2, 3, 5, 4})},
         {{"output_size", Ints{10, 6}}, {"scales_h", NoneAttr{}}, {"scales_w", NoneAttr{}}}};
  EXPECT_EQ(FactorText(c, Nearest2d), "a b c [e] -> a b (c [d]) [f]");
  EXPECT_EQ(AttrToString(*LocalOfCase(c, Nearest2d, {2}).Find("output_size")), "[size(r0,2),6]");
  EXPECT_GT(CheckCuts(c, Nearest2d), 12);
  c.attributes.Set("scales_h", 1.9);
  EXPECT_EQ(FactorText(c, Nearest2d), "a b [c] [e] -> a b [d] [f]");
}

// The index along the resampled dimension that i stands for, or -1 for none.
int64_t Inside(int64_t i, const std::string& filter, int64_t n) {
  if (filter == "reflect") return i < 0 ? -i : i >= n ? 2 * (n - 1) - i : i;
  if (filter == "linear_aa") return i < 0 || i >= n ? -1 : i;
  return std::min(std::max<int64_t>(i, 0), n - 1);
}

// Calls `visit(output, input, weight)` for all that meet; any weights do, as long as they differ.
void ForEachTap(const Attributes& a, const std::function<void(int64_t, int64_t, double)>& visit) {
  const int64_t step = a.GetInt("step"), unit = a.GetInt("unit"), n = a.GetInt("num_in");
  for (int64_t o = 0; o < a.GetInt("num_out"); ++o) {
    const int64_t first = FloorDiv(o * step + a.GetInt("start"), unit);
    for (int64_t i = first; i < FloorDiv(o * step + a.GetInt("stop"), unit); ++i) {
      const int64_t in = Inside(i, a.GetStringOr("filter", ""), n);
      if (in >= 0) visit(o, in, static_cast<double>(1 + i - first));
    }
  }
}

// Fails where the window of x lacks the column.
void AddColumn(const Array& x, int64_t from, double weight, Array* to, int64_t column) {
  ASSERT_TRUE(from >= 0 && from < x.size(1)) << from;
  for (int64_t row = 0; row < x.size(0); ++row) {
    to->at({row, column}) += weight * x.at({row, from});
  }
}

// Along dimension 1. The shift by "from" is what the rule has to get right.
std::vector<Array> Resample(const std::vector<Array>& x, const Attributes& a) {
  Dims dims = x[0].dims;
  dims[1] = a.GetInt("size");
  Array r(dims);
  ForEachTap(a, [&](int64_t o, int64_t i, double weight) {
    if (o < a.GetInt("offset") || o >= a.GetInt("offset") + dims[1]) return;
    AddColumn(x[0], i - a.GetInt("from"), weight, &r, o - a.GetInt("offset"));
  });
  return {r};
}
std::vector<Array> ResampleDInput(const std::vector<Array>& x, const Attributes& a) {
  Dims dims = x[0].dims;
  dims[1] = a.GetInt("size");
  Array r(dims);
  ForEachTap(a, [&](int64_t o, int64_t i, double weight) {
    const int64_t held = i - a.GetInt("offset");
    if (held < 0 || held >= dims[1]) return;
    AddColumn(x[0], o - a.GetInt("from"), weight, &r, held);
  });
  return {r};
}

TEST(Resample, TilesOfAnyRatioAndBorder) {
  const auto attributes = [](const char* filter, int64_t step, int64_t start, int64_t stop,
                             int64_t unit, int64_t in, int64_t out) {
    return Attributes{{"dim", int64_t{1}},  {"filter", filter},    {"step", step}, {"start", start},
                      {"stop", stop},       {"unit", unit},        {"num_in", in}, {"num_out", out},
                      {"from", int64_t{0}}, {"offset", int64_t{0}}};
  };
  std::vector<Attributes> cases;
  for (int64_t before = 0; before < 4; ++before) {
    for (int64_t after = 0; after < 4; ++after) {
      for (const char* filter : {"nearest", "reflect"}) {
        cases.push_back(attributes(filter, 1, -before, 1 - before, 1, 8, 8 + before + after));
      }
    }
  }
  for (const auto& [p, q] : std::vector<std::pair<int64_t, int64_t>>{
           {2, 3}, {3, 2}, {8, 5}, {1, 2}, {2, 1}, {1, 1}, {8, 3}}) {
    const int64_t out = 8 * q / p, half = 2 * std::max(p, q);
    cases.push_back(attributes("nearest", 2 * p, 0, 2 * q, 2 * q, 8, out));
    cases.push_back(attributes("linear", 2 * p, p - q, p + 3 * q - 1, 2 * q, 8, out));
    cases.push_back(attributes("cubic", 2 * p, p - 3 * q, p + 5 * q, 2 * q, 8, out));
    cases.push_back(attributes("linear_aa", 2 * p, p + q - half, p + q + half, 2 * q, 8, out));
  }
  for (const Attributes& a : cases) {
    const int64_t out = a.GetInt("num_out");
    const Case forward{"spmd::resample", {Counting({2, 8})}, With(a, "size", out)};
    EXPECT_GT(CheckCuts(forward, Resample), 2);
    const Case backward{"spmd::resample_dinput", {Counting({2, out})}, With(a, "size", int64_t{8})};
    EXPECT_GT(CheckCuts(backward, ResampleDInput), 2);
    ASSERT_FALSE(HasFailure()) << a.ToString();
  }
}

// Calls `visit(column, image)` with the indices of all that meet; `image` may lie outside.
void ForEachPatch(const Dims& columns, const Attributes& a,
                  const std::function<void(const Dims&, const Dims&)>& visit) {
  const Ints kernel = a.GetInts("kernel_size");
  ForEachIndex(columns, [&](const Dims& c) {
    const int64_t point = c[0] % (kernel[0] * kernel[1]);
    const Dims k = {point / kernel[1], point % kernel[1]};
    Dims image = {c[0] / (kernel[0] * kernel[1])};
    for (int i = 0; i < 2; ++i) {
      image.push_back(c[1 + i] * At(a, "stride", i) - At(a, "padding", i) +
                      k[i] * At(a, "dilation", i));
    }
    visit(c, image);
  });
}
std::vector<Array> Im2Col(const std::vector<Array>& x, const Attributes& a) {
  const Ints kernel = a.GetInts("kernel_size"), size = a.GetInts("output_size");
  Array r(Dims{x[0].size(0) * kernel[0] * kernel[1], size[0], size[1]});
  ForEachPatch(r.dims, a, [&](const Dims& column, const Dims& image) {
    if (Inside(image, x[0].dims)) r.at(column) = x[0].at(image);
  });
  return {r};
}
std::vector<Array> Col2Im(const std::vector<Array>& x, const Attributes& a) {
  const Ints kernel = a.GetInts("kernel_size"), size = a.GetInts("size");
  Array r(Dims{x[0].size(0) / kernel[0] / kernel[1], size[0], size[1]});
  ForEachPatch(x[0].dims, a, [&](const Dims& column, Dims image) {
    for (int i = 0; i < 2; ++i) image[1 + i] -= At(a, "crop_start", i);
    if (Inside(image, r.dims)) r.at(image) += x[0].at(column);
  });
  return {r};
}

TEST(Columns, AllCutsOfRandomShapes) {
  std::mt19937 rng(3);
  std::uniform_int_distribution<int64_t> pick(1, 3);
  for (int round = 0; round < 40; ++round) {
    const Ints kernel = {pick(rng), pick(rng)}, stride = {pick(rng), pick(rng)},
               dilation = {pick(rng), pick(rng)}, padding = {pick(rng) - 1, pick(rng) - 1},
               size = {9, 8};
    const Attributes lists = {
        {"kernel_size", kernel}, {"dilation", dilation}, {"padding", padding}, {"stride", stride}};
    Ints out;
    for (int i = 0; i < 2; ++i) {
      out.push_back((size[i] + 2 * padding[i] - (kernel[i] - 1) * dilation[i] - 1) / stride[i] + 1);
    }
    const Case image{"spmd::im2col", {Counting({2, 9, 8})}, With(lists, "output_size", out)};
    EXPECT_GT(CheckCuts(image, Im2Col), 10);
    const Case columns{"spmd::col2im",
                       {Counting({2 * kernel[0] * kernel[1], out[0], out[1]})},
                       With(With(lists, "size", size), "crop_start", Ints{0, 0})};
    EXPECT_GT(CheckCuts(columns, Col2Im), 10);
    ASSERT_FALSE(HasFailure()) << lists.ToString();
  }
}

// The ops and result types of a decomposition. `types` may hold dims {-1} for an absent operand.
struct DecomposedTexts {
  std::vector<std::string> ops;
  std::vector<std::string> types;
};
DecomposedTexts DecomposeConvolution(const std::string& op, const std::vector<TensorType>& types,
                                     Attributes attributes,
                                     const std::vector<TensorType>& results) {
  ir::Graph from, to;
  ir::Graph::NodeSpec spec;
  spec.op = op;
  std::vector<ir::ValueId> operands;
  for (const TensorType& t : types) {
    spec.operands.push_back(from.AddInput(t));
    operands.push_back(to.AddInput(t));
  }
  spec.attributes = std::move(attributes);
  const ir::NodeId node = from.AddNode(spec, results);
  Builder builder(&to, 0, -1);
  auto values = Find(op)->decompose(builder, from, from.node(node), operands);
  EXPECT_TRUE(values.ok()) << values.status();
  DecomposedTexts d;
  for (const ir::Node& n : to.nodes()) d.ops.push_back(n.op);
  for (ir::ValueId v : *values) d.types.push_back(v == ir::kNoValue ? "_" : to.type(v).ToString());
  return d;
}

TEST(ConvolutionBackward, IsAnOpForEachGradientWanted) {
  const TensorType x{DType::kF32, {2, 3, 9, 8}}, w{DType::kF32, {4, 3, 3, 3}},
      y{DType::kF32, {2, 4, 5, 4}}, bias{DType::kF32, {4}};
  auto run = [&](std::vector<bool> mask) {
    return DecomposeConvolution("aten::convolution_backward", {y, x, w},
                                {{"bias_sizes", Ints{4}},
                                 {"stride", Ints{2, 2}},
                                 {"padding", Ints{1, 1}},
                                 {"dilation", Ints{1, 1}},
                                 {"transposed", false},
                                 {"output_padding", Ints{0, 0}},
                                 {"groups", int64_t{1}},
                                 {"output_mask", mask}},
                                {x, w, bias});
  };
  DecomposedTexts d = run({true, true, true});
  EXPECT_THAT(d.ops,
              ElementsAre("spmd::conv_dinput", "spmd::conv_dweight", "aten::sum.dim_IntList"));
  EXPECT_THAT(d.types, ElementsAre(x.ToString(), w.ToString(), bias.ToString()));
  d = run({false, true, false});
  EXPECT_THAT(d.ops, ElementsAre("spmd::conv_dweight"));
  EXPECT_THAT(d.types, ElementsAre("_", w.ToString(), "_"));
}

TEST(ConvolutionBackward, OfATransposedOneExchangesTheRoles) {
  const TensorType x{DType::kF32, {2, 4, 5, 4}}, w{DType::kF32, {4, 3, 3, 3}},
      y{DType::kF32, {2, 3, 10, 8}}, bias{DType::kF32, {3}};
  const DecomposedTexts d =
      DecomposeConvolution("aten::convolution_backward", {y, x, w},
                           {{"bias_sizes", Ints{3}},
                            {"stride", Ints{2, 2}},
                            {"padding", Ints{1, 1}},
                            {"dilation", Ints{1, 1}},
                            {"transposed", true},
                            {"output_padding", Ints{1, 1}},
                            {"groups", int64_t{1}},
                            {"output_mask", std::vector<bool>{true, true, true}}},
                           {x, w, bias});
  EXPECT_THAT(d.ops,
              ElementsAre("aten::convolution", "spmd::conv_dweight", "aten::sum.dim_IntList"));
  EXPECT_THAT(d.types, ElementsAre(x.ToString(), w.ToString(), bias.ToString()));
}

TEST(Pools, Decompositions) {
  const TensorType x{DType::kF32, {3, 9, 8}}, y{DType::kF32, {3, 5, 4}},
      indices{DType::kI64, {3, 5, 4}};
  const Attributes lists = {{"kernel_size", Ints{3, 3}},
                            {"stride", Ints{2, 2}},
                            {"padding", Ints{1, 1}},
                            {"dilation", Ints{1, 1}},
                            {"ceil_mode", false}};
  DecomposedTexts d =
      DecomposeConvolution("aten::max_pool2d_with_indices", {x}, lists, {y, indices});
  EXPECT_THAT(d.ops, ElementsAre("spmd::max_pool"));
  EXPECT_THAT(d.types, ElementsAre(y.ToString(), indices.ToString()));
  d = DecomposeConvolution("aten::max_pool2d_with_indices_backward", {y, x, indices}, lists, {x});
  EXPECT_THAT(d.ops, ElementsAre("spmd::max_pool_dinput"));
  EXPECT_THAT(d.types, ElementsAre(x.ToString()));
  d = DecomposeConvolution("aten::avg_pool2d_backward", {y, x},
                           {{"kernel_size", Ints{3, 3}},
                            {"stride", Ints{2, 2}},
                            {"padding", Ints{1, 1}},
                            {"ceil_mode", false},
                            {"count_include_pad", true},
                            {"divisor_override", NoneAttr{}}},
                           {x});
  EXPECT_THAT(d.ops, ElementsAre("aten::view", "spmd::full", "spmd::conv_dinput", "aten::view"));
  EXPECT_THAT(d.types, ElementsAre(x.ToString()));
}

}  // namespace
}  // namespace spmd::rules
