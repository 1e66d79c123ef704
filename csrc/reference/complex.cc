// SPDX-License-Identifier: Apache-2.0
// Calls with complex numbers are built from calls of the real kernels on real and imaginary parts
// where possible: sums and ops that only move elements work on each part alone, products take four
// calls.
#include "csrc/reference/complex.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <utility>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

using C = std::complex<double>;

// The real or imaginary parts of a literal. The imaginary parts of real numbers are zeros.
Literal Part(const Literal& x, bool imaginary) {
  if (!IsComplex(x.type.dtype)) {
    return imaginary ? Literal{x.type, std::vector<double>(x.data.size())} : x;
  }
  return {{RealOf(x.type.dtype), x.type.dims}, imaginary ? x.imaginary : x.data};
}

Literal FromParts(const TensorType& type, Literal real, Literal imaginary) {
  return {type, std::move(real.data), std::move(imaginary.data)};
}

// Ops that work on each part alone. Those of kArithmetic take real operands as numbers without an
// imaginary part; the real operands of the others are indices and conditions.
constexpr std::string_view kArithmetic[] = {
    "aten::add.Tensor", "aten::copy", "aten::neg", "aten::rsub.Tensor", "aten::sub.Tensor",
};
constexpr std::string_view kMoving[] = {
    "aten::_unsafe_index.Tensor",
    "aten::alias",
    "aten::cat",
    "aten::clone",
    "aten::constant_pad_nd",
    "aten::cumsum",
    "aten::detach",
    "aten::embedding",
    "aten::expand",
    "aten::flip",
    "aten::gather",
    "aten::index.Tensor",
    "aten::index_select",
    "aten::mean",
    "aten::mean.dim",
    "aten::permute",
    "aten::repeat",
    "aten::roll",
    "aten::select.int",
    "aten::select_backward",
    "aten::select_scatter",
    "aten::slice.Tensor",
    "aten::slice_backward",
    "aten::slice_scatter",
    "aten::squeeze",
    "aten::squeeze.dim",
    "aten::squeeze.dims",
    "aten::stack",
    "aten::sum",
    "aten::sum.dim_IntList",
    "aten::t",
    "aten::transpose.int",
    "aten::tril",
    "aten::triu",
    "aten::unsqueeze",
    "aten::view",
    "aten::where.self",
    "aten::zero",
    "spmd::embedding",
    "spmd::index_part",
    "spmd::roll_start",
    "spmd::slice_part",
    "spmd::slice_put_part",
    "spmd::slice_start",
    "spmd::slice_start_scatter",
};
// Ops that multiply operands 0 and 1.
constexpr std::string_view kProducts[] = {
    "aten::bmm",        "aten::dot", "aten::linear",        "aten::matmul",         "aten::mm",
    "aten::mul.Tensor", "aten::mv",  "spmd::linear_dinput", "spmd::linear_dweight",
};

template <size_t n>
bool IsOneOf(const std::string_view (&ops)[n], absl::string_view op) {
  return std::find(std::begin(ops), std::end(ops), std::string_view(op.data(), op.size())) !=
         std::end(ops);
}

C Scalar(const OpArgs& args, absl::string_view name) { return args.Complex(name); }

