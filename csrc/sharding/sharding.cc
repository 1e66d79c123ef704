// SPDX-License-Identifier: Apache-2.0
#include "csrc/sharding/sharding.h"

#include <algorithm>
#include <array>

#include "absl/strings/str_cat.h"
#include "csrc/util/status.h"

namespace spmd {
namespace {

struct KindName {
  ReduceKind kind;
  const char* name;
};
constexpr std::array<KindName, 6> kKindNames = {{{ReduceKind::kSum, "sum"},
                                                 {ReduceKind::kProd, "prod"},
                                                 {ReduceKind::kMax, "max"},
                                                 {ReduceKind::kMin, "min"},
                                                 {ReduceKind::kAnd, "and"},
                                                 {ReduceKind::kOr, "or"}}};

// Parses "{model,? chunk=6}" behind its opening brace.
absl::Status ParseDim(Scanner& in, const Grid& grid, DimSharding& dim) {
  bool first = true;
  while (in.Peek() != '}' && !in.Looking("chunk=")) {
    if (!first) SPMD_RETURN_IF_ERROR(in.Expect(","));
    first = false;
    if (in.Consume("?")) {
      dim.open = true;
      break;  // the '?' is always last
    }
    SPMD_RETURN_IF_ERROR(grid.ParseAxis(in, dim.axes));
  }
  const size_t begin = in.position();
  if (in.Consume("chunk=")) {
    SPMD_ASSIGN_OR_RETURN(dim.chunk, in.Integer("the size of a chunk"));
    if (dim.chunk < 1 || dim.axes.empty()) {
      in.Seek(begin);
      return in.Error("a chunk of at least 1, after axes");
    }
  }
  return in.Expect("}");
}

// Parses "{model,data}" into sorted axes.
absl::Status ParseSet(Scanner& in, const Grid& grid, AxisList& axes) {
  SPMD_RETURN_IF_ERROR(in.Expect("{"));
  do {
    SPMD_RETURN_IF_ERROR(grid.ParseAxis(in, axes));
  } while (in.Consume(","));
  std::sort(axes.begin(), axes.end());
  return in.Expect("}");
}

absl::Status CheckNoRepeats(const Sharding& sharding, const Grid& grid) {
  AxisMask seen = 0;
  auto check = [&](const AxisList& axes) {
    for (AxisId axis : axes) {
      if (seen & MaskOf(axis)) {
        return absl::InvalidArgumentError(
            absl::StrCat("sharding ", sharding.ToString(grid), " uses axis '",
                         grid.AxesToString({axis}), "' twice; an axis shards one dimension only"));
      }
      seen |= MaskOf(axis);
    }
    return absl::OkStatus();
  };
  for (const DimSharding& dim : sharding.dims) SPMD_RETURN_IF_ERROR(check(dim.axes));
  SPMD_RETURN_IF_ERROR(check(sharding.unreduced));
  return check(sharding.manual);
}

}  // namespace

absl::string_view ReduceKindName(ReduceKind kind) {
  return kKindNames[static_cast<size_t>(kind)].name;
}

absl::StatusOr<ReduceKind> ParseReduceKind(absl::string_view name) {
  for (const KindName& k : kKindNames) {
    if (name == k.name) return k.kind;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no kind of reduction; there are sum, prod, max, min, and, or"));
}

Sharding Sharding::Replicated(int rank) {
  Sharding sharding;
  sharding.dims.resize(rank);
  return sharding;
}

Sharding Sharding::Open(int rank) {
  Sharding sharding = Replicated(rank);
  for (DimSharding& dim : sharding.dims) dim.open = true;
  return sharding;
}

AxisMask Sharding::DimAxes() const {
  AxisMask mask = 0;
  for (const DimSharding& dim : dims) mask |= MaskOf(dim.axes);
  return mask;
}

AxisMask Sharding::UnreducedAxes() const { return MaskOf(unreduced); }

Sharding Sharding::Reduced() const {
  Sharding reduced = *this;
  reduced.unreduced.clear();
  reduced.reduce_kind = ReduceKind::kSum;
  return reduced;
}

Sharding Sharding::Closed() const {
  Sharding closed = *this;
  for (DimSharding& dim : closed.dims) dim.open = false;
  return closed;
}

bool Sharding::SamePlacement(const Sharding& other) const { return Closed() == other.Closed(); }

std::string Sharding::ToString(const Grid& grid) const {
  std::string out;
  for (int d = 0; d < rank(); ++d) {
    const DimSharding& dim = dims[d];
    absl::StrAppend(&out, d == 0 ? "{" : ",{", grid.AxesToString(dim.axes));
    if (dim.open) absl::StrAppend(&out, dim.axes.empty() ? "?" : ",?");
    if (dim.chunk != 0) absl::StrAppend(&out, " chunk=", dim.chunk);
    absl::StrAppend(&out, "}");
  }
  const auto add = [&](absl::string_view name, const AxisList& axes) {
    if (axes.empty()) return;
    absl::StrAppend(&out, out.empty() ? "" : " ", name, "{", grid.AxesToString(axes), "}");
  };
  add(absl::StrCat("unreduced(", ReduceKindName(reduce_kind), ")"), unreduced);
  add("manual", manual);
  return out;
}

absl::StatusOr<Sharding> Sharding::Parse(Scanner& in, const Grid& grid) {
  Sharding sharding;
  while (sharding.dims.empty() ? in.Peek() == '{' : in.Peek() == ',') {
    const size_t before = in.position();
    if (!sharding.dims.empty()) in.Consume(",");
    if (!in.Consume("{")) {  // the comma belongs to what follows the sharding
      in.Seek(before);
      break;
    }
    SPMD_RETURN_IF_ERROR(ParseDim(in, grid, sharding.dims.emplace_back()));
  }
  if (in.ConsumeWord("unreduced")) {
    SPMD_RETURN_IF_ERROR(in.Expect("("));
    SPMD_ASSIGN_OR_RETURN(const absl::string_view kind, in.Identifier("a kind of reduction"));
    SPMD_ASSIGN_OR_RETURN(sharding.reduce_kind, ParseReduceKind(kind));
    SPMD_RETURN_IF_ERROR(in.Expect(")"));
    SPMD_RETURN_IF_ERROR(ParseSet(in, grid, sharding.unreduced));
  }
  if (in.ConsumeWord("manual")) SPMD_RETURN_IF_ERROR(ParseSet(in, grid, sharding.manual));
  SPMD_RETURN_IF_ERROR(CheckNoRepeats(sharding, grid));
  return sharding;
}

absl::StatusOr<Sharding> Sharding::Parse(absl::string_view text, const Grid& grid) {
  Scanner in(text);
  SPMD_ASSIGN_OR_RETURN(Sharding sharding, Parse(in, grid));
  SPMD_RETURN_IF_ERROR(in.ExpectEnd());
  return sharding;
}

}  // namespace spmd
