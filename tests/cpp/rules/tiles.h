// SPDX-License-Identifier: Apache-2.0
// Checks what a rule claims: for every legal sharding of a call's factors, the op on tiles with
// the local attributes gives the tiles of the global result (or partial sums of it).
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "csrc/rules/factors.h"
#include "csrc/rules/op_call.h"
#include "csrc/rules/rule.h"

namespace spmd::rules {

// A small tensor, row-major.
struct Array {
  Dims dims;
  std::vector<double> data;

  explicit Array(Dims d = {}, double value = 0);
  double& at(const Dims& index);
  double at(const Dims& index) const { return const_cast<Array*>(this)->at(index); }
  int rank() const { return static_cast<int>(dims.size()); }
  int64_t size(int d) const { return dims[d]; }
};
// 1, 2, 3, …: every element different.
Array Counting(Dims dims);
Array Random(std::mt19937& rng, Dims dims, double low, double high);  // integers in [low, high]
// Calls `visit` for every index, row-major.
void ForEachIndex(const Dims& dims, const std::function<void(const Dims&)>& visit);

// What the op computes, written naively. Absent operands are arrays of size 0 with dims {-1}.
using Kernel =
    std::function<std::vector<Array>(const std::vector<Array>& operands, const Attributes&)>;
Array Absent();
bool IsAbsent(const Array& a);

struct Case {
  std::string op;
  std::vector<Array> operands;
  Attributes attributes;
  std::vector<ir::OperandGroup> groups = {};
  std::vector<DType> dtypes = {};  // of operands; f32 where not given
};

// The factors of a case, whose results come from `kernel`. FAILs the test when the rule does not
// fit.
OpFactors FactorsOfCase(const Case& c, const Kernel& kernel);
// "x y -> y" without sizes.
std::string FactorText(const Case& c, const Kernel& kernel);
// The attributes of a call on tiles if the factors of `cut` are sharded.
Attributes LocalOfCase(const Case& c, const Kernel& kernel, const std::vector<int>& cut);
// Types agree with the rule's, and every sharding gives the right tiles. Returns how many there
// were.
int CheckCuts(const Case& c, const Kernel& kernel);

}  // namespace spmd::rules
