// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <numeric>
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

int64_t Wrap(int64_t d, int64_t rank) { return d < 0 ? d + rank : d; }

// A result whose element at each index is the operand's at `from(index)`, or 0 where that is
// nothing.
template <typename From>
std::vector<Array> Moved(const Array& x, Dims dims, From from) {
  Array r(std::move(dims));
  ForEachIndex(r.dims, [&](const Dims& i) {
    if (const std::optional<Dims> at = from(i)) r.at(i) = x.at(*at);
  });
  return {r};
}

std::vector<Array> View(const std::vector<Array>& x, const Attributes& a) {
  const Ints& size = a.GetInts("size");
  Array r(Dims(size.begin(), size.end()));
  r.data = x[0].data;
  return {r};
}

std::vector<Array> Permute(const std::vector<Array>& x, const Attributes& a) {
  const Ints& dims = a.GetInts("dims");
  Dims to;
  for (int64_t d : dims) to.push_back(x[0].dims[Wrap(d, x[0].rank())]);
  return Moved(x[0], to, [&](const Dims& i) {
    Dims from(i.size());
    for (size_t d = 0; d < i.size(); ++d) from[Wrap(dims[d], x[0].rank())] = i[d];
    return std::optional(from);
  });
}

std::vector<Array> Expand(const std::vector<Array>& x, const Attributes& a) {
  const Ints& size = a.GetInts("size");
  const size_t added = size.size() - x[0].dims.size();
  Dims to;
  for (size_t d = 0; d < size.size(); ++d) {
    to.push_back(size[d] == -1 ? x[0].dims[d - added] : size[d]);
  }
  return Moved(x[0], to, [&](const Dims& i) {
    Dims from(i.begin() + added, i.end());
    for (size_t d = 0; d < from.size(); ++d) from[d] = x[0].dims[d] == 1 ? 0 : from[d];
    return std::optional(from);
  });
}

std::vector<Array> Repeat(const std::vector<Array>& x, const Attributes& a) {
  const Ints& repeats = a.GetInts("repeats");
  const size_t added = repeats.size() - x[0].dims.size();
  Dims to;
  for (size_t d = 0; d < repeats.size(); ++d) {
    to.push_back(repeats[d] * (d < added ? 1 : x[0].dims[d - added]));
  }
  return Moved(x[0], to, [&](const Dims& i) {
    Dims from(i.begin() + added, i.end());
    for (size_t d = 0; d < from.size(); ++d) from[d] %= x[0].dims[d];
    return std::optional(from);
  });
}

std::vector<Array> Select(const std::vector<Array>& x, const Attributes& a) {
  const int64_t dim = Wrap(a.GetInt("dim"), x[0].rank());
  Dims to = x[0].dims;
  to.erase(to.begin() + dim);
  return Moved(x[0], to, [&](Dims i) {
    i.insert(i.begin() + dim, Wrap(a.GetInt("index"), x[0].dims[dim]));
    return std::optional(i);
  });
}

struct Range {
  int64_t dim, start, length, step;
  Range(const Attributes& a, const Dims& full) {
    dim = Wrap(a.GetInt("dim"), static_cast<int64_t>(full.size()));
    const int64_t n = full[dim];
    step = a.GetIntOr("step", 1);
    start = std::clamp<int64_t>(Wrap(a.GetIntOr("start", 0), n), 0, n);
    const int64_t end = std::clamp<int64_t>(Wrap(a.GetIntOr("end", n), n), start, n);
    length = (end - start + step - 1) / step;
  }
};

std::vector<Array> Slice(const std::vector<Array>& x, const Attributes& a) {
  const Range r(a, x[0].dims);
  Dims to = x[0].dims;
  to[r.dim] = r.length;
  return Moved(x[0], to, [&](Dims i) {
    i[r.dim] = r.start + i[r.dim] * r.step;
    return std::optional(i);
  });
}

