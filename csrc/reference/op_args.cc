// SPDX-License-Identifier: Apache-2.0
#include "csrc/reference/op_args.h"

#include <algorithm>

namespace spmd::reference {

Literal Zeros(const TensorType& type) {
  Literal zeros{type, std::vector<double>(type.NumElements())};
  if (IsComplex(type.dtype)) zeros.imaginary = zeros.data;
  return zeros;
}

absl::Status OpArgs::Error(absl::string_view message) const {
  return absl::InvalidArgumentError(absl::StrCat("interpreter: '", op_, "': ", message));
}

absl::StatusOr<const Literal*> OpArgs::operand(int k) const {
  if (const Literal* literal = optional(k)) return literal;
  return Error(absl::StrCat("operand ", k, " is absent"));
}

absl::StatusOr<const Literal*> OpArgs::operand(int k, int rank) const {
  SPMD_ASSIGN_OR_RETURN(const Literal* literal, operand(k));
  if (literal->type.rank() == rank) return literal;
  return Error(
      absl::StrCat("operand ", k, " is ", literal->type.ToString(), ", expected rank ", rank));
}

absl::StatusOr<Literal> OpArgs::Make(int k, absl::Span<const int64_t> dims) const {
  if (k >= static_cast<int>(results_.size())) {
    return Error(absl::StrCat("has more results than the ", results_.size(), " that are declared"));
  }
  if (absl::MakeConstSpan(results_[k].dims) != dims) {
    return Error(absl::StrCat("result ", k, " has dimensions ", DimsToString(dims),
                              ", declared is ", results_[k].ToString()));
  }
  return Zeros(results_[k]);
}

absl::StatusOr<Literal> OpArgs::Blank(int k) const {
  if (k >= static_cast<int>(results_.size())) {
    return Error(absl::StrCat("has more results than the ", results_.size(), " that are declared"));
  }
  return Zeros(results_[k]);
}

absl::Status OpArgs::CheckWork(double points) const {
  if (points <= kMaxLiteralElements) return absl::OkStatus();
  return Error(absl::StrCat("takes ", points, " steps, too many to interpret (more than 2^24)"));
}

template <typename T>
std::optional<T> OpArgs::Get(absl::string_view name, const char* kind) const {
  const Attr* attr = attributes_.Find(name);
  if (attr != nullptr) {
    if (const T* value = std::get_if<T>(attr)) return *value;
  }
  if (status_.ok()) {
    status_ = Error(attr == nullptr ? absl::StrCat("attribute '", name, "' is missing")
                                    : absl::StrCat("attribute ", name, "=", AttrToString(*attr),
                                                   ", expected ", kind));
  }
  return std::nullopt;
}

int64_t OpArgs::Int(absl::string_view name) const {
  return Get<int64_t>(name, "an integer").value_or(0);
}

int64_t OpArgs::IntOr(absl::string_view name, int64_t fallback) const {
  return Has(name) ? Int(name) : fallback;
}

double OpArgs::Double(absl::string_view name) const {
  const Attr* attr = attributes_.Find(name);
  if (attr != nullptr && std::holds_alternative<int64_t>(*attr)) {
    return static_cast<double>(std::get<int64_t>(*attr));
  }
  if (attr != nullptr && std::holds_alternative<bool>(*attr)) return std::get<bool>(*attr);
  return Get<double>(name, "a number").value_or(0);
}

std::complex<double> OpArgs::Complex(absl::string_view name) const {
  const Attr* attr = attributes_.Find(name);
  const auto* value = attr == nullptr ? nullptr : std::get_if<std::complex<double>>(attr);
  return value != nullptr ? *value : Double(name);
}

double OpArgs::DoubleOr(absl::string_view name, double fallback) const {
  return Has(name) ? Double(name) : fallback;
}

bool OpArgs::BoolOr(absl::string_view name, bool fallback) const {
  return Has(name) ? Get<bool>(name, "a bool").value_or(false) : fallback;
}

std::string OpArgs::StringOr(absl::string_view name, absl::string_view fallback) const {
  return Has(name) ? Get<std::string>(name, "a string").value_or("") : std::string(fallback);
}

std::vector<int64_t> OpArgs::Ints(absl::string_view name) const {
  const Attr* attr = attributes_.Find(name);
  if (attr != nullptr && std::holds_alternative<int64_t>(*attr)) return {std::get<int64_t>(*attr)};
  return Get<std::vector<int64_t>>(name, "a list of integers").value_or(std::vector<int64_t>());
}

int64_t OpArgs::Offset(absl::string_view name) const {
  return Has(name) ? Positions(name, {Int(name)})[0] : 0;
}

std::vector<int64_t> OpArgs::Offsets(absl::string_view name) const {
  return Positions(name, Ints(name));
}

std::vector<int64_t> OpArgs::Positions(absl::string_view name, std::vector<int64_t> list) const {
  for (int64_t& i : list) {
    if (IsPosition(i)) continue;
    if (status_.ok()) status_ = Error(absl::StrCat("attribute ", name, "=", i, " is no position"));
    i = 0;
  }
  return list;
}

std::vector<bool> OpArgs::Bools(absl::string_view name) const {
  return Get<std::vector<bool>>(name, "a list of booleans").value_or(std::vector<bool>());
}

absl::StatusOr<int> OpArgs::Dim(int64_t dim, int rank) const {
  // As in PyTorch, a scalar counts as having one dimension.
  const int64_t limit = std::max(rank, 1);
  if (dim < -limit || dim >= limit) {
    return Error(absl::StrCat("dimension ", dim, " of a tensor of rank ", rank));
  }
  return static_cast<int>(dim < 0 ? dim + limit : dim);
}

absl::StatusOr<int> OpArgs::Dim(absl::string_view name, int rank) const {
  return Dim(Int(name), rank);
}

Dims Unravel(int64_t linear, absl::Span<const int64_t> dims) {
  Dims index(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    index[d] = linear % dims[d];
    linear /= dims[d];
  }
  return index;
}

int64_t Ravel(absl::Span<const int64_t> index, absl::Span<const int64_t> dims) {
  int64_t linear = 0;
  for (size_t d = 0; d < dims.size(); ++d) linear = linear * dims[d] + index[d];
  return linear;
}

int64_t RavelBroadcast(absl::Span<const int64_t> index, absl::Span<const int64_t> dims) {
  const size_t skip = index.size() - dims.size();
  int64_t linear = 0;
  for (size_t d = 0; d < dims.size(); ++d) {
    linear = linear * dims[d] + (dims[d] == 1 ? 0 : index[skip + d]);
  }
  return linear;
}

std::optional<Dims> BroadcastDims(absl::Span<const Dims> shapes) {
  size_t rank = 0;
  for (const Dims& dims : shapes) rank = std::max(rank, dims.size());
  Dims out(rank, 1);
  for (const Dims& dims : shapes) {
    const size_t skip = rank - dims.size();
    for (size_t d = 0; d < dims.size(); ++d) {
      int64_t& size = out[skip + d];
      if (dims[d] == 1 || dims[d] == size) continue;
      if (size != 1) return std::nullopt;
      size = dims[d];
    }
  }
  return out;
}

absl::StatusOr<Literal> Gather(const OpArgs& args, const Literal& in,
                               absl::Span<const int64_t> dims,
                               const std::function<int64_t(const Dims&)>& source) {
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  for (int64_t i = 0; i < static_cast<int64_t>(out.data.size()); ++i) {
    const int64_t from = source(Unravel(i, dims));
    if (from < -1 || from >= static_cast<int64_t>(in.data.size())) {
      return args.Error(absl::StrCat("reads element ", from, " of ", in.type.ToString()));
    }
    if (from >= 0) out.data[i] = in.data[from];
  }
  return out;
}

Literal WithOne(const Literal& in, int dim) {
  Literal out = in;
  out.type.dims.insert(out.type.dims.begin() + std::min(dim, in.type.rank()), 1);
  return out;
}

}  // namespace spmd::reference