struct ComplexRow {
  const char* op;
  int operands;
  C (*function)(const C* x, const OpArgs& args);
};
constexpr ComplexRow kElementwise[] = {
    {"aten::_conj_physical", 1, [](const C* x, const OpArgs&) { return std::conj(x[0]); }},
    {"aten::abs", 1, [](const C* x, const OpArgs&) { return C(std::abs(x[0])); }},
    {"aten::add.Scalar", 1,
     [](const C* x, const OpArgs& a) {
       return x[0] + a.DoubleOr("alpha", 1) * Scalar(a, "other");
     }},
    {"aten::angle", 1, [](const C* x, const OpArgs&) { return C(std::arg(x[0])); }},
    {"aten::complex", 2, [](const C* x, const OpArgs&) { return C(x[0].real(), x[1].real()); }},
    {"aten::conj_physical", 1, [](const C* x, const OpArgs&) { return std::conj(x[0]); }},
    {"aten::cos", 1, [](const C* x, const OpArgs&) { return std::cos(x[0]); }},
    {"aten::div.Scalar", 1, [](const C* x, const OpArgs& a) { return x[0] / Scalar(a, "other"); }},
    {"aten::div.Tensor", 2, [](const C* x, const OpArgs&) { return x[0] / x[1]; }},
    {"aten::eq.Tensor", 2, [](const C* x, const OpArgs&) { return C(x[0] == x[1]); }},
    {"aten::exp", 1, [](const C* x, const OpArgs&) { return std::exp(x[0]); }},
    {"aten::log", 1, [](const C* x, const OpArgs&) { return std::log(x[0]); }},
    {"aten::mul.Scalar", 1, [](const C* x, const OpArgs& a) { return x[0] * Scalar(a, "other"); }},
    {"aten::ne.Tensor", 2, [](const C* x, const OpArgs&) { return C(x[0] != x[1]); }},
    {"aten::polar", 2,
     [](const C* x, const OpArgs&) {
       return C(x[0].real() * std::cos(x[1].real()), x[0].real() * std::sin(x[1].real()));
     }},
    {"aten::reciprocal", 1, [](const C* x, const OpArgs&) { return 1.0 / x[0]; }},
    {"aten::sin", 1, [](const C* x, const OpArgs&) { return std::sin(x[0]); }},
    {"aten::sqrt", 1, [](const C* x, const OpArgs&) { return std::sqrt(x[0]); }},
    {"aten::sub.Scalar", 1,
     [](const C* x, const OpArgs& a) {
       return x[0] - a.DoubleOr("alpha", 1) * Scalar(a, "other");
     }},
    {"aten::tanh", 1, [](const C* x, const OpArgs&) { return std::tanh(x[0]); }},
    {"spmd::cast", 1, [](const C* x, const OpArgs&) { return x[0]; }},
};
static_assert(SortedByOp(kElementwise));

// Sets element i of a complex result; a real result takes the real part.
void Set(Literal& out, size_t i, C value) {
  out.data[i] = value.real();
  if (!out.imaginary.empty()) out.imaginary[i] = value.imag();
}

absl::StatusOr<Literals> Elementwise(const ComplexRow& row, const OpArgs& args) {
  std::vector<const Literal*> operands;
  std::vector<Dims> shapes;
  for (int k = 0; k < row.operands; ++k) {
    SPMD_ASSIGN_OR_RETURN(const Literal* operand, args.operand(k));
    operands.push_back(operand);
    shapes.push_back(operand->type.dims);
  }
  const std::optional<Dims> dims = BroadcastDims(shapes);
  if (!dims.has_value()) return args.Error("the operands do not broadcast");
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, *dims));
  std::vector<C> x(operands.size());
  for (size_t i = 0; i < out.data.size(); ++i) {
    const Dims index = Unravel(static_cast<int64_t>(i), *dims);
    for (size_t k = 0; k < operands.size(); ++k) {
      const Literal& from = *operands[k];
      const int64_t at = RavelBroadcast(index, from.type.dims);
      x[k] = C(from.data[at], from.imaginary.empty() ? 0 : from.imaginary[at]);
    }
    Set(out, i, row.function(x.data(), args));
  }
  return One(std::move(out));
}

// aten::view_as_real: a new last dimension holds the two parts.
absl::StatusOr<Literals> AsReal(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  Dims dims = in->type.dims;
  dims.push_back(2);
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  for (size_t i = 0; i < in->data.size(); ++i) {
    out.data[2 * i] = in->data[i];
    out.data[2 * i + 1] = in->imaginary.empty() ? 0 : in->imaginary[i];
  }
  return One(std::move(out));
}

absl::StatusOr<Literals> AsComplex(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Literal* in, args.operand(0));
  Dims dims = in->type.dims;
  if (dims.empty() || dims.back() != 2) return args.Error("the last dimension is not 2");
  dims.pop_back();
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  for (size_t i = 0; i < out.data.size(); ++i) {
    Set(out, i, C(in->data[2 * i], in->data[2 * i + 1]));
  }
  return One(std::move(out));
}