Array Scattered(Array full, const Array& src, const Attributes& a) {
  const Range r(a, full.dims);
  EXPECT_EQ(src.dims[r.dim], r.length) << a.ToString() << DimsToString(full.dims);
  if (src.dims[r.dim] != r.length) return full;
  ForEachIndex(src.dims, [&](const Dims& i) {
    Dims to = i;
    to[r.dim] = r.start + i[r.dim] * r.step;
    full.at(to) = src.at(i);
  });
  return full;
}
std::vector<Array> SliceScatter(const std::vector<Array>& x, const Attributes& a) {
  return {Scattered(x[0], x[1], a)};
}
std::vector<Array> SliceBackward(const std::vector<Array>& x, const Attributes& a) {
  const Ints& sizes = a.GetInts("input_sizes");
  return {Scattered(Array(Dims(sizes.begin(), sizes.end())), x[0], a)};
}

std::vector<Array> SelectScatter(const std::vector<Array>& x, const Attributes& a) {
  Array r = x[0];
  const int64_t dim = Wrap(a.GetInt("dim"), r.rank());
  ForEachIndex(x[1].dims, [&](const Dims& i) {
    Dims to = i;
    to.insert(to.begin() + dim, Wrap(a.GetInt("index"), r.dims[dim]));
    r.at(to) = x[1].at(i);
  });
  return {r};
}
std::vector<Array> SelectBackward(const std::vector<Array>& x, const Attributes& a) {
  const Ints& sizes = a.GetInts("input_sizes");
  return SelectScatter({Array(Dims(sizes.begin(), sizes.end())), x[0]}, a);
}

std::vector<Array> Cat(const std::vector<Array>& x, const Attributes& a) {
  int rank = 1;
  for (const Array& t : x) rank = t.dims == Dims{0} ? rank : t.rank();
  const int64_t dim = Wrap(a.GetInt("dim"), rank);
  Dims to;
  for (const Array& t : x) {
    if (t.dims == Dims{0} && rank != 1) continue;
    if (to.empty()) {
      to = t.dims;
    } else {
      to[dim] += t.dims[dim];
    }
  }
  Array r(to);
  int64_t offset = 0;
  for (const Array& t : x) {
    if (t.dims == Dims{0} && rank != 1) continue;
    ForEachIndex(t.dims, [&](Dims i) {
      const double value = t.at(i);
      i[dim] += offset;
      r.at(i) = value;
    });
    offset += t.dims[dim];
  }
  return {r};
}

std::vector<Array> Stack(const std::vector<Array>& x, const Attributes& a) {
  const int64_t dim = Wrap(a.GetInt("dim"), x[0].rank() + 1);
  std::vector<Array> parts = x;
  for (Array& t : parts) t.dims.insert(t.dims.begin() + dim, 1);
  return Cat(parts, {{"dim", dim}});
}

std::vector<Array> Pad(const std::vector<Array>& x, const Attributes& a) {
  const Ints& pad = a.GetInts("pad");
  Dims to = x[0].dims, before(to.size(), 0);
  for (size_t i = 0; i < pad.size() / 2; ++i) {
    const size_t d = to.size() - 1 - i;
    before[d] = pad[2 * i];
    to[d] += pad[2 * i] + pad[2 * i + 1];
  }
  std::vector<Array> r = {Array(to, a.GetDoubleOr("value", 0))};
  ForEachIndex(to, [&](const Dims& i) {
    Dims from = i;
    for (size_t d = 0; d < i.size(); ++d) {
      from[d] -= before[d];
      if (from[d] < 0 || from[d] >= x[0].dims[d]) return;
    }
    r[0].at(i) = x[0].at(from);
  });
  return r;
}

std::vector<Array> Flip(const std::vector<Array>& x, const Attributes& a) {
  return Moved(x[0], x[0].dims, [&](Dims i) {
    for (int64_t d : a.GetInts("dims")) {
      d = Wrap(d, x[0].rank());
      i[d] = x[0].dims[d] - 1 - i[d];
    }
    return std::optional(i);
  });
}

std::vector<Array> Roll(const std::vector<Array>& x, const Attributes& a) {
  const Ints& shifts = a.GetInts("shifts");
  const Ints& dims = a.GetInts("dims");
  return Moved(x[0], x[0].dims, [&](Dims i) {
    for (size_t k = 0; k < dims.size(); ++k) {
      const int64_t d = Wrap(dims[k], x[0].rank()), n = x[0].dims[d];
      i[d] = ((i[d] - shifts[k]) % n + n) % n;
    }
    return std::optional(i);
  });
}

