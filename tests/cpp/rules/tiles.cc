// SPDX-License-Identifier: Apache-2.0
#include "tests/cpp/rules/tiles.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "csrc/ir/evaluate.h"
#include "csrc/rules/registry.h"
#include "csrc/util/box.h"
#include "gtest/gtest.h"

namespace spmd::rules {
namespace {

int64_t Linear(const Dims& dims, const Dims& index) {
  int64_t at = 0;
  for (size_t d = 0; d < dims.size(); ++d) at = at * dims[d] + index[d];
  return at;
}

// `a` within `box`, `fill` outside of it.
Array Crop(const Array& a, const Box& box, double fill) {
  Array tile(BoxDims(box), fill);
  ForEachIndex(tile.dims, [&](const Dims& index) {
    Dims from = index;
    for (size_t d = 0; d < from.size(); ++d) {
      from[d] += box[d].begin;
      if (from[d] < 0 || from[d] >= a.dims[d]) return;
    }
    tile.at(index) = a.at(from);
  });
  return tile;
}

// `a` with its indices along `dim` in that order.
Array InOrder(const Array& a, int dim, const std::vector<Interval>& order, double fill) {
  std::vector<int64_t> index;
  for (const Interval& part : order) {
    for (int64_t i = part.begin; i < part.end; ++i) index.push_back(i);
  }
  Array result(a.dims, fill);
  ForEachIndex(result.dims, [&](const Dims& at) {
    Dims from = at;
    from[dim] = index[at[dim]];
    if (from[dim] >= 0 && from[dim] < a.dims[dim]) result.at(at) = a.at(from);
  });
  return result;
}

struct FactorCutting {
  int64_t shards = 1;
  int64_t chunk = 0;
  Interval Shard(int64_t size, int64_t i) const {
    return {std::min(i * chunk, size), i + 1 == shards ? size : std::min((i + 1) * chunk, size)};
  }
};

class Run {
 public:
  Run(const Case& c, const Kernel& kernel) : case_(c), kernel_(kernel) {
    rule_ = Find(c.op);
    EXPECT_NE(rule_, nullptr) << c.op;
    expected_ = kernel(c.operands, c.attributes);
    for (size_t k = 0; k < c.operands.size(); ++k) {
      const DType dtype = k < c.dtypes.size() ? c.dtypes[k] : DType::kF32;
      types_.push_back({dtype, c.operands[k].dims});
    }
    call_.op = c.op;
    for (size_t k = 0; k < c.operands.size(); ++k) {
      call_.operands.push_back(IsAbsent(c.operands[k]) ? nullptr : &types_[k]);
    }
    call_.groups.assign(c.groups.begin(), c.groups.end());
    call_.attributes = &c.attributes;
    for (const Array& r : expected_) call_.results.push_back({DType::kF32, r.dims});
    if (rule_->types != nullptr) {
      OpCall untyped = call_;
      untyped.results.clear();
      absl::StatusOr<std::vector<TensorType>> types = InferTypes(*rule_, untyped);
      EXPECT_TRUE(types.ok()) << call_.ToString() << ": " << types.status();
      if (types.ok()) {
        EXPECT_EQ(types->size(), expected_.size()) << call_.ToString();
        for (size_t r = 0; r < types->size(); ++r) {
          EXPECT_EQ((*types)[r].dims, expected_[r].dims) << call_.ToString();
        }
      }
    }
    absl::StatusOr<OpFactors> factors = FactorsOf(*rule_, call_);
    EXPECT_TRUE(factors.ok()) << call_.ToString() << ": " << factors.status();
    if (factors.ok()) factors_ = *std::move(factors);
  }

  const OpFactors& factors() const { return factors_; }

  Attributes Local(const std::vector<int>& cut) const {
    CutFactors flags(factors_.factors.size(), false);
    for (int f : cut) flags[f] = true;
    return rule_->local == nullptr ? case_.attributes : rule_->local(call_, factors_, flags);
  }

  // Cuts factor f, and completely all factors that are major to it in some dimension.
  int CheckFactor(int f) {
    int checked = 0;
    if (factors_.factors[f].whole || factors_.factors[f].size == 0) return 0;
    for (int64_t shards = 2; shards <= 5; ++shards) {
      for (int64_t extra = -1; extra < 2; ++extra) {
        cutting_.assign(factors_.factors.size(), {});
        if (!CutMajors(f)) return checked;
        const int64_t n = factors_.factors[f].size;
        const int64_t chunk = CeilDiv(n, shards) + extra;
        const bool minor = std::any_of(cutting_.begin(), cutting_.end(),
                                       [](const FactorCutting& c) { return c.shards > 1; });
        if (chunk < 1 || chunk * (shards + 1) < n) continue;
        if (minor && chunk * shards != n) continue;
        if (chunk % factors_.factors[f].granularity != 0) continue;
        cutting_[f] = {shards, chunk};
        CheckCutting();
        ++checked;
        if (testing::Test::HasFailure()) return checked;
      }
    }
    return checked;
  }

