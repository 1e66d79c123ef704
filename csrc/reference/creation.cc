// SPDX-License-Identifier: Apache-2.0
// Ops that create tensors from attributes: constants, ranges, random numbers.
#include <algorithm>
#include <cmath>

#include "csrc/ir/fingerprint.h"
#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

absl::StatusOr<Literals> FilledResult(const OpArgs& args, absl::Span<const int64_t> dims,
                                      double value) {
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  std::fill(out.data.begin(), out.data.end(), value);
  return One(std::move(out));
}

absl::StatusOr<Literals> Full(const OpArgs& args) {
  return FilledResult(args, args.Ints("size"), args.Double("value"));
}
absl::StatusOr<Literals> Zero(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  return FilledResult(args, in->type.dims, 0);
}

absl::StatusOr<Literals> Iota(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, {args.Int("size")}));
  const double start = args.Double("start");
  const double step = args.Double("step");
  const int64_t offset = args.Offset("offset");
  for (size_t i = 0; i < out.data.size(); ++i) {
    out.data[i] = start + static_cast<double>(offset + static_cast<int64_t>(i)) * step;
  }
  return One(std::move(out));
}

// Two numbers in (0, 1) for element `index`.
struct Uniforms {
  double a;
  double b;
};
Uniforms Draw(int64_t seed, int64_t counter, int64_t index) {
  const ir::Fingerprint bits = ir::Fingerprinter().Add(seed).Add(counter).Add(index).Finish();
  const auto unit = [](uint64_t x) { return (static_cast<double>(x >> 12) + 0.5) * 0x1p-52; };
  return {unit(bits.hi), unit(bits.lo)};
}

double Normal(Uniforms u) {
  return std::sqrt(-2 * std::log(u.a)) * std::cos(6.283185307179586477 * u.b);
}

struct Distribution {
  const char* name;
  double (*sample)(Uniforms u, double p0, double p1);
};
constexpr Distribution kDistributions[] = {
    {"bernoulli", [](Uniforms u, double p, double) -> double { return u.a < p; }},
    {"cauchy", [](Uniforms u, double p0,
                  double p1) { return p0 + p1 * std::tan(3.14159265358979323846 * (u.a - 0.5)); }},
    {"exponential", [](Uniforms u, double p0, double) { return -std::log(u.a) / p0; }},
    {"geometric",
     [](Uniforms u, double p, double) { return std::ceil(std::log(u.a) / std::log1p(-p)); }},
    {"log_normal", [](Uniforms u, double p0, double p1) { return std::exp(p0 + p1 * Normal(u)); }},
    {"normal", [](Uniforms u, double p0, double p1) { return p0 + p1 * Normal(u); }},
    {"randint", [](Uniforms u, double p0, double p1) { return std::floor(p0 + u.a * (p1 - p0)); }},
    {"uniform", [](Uniforms u, double p0, double p1) { return p0 + u.a * (p1 - p0); }},
};

// Calls visit(i, global index) for every element i of a tile of `dims` at the op's offset.
template <typename Visit>
absl::Status ForTile(const OpArgs& args, absl::Span<const int64_t> dims, const Visit& visit) {
  const std::vector<int64_t> offset = args.Offsets("offset");
  const std::vector<int64_t> global = args.Offsets("global_size");
  if (offset.size() != dims.size() || global.size() != dims.size()) {
    return args.Error("offset and global_size need one entry per dimension");
  }
  for (int64_t i = 0, count = NumElements(dims); i < count; ++i) {
    Dims index = Unravel(i, dims);
    for (size_t d = 0; d < dims.size(); ++d) {
      index[d] += offset[d];
      if (index[d] < 0 || index[d] >= global[d]) return args.Error("a tile outside global_size");
    }
    visit(i, Ravel(index, global));
  }
  return absl::OkStatus();
}

absl::StatusOr<Literals> Random(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, args.Ints("size")));
  const std::string name = args.StringOr("distribution", "");
  const auto* row = std::find_if(std::begin(kDistributions), std::end(kDistributions),
                                 [&](const Distribution& d) { return name == d.name; });
  if (row == std::end(kDistributions)) {
    return args.Error(absl::StrCat("unknown distribution '", name, "'"));
  }
  const int64_t seed = args.Int("seed"), counter = args.Int("counter");
  const double p0 = args.DoubleOr("p0", 0), p1 = args.DoubleOr("p1", 0);
  SPMD_RETURN_IF_ERROR(ForTile(args, out.type.dims, [&](int64_t i, int64_t global) {
    out.data[i] = row->sample(Draw(seed, counter, global), p0, p1);
  }));
  return One(std::move(out));
}

absl::StatusOr<Literals> Dropout(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, in->type.dims));
  SPMD_ASSIGN_OR_RETURN(Literal mask, args.Make(1, in->type.dims));
  const double p = args.Double("p");
  const int64_t seed = args.Int("seed"), counter = args.Int("counter");
  SPMD_RETURN_IF_ERROR(ForTile(args, in->type.dims, [&](int64_t i, int64_t global) {
    mask.data[i] = Draw(seed, counter, global).a >= p;
    out.data[i] = mask.data[i] != 0 ? in->data[i] / (1 - p) : 0;
  }));
  return Literals{std::move(out), std::move(mask)};
}

constexpr KernelRow kCreationKernels[] = {
    {"aten::zero", Zero}, {"spmd::dropout", Dropout}, {"spmd::full", Full},
    {"spmd::iota", Iota}, {"spmd::random", Random},
};
static_assert(SortedByOp(kCreationKernels));

}  // namespace

absl::Span<const KernelRow> CreationKernels() { return kCreationKernels; }

}  // namespace spmd::reference