std::vector<Array> Reorder(const std::vector<Array>& x, const Attributes& a) {
  const Ints& index = a.GetInts("index");
  const int64_t dim = Wrap(a.GetInt("dim"), x[0].rank());
  return Moved(x[0], x[0].dims, [&](Dims i) -> std::optional<Dims> {
    if (!index.empty()) i[dim] = index[i[dim]];
    return i[dim] < 0 ? std::nullopt : std::optional(i);
  });
}

std::vector<Array> Unfold(const std::vector<Array>& x, const Attributes& a) {
  const int64_t dim = Wrap(a.GetInt("dimension"), x[0].rank());
  const int64_t size = a.GetInt("size"), step = a.GetInt("step");
  Dims to = x[0].dims;
  to[dim] = (to[dim] - size) / step + 1;
  to.push_back(size);
  return Moved(x[0], to, [&](Dims i) {
    i[dim] = i[dim] * step + i.back();
    i.pop_back();
    return std::optional(i);
  });
}

std::vector<Array> Triu(const std::vector<Array>& x, const Attributes& a) {
  return Moved(x[0], x[0].dims, [&](const Dims& i) {
    const size_t n = i.size();
    return i[n - 1] - i[n - 2] >= a.GetIntOr("diagonal", 0) ? std::optional(i) : std::nullopt;
  });
}

std::vector<Array> Diagonal(const std::vector<Array>& x, const Attributes& a) {
  const int64_t d1 = Wrap(a.GetInt("dim1"), x[0].rank()), d2 = Wrap(a.GetInt("dim2"), x[0].rank());
  const int64_t offset = a.GetInt("offset");
  Dims to;
  for (int64_t d = 0; d < x[0].rank(); ++d) {
    if (d != d1 && d != d2) to.push_back(x[0].dims[d]);
  }
  to.push_back(std::min(x[0].dims[d1] + std::min<int64_t>(offset, 0),
                        x[0].dims[d2] - std::max<int64_t>(offset, 0)));
  return Moved(x[0], to, [&](const Dims& i) {
    Dims from;
    size_t next = 0;
    for (int64_t d = 0; d < x[0].rank(); ++d) {
      from.push_back(d == d1   ? i.back() - std::min<int64_t>(offset, 0)
                     : d == d2 ? i.back() + std::max<int64_t>(offset, 0)
                               : i[next++]);
    }
    return std::optional(from);
  });
}

std::vector<Array> SqueezeDims(const std::vector<Array>& x, const Attributes& a) {
  Array r = x[0];
  Ints dims = a.GetInts("dim");
  for (int64_t& d : dims) d = Wrap(d, x[0].rank());
  std::sort(dims.rbegin(), dims.rend());
  for (int64_t d : dims) {
    if (r.dims[d] == 1) r.dims.erase(r.dims.begin() + d);
  }
  return {r};
}

Case ViewCase(Dims from, Ints to) {
  return {"aten::view", {Counting(std::move(from))}, {{"size", std::move(to)}}};
}
std::string ViewText(Dims from, Ints to) { return FactorText(ViewCase(from, to), View); }

TEST(ReshapeFactors, SplitsAndMerges) {
  EXPECT_EQ(ViewText({4, 6}, {24}), "a b -> (a b)");
  EXPECT_EQ(ViewText({24}, {4, 6}), "(a b) -> a b");
  EXPECT_EQ(ViewText({4, 6}, {8, 3}), "a (b c) -> (a b) c");
  EXPECT_EQ(ViewText({2, 3, 4}, {2, 3, 4}), "a b c -> a b c");
  EXPECT_EQ(ViewText({8, 16, 32}, {128, 4, 8}), "a b (c d) -> (a b) c d");
  EXPECT_EQ(ViewText({2, 3, 4, 5}, {6, 20}), "a b c d -> (a b) (c d)");
}

TEST(ReshapeFactors, SizeOneHasNoFactor) {
  EXPECT_EQ(ViewText({4, 1, 6}, {1, 4, 6, 1}), "a 1 b -> 1 a b 1");
  EXPECT_EQ(ViewText({1, 1}, {}), "1 1 -> ()");
  EXPECT_EQ(ViewText({}, {1}), "() -> 1");
}