  // Cuts two factors at once, each in two.
  int CheckPair(int f, int g) {
    for (int h : {f, g}) {
      const Factor& factor = factors_.factors[h];
      if (factor.whole || factor.size == 0) return 0;
    }
    cutting_.assign(factors_.factors.size(), {});
    if (!CutMajors(f) || cutting_[g].shards > 1) return 0;
    if (!CutMajors(g) || cutting_[f].shards > 1) return 0;
    for (const FactorCutting& c : cutting_) {
      if (c.shards > 1) return 0;
    }
    for (int h : {f, g}) cutting_[h] = {2, CeilDiv(factors_.factors[h].size, 2)};
    CheckCutting();
    return 1;
  }

 private:
  // Cuts completely what is major to f anywhere, and so on.
  bool CutMajors(int f) {
    for (auto* tensors : {&factors_.operands, &factors_.results}) {
      for (const TensorFactors& tensor : *tensors) {
        for (const DimFactors& dim : tensor) {
          auto at = std::find(dim.begin(), dim.end(), f);
          if (at == dim.end()) continue;
          for (auto g = dim.begin(); g != at; ++g) {
            if (factors_.factors[*g].whole || !CutMajors(*g)) return false;
            cutting_[*g] = {factors_.factors[*g].size, 1};
          }
        }
      }
    }
    return true;
  }

  void CheckCutting() {
    results_.clear();
    for (const Array& r : expected_) results_.emplace_back(r.dims, 0);
    std::vector<int64_t> coordinate(cutting_.size(), 0);
    for (;;) {
      RunShard(coordinate);
      if (testing::Test::HasFailure()) return;
      size_t f = 0;
      while (f < coordinate.size() && ++coordinate[f] == cutting_[f].shards) coordinate[f++] = 0;
      if (f == coordinate.size()) break;
    }
    for (size_t r = 0; r < expected_.size(); ++r) {
      for (size_t i = 0; i < expected_[r].data.size(); ++i) {
        ASSERT_NEAR(results_[r].data[i], expected_[r].data[i],
                    1e-9 * (1 + std::abs(expected_[r].data[i])))
            << Describe() << "\nresult " << r << " element " << i;
      }
    }
  }

  std::string Describe() const {
    std::string text = absl::StrCat(call_.ToString(), "\n", factors_.ToString(), "\ncut");
    for (size_t f = 0; f < cutting_.size(); ++f) {
      if (cutting_[f].shards > 1) {
        absl::StrAppend(&text, " factor ", f, " in ", cutting_[f].shards, " of ",
                        cutting_[f].chunk);
      }
    }
    return text;
  }

  Interval ShardOf(int f, int64_t coordinate) const {
    const int64_t n = factors_.factors[f].size;
    return cutting_[f].shards == 1 ? Interval{0, n} : cutting_[f].Shard(n, coordinate);
  }

  Interval DimInterval(const DimFactors& dim, int64_t size,
                       const std::vector<int64_t>& coordinate) const {
    if (dim.empty()) return {0, size};
    Interval whole{0, 1};
    for (int f : dim) {
      const Interval shard = ShardOf(f, coordinate[f]);
      const int64_t n = factors_.factors[f].size;
      whole = {whole.begin * n + shard.begin, (whole.end - 1) * n + shard.end};
      if (shard.empty()) return {whole.begin, whole.begin};
    }
    return whole;
  }

  const Window* WindowAt(int operand, int dim) const {
    for (const Window& w : factors_.windows) {
      if (w.operand == operand && w.dim == dim) return &w;
    }
    return nullptr;
  }

  Box OperandBox(int k, const std::vector<int64_t>& coordinate, double* fill) const {
    Box box;
    for (int d = 0; d < types_[k].rank(); ++d) {
      const Window* w = WindowAt(k, d);
      if (w == nullptr) {
        box.push_back(DimInterval(factors_.operands[k][d], types_[k].dims[d], coordinate));
        continue;
      }
      EXPECT_EQ(w->extent, factors_.factors[w->factor].size);
      if (cutting_[w->factor].shards == 1) {
        box.push_back({0, types_[k].dims[d]});
        continue;
      }
      const Interval shard = ShardOf(w->factor, coordinate[w->factor]);
      Expr::Env env;
      env.start = [&](TensorRef, int) { return shard.begin; };
      env.size = [&](TensorRef, int) { return shard.size(); };
      box.push_back({w->begin.Evaluate(env), w->end.Evaluate(env)});
      *fill = w->fill;
    }
    return box;
  }