absl::StatusOr<Literals> ComplexFull(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Blank(0));
  const C value = Scalar(args, "value");
  for (size_t i = 0; i < out.data.size(); ++i) Set(out, i, value);
  return One(std::move(out));
}

// Runs the real kernel of a call on parts of its operands.
class InParts {
 public:
  explicit InParts(const ComplexCall& call) : call_(call) {
    for (const TensorType& type : call.results) {
      types_.push_back({RealOf(type.dtype), type.dims});
    }
  }

  // imaginary[k] selects the part of operand k. If `converts`, a real operand has an imaginary part
  // of 0; else it is passed unchanged.
  absl::StatusOr<Literals> Run(const std::vector<bool>& imaginary, bool converts) const {
    std::vector<Literal> parts(call_.operands.size());
    std::vector<const Literal*> operands(call_.operands.size(), nullptr);
    for (size_t k = 0; k < parts.size(); ++k) {
      if (call_.operands[k] == nullptr) continue;
      const bool real = !IsComplex(call_.operands[k]->type.dtype);
      parts[k] = real && !converts ? *call_.operands[k] : Part(*call_.operands[k], imaginary[k]);
      operands[k] = &parts[k];
    }
    return InterpretOp(call_.op, operands, call_.groups, call_.attributes, types_);
  }

  absl::StatusOr<Literals> Each(bool converts) const {
    const size_t n = call_.operands.size();
    SPMD_ASSIGN_OR_RETURN(Literals real, Run(std::vector<bool>(n, false), converts));
    SPMD_ASSIGN_OR_RETURN(Literals imaginary, Run(std::vector<bool>(n, true), converts));
    for (size_t k = 0; k < real.size(); ++k) {
      real[k] = FromParts(call_.results[k], std::move(real[k]), std::move(imaginary[k]));
    }
    return real;
  }

  // (a + ib)(c + id) = ac - bd + i(ad + bc).
  absl::StatusOr<Literals> Product() const {
    std::vector<Literals> of;
    for (const auto& [first, second] :
         {std::pair(false, false), {true, true}, {false, true}, {true, false}}) {
      std::vector<bool> imaginary(call_.operands.size(), false);
      if (imaginary.size() < 2) return call_.Unknown();
      imaginary[0] = first;
      imaginary[1] = second;
      SPMD_ASSIGN_OR_RETURN(Literals made, Run(imaginary, /*converts=*/true));
      of.push_back(std::move(made));
    }
    Literal real = std::move(of[0][0]), imaginary = std::move(of[2][0]);
    for (size_t i = 0; i < real.data.size(); ++i) {
      real.data[i] -= of[1][0].data[i];
      imaginary.data[i] += of[3][0].data[i];
    }
    return One(FromParts(call_.results[0], std::move(real), std::move(imaginary)));
  }

 private:
  const ComplexCall& call_;
  std::vector<TensorType> types_;
};

}  // namespace

absl::Status ComplexCall::Unknown() const {
  return absl::UnimplementedError(
      absl::StrCat("interpreter: it does not know '", op, "' of complex numbers"));
}

absl::StatusOr<std::vector<Literal>> InterpretComplex(const ComplexCall& call) {
  const OpArgs args(call.op, call.operands, call.groups, call.attributes, call.results);
  const auto checked = [&](absl::StatusOr<Literals> made) {
    return args.status().ok() ? std::move(made) : absl::StatusOr<Literals>(args.status());
  };
  const InParts parts(call);
  const bool has_bias = call.operands.size() > 2 && call.operands[2] != nullptr;
  if (const auto* row = FindRow(absl::Span<const ComplexRow>(kElementwise), call.op)) {
    return checked(Elementwise(*row, args));
  }
  if (call.op == "aten::view_as_real") return AsReal(args);
  if (call.op == "aten::view_as_complex") return AsComplex(args);
  if (call.op == "spmd::full") return checked(ComplexFull(args));
  if (IsOneOf(kArithmetic, call.op)) return parts.Each(/*converts=*/true);
  if (IsOneOf(kMoving, call.op)) return parts.Each(/*converts=*/false);
  if (IsOneOf(kProducts, call.op) && !has_bias) return parts.Product();
  return call.Unknown();
}

}  // namespace spmd::reference