TEST(ReshapeFactors, WhatDoesNotDivideIsWhole) {
  EXPECT_EQ(ViewText({6, 4}, {4, 6}), "(a [b]) [e] -> (a [c]) [d]");
  EXPECT_EQ(ViewText({3, 4}, {4, 3}), "[a] [c] -> [b] [d]");
  EXPECT_EQ(ViewText({5, 3, 4, 7}, {5, 2, 6, 7}), "a [b] [e] f -> a [c] [d] f");
}

TEST(ReshapeFactors, EmptyTensorsKeepLeadingDims) {
  EXPECT_EQ(ViewText({3, 0, 4}, {3, 0}), "a b 1 -> a b");
  EXPECT_EQ(ViewText({0, 4}, {2, 0}), "1 1 -> 1 1");
}

TEST(ReshapeFactors, LocalSizesFollowTheTile) {
  const Attributes local = LocalOfCase(ViewCase({8, 16, 32}, {128, 4, 8}), View, {0});
  EXPECT_EQ(local.ToString(), "size=[size(r0,0),4,8]");
}

TEST(ReshapeFactors, RandomShapes) {
  std::mt19937 rng(1);
  std::uniform_int_distribution<int> pick(0, 3);
  int cuts = 0;
  for (int round = 0; round < 150; ++round) {
    // Both sides merge the same primes, in random runs.
    Ints primes;
    for (int k = pick(rng) + 1; k > 0; --k) primes.push_back(Ints{2, 3, 2, 5}[pick(rng)]);
    auto merged = [&] {
      Ints dims;
      for (int64_t p : primes) {
        if (dims.empty() || pick(rng) < 2) {
          dims.push_back(p);
        } else {
          dims.back() *= p;
        }
      }
      if (pick(rng) == 0) dims.insert(dims.begin() + dims.size() / 2, 1);
      return dims;
    };
    const Ints from = merged();
    Ints to = merged();
    if (pick(rng) == 0) std::reverse(to.begin(), to.end());
    cuts += CheckCuts(ViewCase(Dims(from.begin(), from.end()), to), View);
    ASSERT_FALSE(HasFailure()) << round;
  }
  EXPECT_GT(cuts, 500);
}

TEST(Bitcast, PartsOfAnElementStayTogether) {
  const OpCall unused;
  TensorType f32{DType::kF32, {6, 4}}, u8{DType::kU8, {6, 16}};
  Attributes attrs = {{"dtype", DType::kU8}};
  OpCall call{"aten::view.dtype", {&f32}, {}, &attrs, {u8}};
  EXPECT_EQ(FactorsOf(*Find(call.op), call)->ToString(), "a b -> a (b [c])  {a=6, b=4, c=4}");
  EXPECT_THAT(*InferTypes(*Find(call.op), call), ElementsAre(u8));
}

TEST(Axes, FactorTexts) {
  EXPECT_EQ(
      FactorText({"aten::permute", {Counting({2, 3, 4})}, {{"dims", Ints{2, 0, -2}}}}, Permute),
      "b c a -> a b c");
  EXPECT_EQ(FactorText({"aten::expand", {Counting({3, 1})}, {{"size", Ints{5, -1, 4}}}}, Expand),
            "b 1 -> a b c");
  EXPECT_EQ(FactorText({"aten::repeat", {Counting({3, 2})}, {{"repeats", Ints{2, 4, 1}}}}, Repeat),
            "c d -> a (b c) d");
  EXPECT_EQ(
      FactorText(
          {"aten::select.int", {Counting({3, 4, 5})}, {{"dim", int64_t{1}}, {"index", int64_t{2}}}},
          Select),
      "a [c] b -> a b");
  EXPECT_EQ(FactorText({"aten::diagonal",
                        {Counting({3, 4, 5})},
                        {{"offset", int64_t{1}}, {"dim1", int64_t{0}}, {"dim2", int64_t{2}}}},
                       Diagonal),
            "[c] a [d] -> a [b]");
}

