// SPDX-License-Identifier: Apache-2.0
#include "csrc/rules/tables/reduced_dims.h"

#include "csrc/util/status.h"

namespace spmd::rules {

std::vector<bool> NamedDims(const Attributes& attributes, absl::string_view name, int rank) {
  std::vector<bool> named(rank, false);
  auto set = [&](int64_t dim) {
    if (rank == 0) return;  // 0 and -1 name the "dimension" of a scalar
    SPMD_REQUIRE(-rank <= dim && dim < rank, "dim ", dim, " is out of range for rank ", rank);
    named[dim < 0 ? dim + rank : dim] = true;
  };
  const Attr* attr = attributes.Find(name);
  if (attr != nullptr) {
    if (const auto* dim = std::get_if<int64_t>(attr)) {
      set(*dim);
      return named;
    }
    if (const auto* dims = std::get_if<std::vector<int64_t>>(attr); dims && !dims->empty()) {
      for (int64_t dim : *dims) set(dim);
      return named;
    }
  }
  named.assign(rank, true);
  return named;
}

std::vector<int64_t> DimList(const std::vector<bool>& named) {
  std::vector<int64_t> dims;
  for (size_t d = 0; d < named.size(); ++d) {
    if (named[d]) dims.push_back(static_cast<int64_t>(d));
  }
  return dims;
}

int64_t CountOf(const Dims& dims, const std::vector<bool>& named) {
  int64_t count = 1;
  for (size_t d = 0; d < named.size(); ++d) {
    if (named[d]) count *= dims[d];
  }
  return count;
}

OpFactors ReduceFactors(const OpCall& call, const std::vector<bool>& reduced, const Factor& proto) {
  OpFactors f;
  const TensorType& x = call.operand(0);
  TensorFactors operand, kept, dropped;
  for (int d = 0; d < x.rank(); ++d) {
    Factor factor = reduced[d] ? proto : Factor{};
    factor.size = x.dims[d];
    f.factors.push_back(factor);
    operand.push_back({d});
    kept.push_back(reduced[d] ? DimFactors{} : DimFactors{d});
    if (!reduced[d]) dropped.push_back({d});
  }
  f.operands.push_back(operand);
  for (const TensorType& r : call.results) {
    f.results.push_back(r.dims.size() == kept.size() ? kept : dropped);
  }
  return f;
}

OpFactors WholeDimFactors(const OpCall& call, const std::vector<bool>& whole) {
  OpFactors f;
  const TensorType& x = call.operand(0);
  for (int d = 0; d < x.rank(); ++d) {
    f.factors.push_back({.size = x.dims[d], .whole = whole[d]});
  }
  auto factors_of = [&](const TensorType* type) {
    TensorFactors tensor(type == nullptr ? 0 : type->rank());
    if (type == nullptr || type->rank() != x.rank()) return tensor;
    for (int d = 0; d < x.rank(); ++d) {
      if (type->dims[d] == x.dims[d]) tensor[d].push_back(d);
    }
    return tensor;
  };
  for (const TensorType* type : call.operands) f.operands.push_back(factors_of(type));
  for (const TensorType& type : call.results) f.results.push_back(factors_of(&type));
  return f;
}

absl::StatusOr<OpFactors> NamedDimsWhole(const OpCall& call) {
  return WholeDimFactors(call, NamedDims(call.attrs(), "dim", call.operand(0).rank()));
}

Dims ReducedSizes(const Dims& dims, const std::vector<bool>& reduced, bool keepdim) {
  Dims sizes;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!reduced[d])
      sizes.push_back(dims[d]);
    else if (keepdim)
      sizes.push_back(1);
  }
  return sizes;
}

}  // namespace spmd::rules
