// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/reshape.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "csrc/rules/tables/call_factors.h"
#include "csrc/util/status.h"

namespace spmd::rules {
namespace {

// A position in the dims of one side, walked major first. Dimensions of size 1 have no factor.
struct Side {
  const Dims& dims;
  int dim = -1;
  int64_t left = 1;  // what is left of the current dimension

  explicit Side(const Dims& d) : dims(d) { Advance(); }
  bool AtEnd() const { return dim == static_cast<int>(dims.size()); }
  // Moves to the next dimension that has something left.
  void Advance() {
    while (left == 1 && !AtEnd()) {
      ++dim;
      if (!AtEnd()) left = dims[dim];
    }
  }
  void Take(int64_t size) {
    left /= size;
    Advance();
  }
};

class Matcher {
 public:
  explicit Matcher(const OpCall& call)
      : f_(call), from_(call.operand(0).dims), to_(call.results[0].dims) {}

  OpFactors Match() {
    while (!from_.AtEnd() && !to_.AtEnd()) {
      const int64_t common = std::gcd(from_.left, to_.left);
      if (common > 1) {
        Shared(common);
      } else {
        Mismatch();
      }
    }
    return f_.Take();
  }

 private:
  void Shared(int64_t size) {
    const int factor = f_.Add(size);
    f_.OverOperand(0, from_.dim, factor);
    f_.OverResult(to_.dim, factor);
    // If both sides have a remainder, these are coprime and become whole factors.
    const bool both = from_.left != size && to_.left != size;
    from_.Take(size);
    to_.Take(size);
    if (both) Mismatch();
  }

  // Adds whole factors on both sides until they cover equally many elements.
  void Mismatch() {
    int64_t from = WholeOperand(), to = WholeResult();
    while (from != to) {
      if (from < to) {
        from *= WholeOperand();
      } else {
        to *= WholeResult();
      }
    }
  }
  int64_t WholeOperand() {
    const int64_t size = from_.left;
    f_.OverOperand(0, from_.dim, f_.AddWhole(size));
    from_.Take(size);
    return size;
  }
  int64_t WholeResult() {
    const int64_t size = to_.left;
    f_.OverResult(to_.dim, f_.AddWhole(size));
    to_.Take(size);
    return size;
  }

  CallFactors f_;
  Side from_, to_;
};

// An empty reshape: the leading dimensions that agree pass, and nothing more is worth sharding.
OpFactors EmptyFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims& from = call.operand(0).dims;
  const Dims& to = call.results[0].dims;
  for (size_t d = 0; d < std::min(from.size(), to.size()) && from[d] == to[d]; ++d) {
    f.Pass(static_cast<int>(d), static_cast<int>(d));
  }
  return f.Take();
}

}  // namespace

absl::StatusOr<OpFactors> ReshapeFactors(const OpCall& call) {
  const int64_t n = call.operand(0).NumElements();
  if (n != call.results[0].NumElements()) {
    return absl::InvalidArgumentError(absl::StrCat(call.ToString(), ": a reshape to ",
                                                   call.results[0].ToString(),
                                                   " changes the number of elements"));
  }
  if (n == 0) return EmptyFactors(call);
  return Matcher(call).Match();
}

absl::StatusOr<std::vector<TensorType>> ReshapeTypes(const OpCall& call) {
  const std::vector<int64_t>& size = call.attrs().GetInts("size");
  Dims dims(size.begin(), size.end());
  const int64_t n = call.operand(0).NumElements();
  auto open = std::find(dims.begin(), dims.end(), -1);
  if (open != dims.end()) {
    *open = 1;
    const int64_t known = NumElements(dims);
    *open = known == 0 ? 0 : n / known;
  }
  if (NumElements(dims) != n) {
    return absl::InvalidArgumentError(
        absl::StrCat(call.ToString(), ": ", n, " elements do not fit ", DimsToString(dims)));
  }
  return std::vector<TensorType>{{call.operand(0).dtype, std::move(dims)}};
}

absl::StatusOr<OpFactors> BitcastFactors(const OpCall& call) {
  CallFactors f(call);
  const Dims& from = call.operand(0).dims;
  const Dims& to = call.results[0].dims;
  if (from.size() != to.size()) {
    return absl::InvalidArgumentError(absl::StrCat(call.ToString(), " changes the rank"));
  }
  for (int d = 0; d < static_cast<int>(from.size()); ++d) {
    const int64_t common = std::min(from[d], to[d]);
    const int factor = f.Add(common);
    f.OverOperand(0, d, factor);
    f.OverResult(d, factor);
    // The narrow elements that make up one wide element stay together.
    if (from[d] > common && common > 0) f.OverOperand(0, d, f.AddWhole(from[d] / common));
    if (to[d] > common && common > 0) f.OverResult(d, f.AddWhole(to[d] / common));
  }
  return f.Take();
}

absl::StatusOr<std::vector<TensorType>> BitcastTypes(const OpCall& call) {
  const Attr* dtype = call.attrs().Find("dtype");
  if (dtype == nullptr || !std::holds_alternative<DType>(*dtype)) {
    return absl::InvalidArgumentError(absl::StrCat(call.ToString(), " has no dtype"));
  }
  TensorType type = call.operand(0);
  const int64_t from = ByteSize(type.dtype), to = ByteSize(std::get<DType>(*dtype));
  type.dtype = std::get<DType>(*dtype);
  if (from != to && !type.dims.empty()) type.dims.back() = type.dims.back() * from / to;
  return std::vector<TensorType>{type};
}

}  // namespace spmd::rules