TEST(Axes, AllCuts) {
  CheckCuts({"aten::permute", {Counting({5, 3, 4})}, {{"dims", Ints{2, 0, 1}}}}, Permute);
  CheckCuts({"aten::expand", {Counting({3, 1})}, {{"size", Ints{5, -1, 4}}}}, Expand);
  EXPECT_GT(CheckCuts({"aten::repeat", {Counting({6, 2})}, {{"repeats", Ints{2, 4, 1}}}}, Repeat),
            10);
  CheckCuts(
      {"aten::select.int", {Counting({3, 4, 5})}, {{"dim", int64_t{1}}, {"index", int64_t{-1}}}},
      Select);
  CheckCuts({"aten::select_backward",
             {Counting({3, 5})},
             {{"input_sizes", Ints{3, 4, 5}}, {"dim", int64_t{1}}, {"index", int64_t{2}}}},
            SelectBackward);
  CheckCuts({"aten::select_scatter",
             {Counting({3, 4, 5}), Counting({3, 5})},
             {{"dim", int64_t{1}}, {"index", int64_t{2}}}},
            SelectScatter);
  CheckCuts({"aten::diagonal",
             {Counting({3, 4, 5})},
             {{"offset", int64_t{-1}}, {"dim1", int64_t{0}}, {"dim2", int64_t{2}}}},
            Diagonal);
  CheckCuts({"aten::stack", {Counting({3, 4}), Counting({3, 4})}, {{"dim", int64_t{-1}}}, {{0, 2}}},
            Stack);
}

TEST(Axes, SqueezeSparesTilesOfSizeOne) {
  const Case c{"aten::squeeze.dims", {Counting({4, 1, 3})}, {{"dim", Ints{0, 1}}}};
  EXPECT_EQ(LocalOfCase(c, SqueezeDims, {0}).ToString(), "dim=[1]");
  EXPECT_GT(CheckCuts(c, SqueezeDims), 0);
}

Case SliceCase(Dims dims, int64_t dim, int64_t start, int64_t end, int64_t step) {
  return {"aten::slice.Tensor",
          {Counting(std::move(dims))},
          {{"dim", dim}, {"start", start}, {"end", end}, {"step", step}}};
}

TEST(Slice, IsAWindow) {
  EXPECT_EQ(
      FactorsOfCase(SliceCase({10, 4}, 0, 2, 8, 1), Slice).ToString(),
      "a b -> a b  {a=6, b=4} window(o0,0 a: start(r0,0)+2 to start(r0,0)+size(r0,0)+2 of 6)");
  EXPECT_EQ(LocalOfCase(SliceCase({10, 4}, 0, 2, 8, 1), Slice, {0}).ToString(),
            "dim=0, start=0, end=size(r0,0), step=1");
  EXPECT_EQ(LocalOfCase(SliceCase({10, 4}, 0, 1, 8, 3), Slice, {0}).ToString(),
            "dim=0, start=0, end=size(r0,0)*3-2, step=3");
}

TEST(Slice, OfEverythingPasses) {
  const Case c = SliceCase({10, 4}, 0, 0, INT64_MAX, 1);
  EXPECT_EQ(FactorsOfCase(c, Slice).ToString(), "a b -> a b  {a=10, b=4}");
  EXPECT_EQ(LocalOfCase(c, Slice, {0}).ToString(), "dim=0, start=0, end=size(r0,0), step=1");
}

TEST(Slice, AllCutsOfRandomRanges) {
  std::mt19937 rng(2);
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  for (int round = 0; round < 60; ++round) {
    const int64_t n = pick(1, 12);
    const Dims dims = {3, n};
    const Attributes attrs = {{"dim", int64_t{1}},
                              {"start", pick(-n, n)},
                              {"end", pick(-n, n + 1)},
                              {"step", pick(1, 4)}};
    const Case slice{"aten::slice.Tensor", {Counting(dims)}, attrs};
    CheckCuts(slice, Slice);
    const Array part = Slice(slice.operands, attrs)[0];
    CheckCuts({"aten::slice_scatter", {Array(dims, -1), Counting(part.dims)}, attrs}, SliceScatter);
    Attributes backward = {{"input_sizes", Ints(dims.begin(), dims.end())}};
    for (const auto& [name, value] : attrs) backward.Set(name, value);
    CheckCuts({"aten::slice_backward", {Counting(part.dims)}, backward}, SliceBackward);
    ASSERT_FALSE(HasFailure()) << round << " " << attrs.ToString();
  }
}