  void RunShard(const std::vector<int64_t>& coordinate) {
    std::vector<Box> operand_boxes, result_boxes;
    std::vector<Array> tiles;
    for (size_t f = 0; f < cutting_.size(); ++f) {
      // A reduced operand without elements is not used; the result is the identity.
      if (ShardOf(static_cast<int>(f), coordinate[f]).empty()) return;
    }
    bool first_term = true;
    for (size_t f = 0; f < cutting_.size(); ++f) {
      if (coordinate[f] > 0 && !factors_.InAnyResult(static_cast<int>(f))) first_term = false;
    }
    for (int k = 0; k < static_cast<int>(types_.size()); ++k) {
      if (call_.operands[k] == nullptr) {
        operand_boxes.emplace_back();
        tiles.push_back(Absent());
        continue;
      }
      double fill = 0;
      operand_boxes.push_back(OperandBox(k, coordinate, &fill));
      Array whole = case_.operands[k];
      for (const Window& w : factors_.windows) {
        if (w.operand != k || w.order.empty() || cutting_[w.factor].shards == 1) continue;
        whole = InOrder(whole, w.dim, w.order, w.fill);
      }
      tiles.push_back(Crop(whole, operand_boxes.back(), fill));
      const auto& added = rule_->added;
      if (!first_term && std::find(added.begin(), added.end(), k) != added.end()) {
        tiles.back() = Array(tiles.back().dims, 0);
      }
    }
    for (size_t r = 0; r < expected_.size(); ++r) {
      Box box;
      for (int d = 0; d < expected_[r].rank(); ++d) {
        box.push_back(DimInterval(factors_.results[r][d], expected_[r].dims[d], coordinate));
      }
      result_boxes.push_back(std::move(box));
    }
    const std::vector<Array> local =
        kernel_(tiles, Evaluated(LocalHere(), operand_boxes, result_boxes));
    ASSERT_EQ(local.size(), expected_.size());
    for (size_t r = 0; r < local.size(); ++r) {
      ASSERT_EQ(local[r].dims, BoxDims(result_boxes[r]))
          << Describe() << "\nresult " << r << " local attributes "
          << Evaluated(LocalHere(), operand_boxes, result_boxes).ToString();
      ForEachIndex(local[r].dims, [&](const Dims& index) {
        Dims to = index;
        for (size_t d = 0; d < to.size(); ++d) to[d] += result_boxes[r][d].begin;
        results_[r].at(to) += local[r].at(index);
      });
    }
  }

  Attributes LocalHere() const {
    std::vector<int> cut;
    for (size_t f = 0; f < cutting_.size(); ++f) {
      if (cutting_[f].shards > 1) cut.push_back(static_cast<int>(f));
    }
    return Local(cut);
  }

  static Attributes Evaluated(const Attributes& attrs, const std::vector<Box>& operands,
                              const std::vector<Box>& results) {
    auto interval = [&](TensorRef t, int d) {
      return (t.kind == TensorRef::Kind::kOperand ? operands : results)[t.index][d];
    };
    Expr::Env env;
    env.start = [&](TensorRef t, int d) { return interval(t, d).begin; };
    env.size = [&](TensorRef t, int d) { return interval(t, d).size(); };
    return spmd::Evaluated(attrs, env);
  }

  const Case& case_;
  const Kernel& kernel_;
  const Rule* rule_;
  std::vector<TensorType> types_;
  OpCall call_;
  std::vector<Array> expected_, results_;
  OpFactors factors_;
  std::vector<FactorCutting> cutting_;
};

}  // namespace

Array::Array(Dims d, double value) : dims(std::move(d)) {
  if (!IsAbsent(*this)) data.assign(NumElements(dims), value);
}
double& Array::at(const Dims& index) { return data[Linear(dims, index)]; }

Array Counting(Dims dims) {
  Array a(std::move(dims));
  std::iota(a.data.begin(), a.data.end(), 1.0);
  return a;
}

Array Random(std::mt19937& rng, Dims dims, double low, double high) {
  Array a(std::move(dims));
  std::uniform_int_distribution<int64_t> pick(static_cast<int64_t>(low),
                                              static_cast<int64_t>(high));
  for (double& x : a.data) x = static_cast<double>(pick(rng));
  return a;
}

void ForEachIndex(const Dims& dims, const std::function<void(const Dims&)>& visit) {
  if (NumElements(dims) == 0) return;
  Dims index(dims.size(), 0);
  for (;;) {
    visit(index);
    int d = static_cast<int>(dims.size()) - 1;
    while (d >= 0 && ++index[d] == dims[d]) index[d--] = 0;
    if (d < 0) return;
  }
}

Array Absent() { return Array(Dims{-1}); }
bool IsAbsent(const Array& a) { return a.dims.size() == 1 && a.dims[0] == -1; }

OpFactors FactorsOfCase(const Case& c, const Kernel& kernel) { return Run(c, kernel).factors(); }

std::string FactorText(const Case& c, const Kernel& kernel) {
  const std::string text = Run(c, kernel).factors().ToString();
  return text.substr(0, text.find("  {"));
}

Attributes LocalOfCase(const Case& c, const Kernel& kernel, const std::vector<int>& cut) {
  return Run(c, kernel).Local(cut);
}

int CheckCuts(const Case& c, const Kernel& kernel) {
  Run run(c, kernel);
  int checked = 0;
  const int n = static_cast<int>(run.factors().factors.size());
  for (int f = 0; f < n && !testing::Test::HasFailure(); ++f) checked += run.CheckFactor(f);
  for (int f = 0; f < n && !testing::Test::HasFailure(); ++f) {
    for (int g = f + 1; g < n && !testing::Test::HasFailure(); ++g) checked += run.CheckPair(f, g);
  }
  return checked;
}

}  // namespace spmd::rules
