// SPDX-License-Identifier: Apache-2.0
#include "csrc/reference/interpreter.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "csrc/reference/complex.h"
#include "csrc/reference/op_args.h"
#include "csrc/reference/tile_set.h"
#include "csrc/util/status.h"

namespace spmd::reference {
namespace {

// A binary floating-point format: the number of bits after the leading one, the exponent of the
// least normal number, the largest finite value, and the result of an overflow.
struct FloatFormat {
  int mantissa;
  int min_exponent;
  double max;
  double overflow;
};

double RoundToFormat(double value, const FloatFormat& format) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), format.min_exponent);
  const double unit = std::ldexp(1.0, exponent - format.mantissa);
  const double rounded = std::nearbyint(value / unit) * unit;  // to nearest even
  return std::abs(rounded) > format.max ? std::copysign(format.overflow, value) : rounded;
}

// Truncates towards zero and clamps to [low, high]; integers of the interpreter do not wrap around.
double RoundToInteger(double value, double low, double high) {
  return std::isnan(value) ? 0 : std::min(std::max(std::trunc(value), low), high);
}

absl::Status CheckLiteral(const ir::Graph& graph, ir::ValueId id, const Literal& literal) {
  if (!(literal.type == graph.type(id))) {
    return absl::InvalidArgumentError(absl::StrCat("interpreter: input '%", graph.value(id).name,
                                                   "' is ", graph.type(id).ToString(), ", got a ",
                                                   literal.type.ToString()));
  }
  const size_t parts = IsComplex(literal.type.dtype) ? literal.data.size() : 0;
  if (static_cast<int64_t>(literal.data.size()) != literal.type.NumElements() ||
      literal.imaginary.size() != parts) {
    return absl::InvalidArgumentError(absl::StrCat("interpreter: input '%", graph.value(id).name,
                                                   "' of ", literal.type.ToString(), " has ",
                                                   literal.data.size(), " elements"));
  }
  return absl::OkStatus();
}