TEST(SliceBackward, LocalAttributesSpeakOfTheTile) {
  const Case c{"aten::slice_backward",
               {Counting({6})},
               {{"input_sizes", Ints{10}},
                {"dim", int64_t{0}},
                {"start", int64_t{2}},
                {"end", int64_t{8}},
                {"step", int64_t{1}}}};
  const Attributes local = LocalOfCase(c, SliceBackward, {0});
  EXPECT_EQ(AttrToString(*local.Find("input_sizes")), "[size(r0,0)]");
  EXPECT_EQ(AttrToString(*local.Find("start")),
            "min(max(min(max(start(r0,0)-2,0),6)+2-start(r0,0),0),size(r0,0))");
}

TEST(SliceStart, DimensionIsWhole) {
  const Case c{"spmd::slice_start",
               {Counting({10, 4})},
               {{"dim", int64_t{0}}, {"start", int64_t{2}}, {"length", int64_t{3}}}};
  auto narrow = [](const std::vector<Array>& x, const Attributes& a) {
    const int64_t start = a.GetInt("start");
    return Slice(x, {{"dim", a.GetInt("dim")},
                     {"start", start},
                     {"end", start + a.GetInt("length")},
                     {"step", int64_t{1}}});
  };
  EXPECT_EQ(FactorText(c, narrow), "[a] c -> [b] c");
  CheckCuts(c, narrow);
}

// What a part of a dimension, from index "first" on, has of a slice.
std::vector<Array> SlicePart(const std::vector<Array>& x, const Attributes& a) {
  const int64_t dim = a.GetInt("dim"), shift = a.GetInt("start") - a.GetInt("first");
  Dims to = x[0].dims;
  to[dim] = a.GetInt("length");
  const int64_t held = x[0].dims[dim];
  return Moved(x[0], to, [&](Dims i) {
    i[dim] += shift;
    return i[dim] >= 0 && i[dim] < held ? std::optional(i) : std::nullopt;
  });
}
std::vector<Array> SlicePutPart(const std::vector<Array>& x, const Attributes& a) {
  const int64_t dim = a.GetInt("dim"), shift = a.GetInt("start") - a.GetInt("first");
  Array full = x[0];
  ForEachIndex(x[1].dims, [&](const Dims& i) {
    Dims to = i;
    to[dim] += shift;
    if (to[dim] >= 0 && to[dim] < full.dims[dim]) full.at(to) = x[1].at(i);
  });
  return {full};
}

Attributes PartOfTen(int64_t start) {
  return {{"dim", int64_t{0}}, {"start", start}, {"first", int64_t{0}}, {"size", int64_t{10}}};
}

TEST(SlicePart, EachDeviceGivesWhatItHas) {
  for (int64_t start = 0; start <= 7; ++start) {
    Attributes attributes = PartOfTen(start);
    attributes.Set("length", int64_t{3});
    const Case c{"spmd::slice_part", {Counting({10, 4})}, attributes};
    EXPECT_EQ(FactorText(c, SlicePart), "a c -> [b] c");
    EXPECT_GT(CheckCuts(c, SlicePart), 4);
  }
}

TEST(SlicePutPart, EachDeviceWritesWhatItHas) {
  for (int64_t start = 0; start <= 7; ++start) {
    const Case c{"spmd::slice_put_part", {Counting({10, 4}), Counting({3, 4})}, PartOfTen(start)};
    EXPECT_EQ(FactorText(c, SlicePutPart), "a c, [b] c -> a c");
    EXPECT_GT(CheckCuts(c, SlicePutPart), 4);
  }
}

// A part of a dimension, and the indices before it or behind it, from which a roll takes some.
std::vector<Array> RollStart(const std::vector<Array>& x, const Attributes& a) {
  const int64_t dim = a.GetInt("dim"), size = a.GetInt("size"), length = x[0].dims[dim];
  const int64_t shift = a.GetInt("shift");
  Array out = x[0];
  ForEachIndex(out.dims, [&](const Dims& i) {
    Dims from = i;
    from[dim] -= shift;
    const bool within = length == size || (from[dim] >= 0 && from[dim] < length);
    from[dim] += within          ? (from[dim] < 0        ? length
                                    : from[dim] < length ? 0
                                                         : -length)
                 : from[dim] < 0 ? x[1].dims[dim]
                                 : -length;
    out.at(i) = x[within ? 0 : 1].at(from);
  });
  return {out};
}

TEST(RollStart, ShardsAreBlocksAndReadTheBlockBeside) {
  for (const int64_t reach : {2, -2, 1, -1, 4, -4}) {
    for (const int64_t shift : {int64_t{0}, reach / 2, reach}) {
      const Case c{
          "spmd::roll_start",
          {Counting({16, 2}), Counting({16, 2})},
          {{"dim", int64_t{0}}, {"shift", shift}, {"reach", reach}, {"size", int64_t{16}}}};
      EXPECT_GT(CheckCuts(c, RollStart), 2);
    }
  }
}

TEST(Cat, OperandsAreWindows) {
  const Case c{"aten::cat", {Counting({4, 3}), Counting({6, 3})}, {{"dim", int64_t{0}}}, {{0, 2}}};
  EXPECT_EQ(FactorText(c, Cat), "a b, a b -> a b");
  const OpFactors f = FactorsOfCase(c, Cat);
  ASSERT_EQ(f.windows.size(), 2u);
  EXPECT_EQ(f.windows[1].begin.ToString(), "min(max(start(r0,0)-4,0),6)");
  EXPECT_GT(CheckCuts(c, Cat), 8);
}

TEST(Cat, LegacyEmptyOperandsHoldNothing) {
  const Case c{"aten::cat", {Counting({0}), Counting({6, 3})}, {{"dim", int64_t{1}}}, {{0, 2}}};
  EXPECT_EQ(FactorText(c, Cat), "1, a b -> a b");
  CheckCuts(c, Cat);
}

TEST(Cat, AllCutsOfRandomSizes) {
  std::mt19937 rng(3);
  std::uniform_int_distribution<int64_t> size(0, 5);
  for (int round = 0; round < 40; ++round) {
    std::vector<Array> operands;
    const int n = 1 + static_cast<int>(size(rng)) % 4;
    for (int k = 0; k < n; ++k) operands.push_back(Counting({2, size(rng), 3}));
    CheckCuts({"aten::cat", operands, {{"dim", int64_t{-2}}}, {{0, n}}}, Cat);
    ASSERT_FALSE(HasFailure()) << round;
  }
}

TEST(Pad, FillsOutside) {
  const Case c{
      "aten::constant_pad_nd", {Counting({5, 4})}, {{"pad", Ints{1, 2, 0, -1}}, {"value", 7.0}}};
  EXPECT_EQ(FactorsOfCase(c, Pad).ToString(),
            "a b -> a b  {a=4, b=7} window(o0,0 a: start(r0,0) to start(r0,0)+size(r0,0) of 4 fill "
            "7) window(o0,1 b: start(r0,0)-1 to start(r0,0)+size(r0,0)-1 of 7 fill 7)");
  EXPECT_EQ(LocalOfCase(c, Pad, {1}).ToString(), "pad=[0,0,0,-1], value=7.0");
  EXPECT_GT(CheckCuts(c, Pad), 10);
}

TEST(Pad, WithAValueKnownAtRunTimeIsWhole) {
  TensorType in{DType::kF32, {4}}, out{DType::kF32, {6}};
  Attributes attrs = {{"pad", Ints{1, 1}}, {"value", RuntimeScalar{0}}};
  OpCall call{"aten::constant_pad_nd", {&in}, {}, &attrs, {out}};
  EXPECT_EQ(FactorsOf(*Find(call.op), call)->ToString(), "[b] -> [a]  {a=6, b=4}");
}

TEST(Flip, ReadsFromTheOtherEnd) {
  const Case c{"aten::flip", {Counting({7, 3})}, {{"dims", Ints{0}}}};
  EXPECT_EQ(FactorsOfCase(c, Flip).windows[0].begin.ToString(), "7-(start(r0,0)+size(r0,0))");
  EXPECT_GT(CheckCuts(c, Flip), 8);
}