absl::Status CheckTypes(absl::string_view op, absl::Span<const TensorType> types) {
  for (const TensorType& type : types) {
    if (type.NumElements() > kMaxLiteralElements) {
      return absl::InvalidArgumentError(
          absl::StrCat("interpreter: '", op, "' gives ", type.ToString(),
                       ", which is too large to interpret (more than 2^24 elements)"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Literals> RunKernel(const OpArgs& args) {
  if (const auto* row = FindRow(ElementwiseKernels(), args.op())) return RunElementwise(*row, args);
  for (const auto& family :
       {MatmulKernels, ReductionKernels, ViewKernels, SliceKernels, IndexingKernels, IndexKernels,
        SortKernels, BatchNormKernels, CreationKernels, ConvolutionKernels, AttentionKernels,
        OptimizerKernels}) {
    if (const auto* row = FindRow(family(), args.op())) return row->kernel(args);
  }
  return absl::UnimplementedError(
      absl::StrCat("interpreter: it does not know the op '", args.op(), "'"));
}

bool IsComplexCall(absl::Span<const Literal* const> operands,
                   absl::Span<const TensorType> results) {
  return std::any_of(operands.begin(), operands.end(),
                     [](const Literal* x) { return x != nullptr && IsComplex(x->type.dtype); }) ||
         std::any_of(results.begin(), results.end(),
                     [](const TensorType& type) { return IsComplex(type.dtype); });
}

// The value of a graph on each device along its manual axes, first axis major; one literal if there
// are none.
struct OwnLiterals {
  const Grid* grid = nullptr;
  AxisList axes;
  std::vector<Literal> literals;

  // Calls fn(position) for one device of each coordinates.
  template <typename Fn>
  absl::Status ForEach(Fn&& fn) const {
    for (int64_t i = 0; i < (axes.empty() ? 1 : grid->size(axes)); ++i) {
      SPMD_RETURN_IF_ERROR(fn(axes.empty() ? 0 : grid->WithCoordinate(0, axes, i)));
    }
    return absl::OkStatus();
  }
  const Literal& At(int64_t position) const {
    return literals[axes.empty() ? 0 : grid->Coordinate(position, axes)];
  }
};

OwnLiterals NoLiterals(const ir::Graph& graph, ir::ValueId id) {
  const ir::Value& value = graph.value(id);
  if (value.manual == 0) return {};
  return {&graph.grid(value.manual_grid), AxesIn(value.manual), {}};
}

// Calls visit(index in the part, index in the whole) for each element of the box of `whole`.
template <typename Visit>
void ForPart(const Box& box, const Dims& whole, const Visit& visit) {
  for (int64_t i = 0, count = NumElements(box); i < count; ++i) {
    int64_t rest = i, at = 0, stride = 1;
    for (size_t d = box.size(); d-- > 0;) {
      at += (box[d].begin + rest % box[d].size()) * stride;
      rest /= box[d].size();
      stride *= whole[d];
    }
    visit(i, at);
  }
}

void RunEntry(const ir::Border& border, const GridPtr& grid, const TensorType& type,
              const OwnLiterals& from, OwnLiterals& to) {
  const bool part = type.NumElements() > 0;
  (void)to.ForEach([&](int64_t position) {
    const Literal& whole = from.At(position);
    Literal own{type, std::vector<double>(type.NumElements())};
    if (IsComplex(type.dtype)) own.imaginary.resize(own.data.size());
    if (part) {
      const Layout layout(grid, border.sharding, whole.type.dims);
      ForPart(layout.BoxAt(position), whole.type.dims, [&](int64_t i, int64_t at) {
        own.data[i] = whole.data[at];
        if (!own.imaginary.empty()) own.imaginary[i] = whole.imaginary[at];
      });
    }
    to.literals.push_back(std::move(own));
    return absl::OkStatus();
  });
}

void RunExit(const ir::Border& border, const GridPtr& grid, const TensorType& type,
             const OwnLiterals& from, OwnLiterals& to) {
  const Layout layout(grid, border.sharding, type.dims);
  (void)to.ForEach([&](int64_t first) {
    Terms terms;
    const int64_t count = grid->size(border.sharding.unreduced);
    terms.kind = border.sharding.reduce_kind;
    terms.terms.assign(count, {type, std::vector<double>(type.NumElements())});
    for (Literal& term : terms.terms) {
      if (IsComplex(type.dtype)) term.imaginary.resize(term.data.size());
    }
    for (int64_t tile = 0; type.NumElements() > 0 && tile < layout.num_tiles(); ++tile) {
      // The device of this tile whose other coordinates are those of `first`.
      int64_t position = first;
      const int64_t holder = layout.FirstPositionOf(tile);
      for (const AxisId axis : AxesIn(border.axes())) {
        const AxisList one = {axis};
        position = grid->WithCoordinate(position, one, grid->Coordinate(holder, axis));
      }
      const Literal& own = from.At(position);
      Literal& term = terms.terms[layout.TermOfTile(tile)];
      ForPart(layout.BoxOfTile(tile), type.dims, [&](int64_t i, int64_t at) {
        term.data[at] = own.data[i];
        if (!term.imaginary.empty()) term.imaginary[at] = own.imaginary[i];
      });
    }
    to.literals.push_back(Reduced(terms));
    return absl::OkStatus();
  });
}

// Returns an error where the op has another number of results than the graph declares.
absl::Status CheckCount(const OpArgs& args, size_t made, size_t declared) {
  if (made == declared) return absl::OkStatus();
  return args.Error(absl::StrCat("gives ", made, " results, the graph says ", declared));
}

}  // namespace

double RoundTo(DType dtype, double value) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  switch (dtype) {
    case DType::kBool:
      return value != 0;
    case DType::kU8:
      return RoundToInteger(value, 0, 255);
    case DType::kI8:
      return RoundToInteger(value, -128, 127);
    case DType::kU16:
      return RoundToInteger(value, 0, 65535);
    case DType::kI16:
      return RoundToInteger(value, -32768, 32767);
    case DType::kU32:
      return RoundToInteger(value, 0, 4294967295.0);
    case DType::kI32:
      return RoundToInteger(value, -2147483648.0, 2147483647.0);
    case DType::kU64:
      return RoundToInteger(value, 0, 18446744073709551615.0);
    case DType::kI64:
      return RoundToInteger(value, -9223372036854775808.0, 9223372036854775807.0);
    case DType::kF8E4M3FN:
      return RoundToFormat(value, {3, -6, 448, kNan});
    case DType::kF8E5M2:
      return RoundToFormat(value, {2, -14, 57344, kInf});
    case DType::kF16:
    case DType::kC32:
      return RoundToFormat(value, {10, -14, 65504, kInf});
    case DType::kBF16:
      return RoundToFormat(value, {7, -126, 0x1.fep127, kInf});
    case DType::kF32:
    case DType::kC64:
      return static_cast<float>(value);
    default:
      return value;
  }
}

Literal SampleLiteral(const TensorType& type, uint64_t seed) {
  Literal literal{type, std::vector<double>(type.NumElements())};
  if (IsComplex(type.dtype)) {
    literal.imaginary = SampleLiteral({DType::kF64, type.dims}, seed + 5).data;
    for (double& part : literal.imaginary) part = RoundTo(type.dtype, part);
  }
  // A congruence modulo a prime: it is easy to write in another language and has no short period.
  constexpr uint64_t kPrime = 1009;
  for (size_t i = 0; i < literal.data.size(); ++i) {
    const uint64_t draw = (i * 389 + seed * 211 + i * i % 17 + 7) % kPrime;
    double x = static_cast<double>(draw) * 2 / kPrime - 1;
    if (type.dtype == DType::kBool) x = draw % 2;
    if (IsIntegral(type.dtype, /*include_bool=*/false)) x = draw % 4;
    literal.data[i] = RoundTo(type.dtype, x);
  }
  return literal;
}

absl::StatusOr<Attributes> WithScalars(const Attributes& attributes,
                                       absl::Span<const ir::ScalarKind> kinds,
                                       absl::Span<const double> values) {
  Attributes resolved;
  for (const auto& [name, attr] : attributes) {
    const auto* scalar = std::get_if<RuntimeScalar>(&attr);
    if (scalar == nullptr) {
      resolved.Set(name, attr);
      continue;
    }
    const size_t slot = static_cast<size_t>(scalar->slot);
    if (slot >= values.size() || slot >= kinds.size()) {
      return absl::InvalidArgumentError(absl::StrCat("interpreter: attribute ", name, "=",
                                                     AttrToString(attr), ", but there are ",
                                                     values.size(), " run-time scalars"));
    }
    switch (kinds[slot]) {
      case ir::ScalarKind::kBool:
        resolved.Set(name, values[slot] != 0);
        break;
      case ir::ScalarKind::kInt:
        resolved.Set(name, static_cast<int64_t>(values[slot]));
        break;
      default:
        resolved.Set(name, values[slot]);
    }
  }
  return resolved;
}

absl::Status CheckSize(const ir::Graph& graph) {
  double elements = 0;
  for (ir::ValueId v = 0; v < graph.num_values(); ++v) {
    elements += static_cast<double>(graph.type(v).NumElements());
  }
  if (elements <= kMaxLiteralElements) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("interpreter: the graph's values have ", elements,
                   " elements, which is too large to interpret (more than 2^24)"));
}

absl::StatusOr<std::vector<Literal>> InterpretOp(absl::string_view op,
                                                 absl::Span<const Literal* const> operands,
                                                 absl::Span<const ir::OperandGroup> groups,
                                                 const Attributes& attributes,
                                                 absl::Span<const TensorType> results) {
  SPMD_RETURN_IF_ERROR(CheckTypes(op, results));
  const OpArgs args(op, operands, groups, attributes, results);
  absl::StatusOr<Literals> made =
      IsComplexCall(operands, results)
          ? InterpretComplex({op, operands, groups, attributes, results})
          : RunKernel(args);
  // A bad attribute is reported first, since it causes the other errors.
  SPMD_RETURN_IF_ERROR(args.status());
  if (!made.ok()) return made;
  SPMD_RETURN_IF_ERROR(CheckCount(args, made->size(), results.size()));
  for (Literal& literal : *made) {
    for (double& element : literal.data) element = RoundTo(literal.type.dtype, element);
    for (double& element : literal.imaginary) element = RoundTo(literal.type.dtype, element);
  }
  return made;
}

absl::StatusOr<std::vector<Literal>> Interpret(const ir::Graph& graph,
                                               absl::Span<const Literal> inputs,
                                               absl::Span<const double> scalars) {
  if (inputs.size() != graph.inputs().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "interpreter: the graph has ", graph.inputs().size(), " inputs, got ", inputs.size()));
  }
  SPMD_RETURN_IF_ERROR(CheckSize(graph));
  std::vector<OwnLiterals> values(graph.num_values());
  for (size_t k = 0; k < inputs.size(); ++k) {
    const ir::ValueId id = graph.inputs()[k];
    SPMD_RETURN_IF_ERROR(CheckLiteral(graph, id, inputs[k]));
    values[id] = NoLiterals(graph, id);
    const int64_t devices = values[id].axes.empty() ? 1 : values[id].grid->size(values[id].axes);
    values[id].literals.assign(devices, inputs[k]);
  }
  for (const ir::Node& node : graph.nodes()) {
    SPMD_ASSIGN_OR_RETURN(const Attributes attributes,
                          WithScalars(node.attributes, graph.scalars(), scalars));
    std::vector<TensorType> types;
    for (int k = 0; k < node.num_results; ++k) {
      types.push_back(graph.type(node.first_result + k));
      values[node.first_result + k] = NoLiterals(graph, node.first_result + k);
    }
    if (node.num_results == 0) continue;
    if (node.border != nullptr) {
      (node.border->enters ? RunEntry : RunExit)(*node.border, graph.grids()[node.border->grid],
                                                 types[0], values[node.operands[0]],
                                                 values[node.first_result]);
      continue;
    }
    SPMD_RETURN_IF_ERROR(values[node.first_result].ForEach([&](int64_t position) -> absl::Status {
      std::vector<const Literal*> operands;
      for (ir::ValueId id : node.operands) {
        operands.push_back(id == ir::kNoValue ? nullptr : &values[id].At(position));
      }
      SPMD_ASSIGN_OR_RETURN(Literals results,
                            InterpretOp(node.op, operands, node.groups, attributes, types));
      for (int k = 0; k < node.num_results; ++k) {
        values[node.first_result + k].literals.push_back(std::move(results[k]));
      }
      return absl::OkStatus();
    }));
  }
  std::vector<Literal> outputs;
  for (const ir::Output& output : graph.outputs()) {
    outputs.push_back(Stacked(values[output.value].literals));
  }
  return outputs;
}

}  // namespace spmd::reference