TEST(Roll, ReadsInAnotherOrder) {
  const Case c{
      "aten::roll", {Counting({7, 4})}, {{"shifts", Ints{2, -1, 5}}, {"dims", Ints{0, -1, 1}}}};
  EXPECT_EQ(FactorText(c, Roll), "a b -> a b");
  EXPECT_EQ(FactorsOfCase(c, Roll).windows[0].order, (std::vector<Interval>{{5, 7}, {0, 5}}));
  EXPECT_GT(CheckCuts(c, Roll), 12);
}

TEST(Reorder, ReadsInAnotherOrder) {
  const Case c{"spmd::reorder",
               {Counting({2, 6})},
               {{"dim", int64_t{-1}}, {"index", Ints{-1, 0, 1, 5, -1, -1}}}};
  EXPECT_EQ(FactorsOfCase(c, Reorder).windows[0].order,
            (std::vector<Interval>{{-1, 0}, {0, 2}, {5, 6}, {-1, 0}, {-1, 0}}));
  EXPECT_GT(CheckCuts(c, Reorder), 8);
}

TEST(Unfold, OverlappingWindows) {
  const Case c{"aten::unfold",
               {Counting({2, 11})},
               {{"dimension", int64_t{1}}, {"size", int64_t{4}}, {"step", int64_t{2}}}};
  EXPECT_EQ(FactorText(c, Unfold), "a b -> a b [c]");
  EXPECT_GT(CheckCuts(c, Unfold), 8);
}

TEST(Triu, DiagonalMovesWithTheTile) {
  const Case c{"aten::triu", {Counting({2, 6, 7})}, {{"diagonal", int64_t{1}}}};
  EXPECT_EQ(LocalOfCase(c, Triu, {1, 2}).ToString(), "diagonal=start(r0,1)+1-start(r0,2)");
  EXPECT_GT(CheckCuts(c, Triu), 10);
}

// The ops that a decomposition creates, in order.
std::vector<std::string> DecomposedOps(const std::string& op, const std::vector<TensorType>& types,
                                       Attributes attributes, const TensorType& result,
                                       std::vector<ir::OperandGroup> groups = {}) {
  ir::Graph from, to;
  ir::Graph::NodeSpec spec;
  spec.op = op;
  std::vector<ir::ValueId> operands;
  for (const TensorType& t : types) {
    spec.operands.push_back(from.AddInput(t));
    operands.push_back(to.AddInput(t));
  }
  spec.groups.assign(groups.begin(), groups.end());
  spec.attributes = std::move(attributes);
  const ir::NodeId node = from.AddNode(spec, {result});
  Builder builder(&to, 0, -1);
  auto values = Find(op)->decompose(builder, from, from.node(node), operands);
  EXPECT_TRUE(values.ok()) << values.status();
  EXPECT_EQ(to.type((*values)[0]), result);
  std::vector<std::string> ops;
  for (const ir::Node& n : to.nodes()) ops.push_back(n.op);
  return ops;
}

TEST(Decompositions, OfMoves) {
  const TensorType x{DType::kF32, {6, 4}};
  EXPECT_THAT(DecomposedOps("aten::roll", {x}, {{"shifts", Ints{5}}, {"dims", Ints{}}}, x),
              ElementsAre("aten::view", "aten::roll", "aten::view"));
  EXPECT_THAT(DecomposedOps("aten::stack", {x, x}, {{"dim", int64_t{-1}}}, {DType::kF32, {6, 4, 2}},
                            {{0, 2}}),
              ElementsAre("aten::unsqueeze", "aten::unsqueeze", "aten::cat"));
  EXPECT_THAT(
      DecomposedOps("aten::select_backward", {{DType::kF32, {4}}},
                    {{"input_sizes", Ints{6, 4}}, {"dim", int64_t{0}}, {"index", int64_t{-1}}}, x),
      ElementsAre("aten::unsqueeze", "aten::slice_backward"));
  EXPECT_THAT(DecomposedOps("aten::squeeze", {{DType::kF32, {6, 1, 4}}}, {}, x),
              ElementsAre("aten::squeeze.dims"));
}

}  // namespace
}  // namespace spmd::rules
