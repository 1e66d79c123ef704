// SPDX-License-Identifier: Apache-2.0
// The arguments that a kernel of the interpreter sees, and the tables of kernels. Private to the
// interpreter_*.cc files.
//
// Kernels run on whatever a text file says, so they check what they index with: operand() checks
// the rank, Make() compares a result with its declared type, and reading an attribute of the wrong
// kind leaves an error in status() rather than crash.
#pragma once

#include <complex>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "csrc/ir/attributes.h"
#include "csrc/reference/interpreter.h"
#include "csrc/util/dims.h"
#include "csrc/util/status.h"

namespace spmd::reference {

class OpArgs {
 public:
  OpArgs(absl::string_view op, absl::Span<const Literal* const> operands,
         absl::Span<const ir::OperandGroup> groups, const Attributes& attributes,
         absl::Span<const TensorType> results)
      : op_(op), operands_(operands), groups_(groups), attributes_(attributes), results_(results) {}

  absl::string_view op() const { return op_; }
  int num_operands() const { return static_cast<int>(operands_.size()); }
  absl::Span<const ir::OperandGroup> groups() const { return groups_; }
  // Null when absent.
  const Literal* optional(int k) const { return k < num_operands() ? operands_[k] : nullptr; }
  // Errors: the operand is absent, or does not have `rank`.
  absl::StatusOr<const Literal*> operand(int k) const;
  absl::StatusOr<const Literal*> operand(int k, int rank) const;
  DType result_dtype(int k) const {
    return k < static_cast<int>(results_.size()) ? results_[k].dtype : DType::kF32;
  }

  // Result k, filled with zeros.
  // Errors: the graph declares other dims or has no such result.
  absl::StatusOr<Literal> Make(int k, absl::Span<const int64_t> dims) const;
  // Result k as it is declared, for a result that the output mask leaves out.
  // Errors: no such result.
  absl::StatusOr<Literal> Blank(int k) const;
  // Errors: the loops of a kernel would visit more points than the interpreter allows.
  absl::Status CheckWork(double points) const;

  // Attributes. One that is missing without a fallback, or has another kind, sets status().
  int64_t Int(absl::string_view name) const;
  int64_t IntOr(absl::string_view name, int64_t fallback) const;
  double Double(absl::string_view name) const;
  double DoubleOr(absl::string_view name, double fallback) const;
  std::complex<double> Complex(absl::string_view name) const;  // reads a number of any kind
  bool BoolOr(absl::string_view name, bool fallback) const;
  std::string StringOr(absl::string_view name, absl::string_view fallback) const;
  std::vector<int64_t> Ints(absl::string_view name) const;  // reads an integer as a list of one
  // Where a tile begins; 0 if it is missing. Numbers that are no position (IsPosition) set
  // status().
  int64_t Offset(absl::string_view name) const;
  std::vector<int64_t> Offsets(absl::string_view name) const;
  std::vector<bool> Bools(absl::string_view name) const;
  bool Has(absl::string_view name) const { return !attributes_.IsNone(name); }
  // A dimension of a tensor of `rank`; negative ones count from the end.
  // Errors: out of range.
  absl::StatusOr<int> Dim(absl::string_view name, int rank) const;
  absl::StatusOr<int> Dim(int64_t dim, int rank) const;

  const absl::Status& status() const { return status_; }
  absl::Status Error(absl::string_view message) const;

 private:
  template <typename T>
  std::optional<T> Get(absl::string_view name, const char* kind) const;
  std::vector<int64_t> Positions(absl::string_view name, std::vector<int64_t> list) const;

  absl::string_view op_;
  absl::Span<const Literal* const> operands_;
  absl::Span<const ir::OperandGroup> groups_;
  const Attributes& attributes_;
  absl::Span<const TensorType> results_;
  mutable absl::Status status_;  // the first error of an attribute
};

using Literals = std::vector<Literal>;
using Kernel = absl::StatusOr<Literals> (*)(const OpArgs&);

struct KernelRow {
  const char* op;
  Kernel kernel;
};

template <typename Row, size_t n>
constexpr bool SortedByOp(const Row (&rows)[n]) {
  for (size_t i = 1; i < n; ++i) {
    if (std::string_view(rows[i - 1].op) >= std::string_view(rows[i].op)) return false;
  }
  return true;
}

template <typename Row>
const Row* FindRow(absl::Span<const Row> rows, absl::string_view op) {
  for (const Row& row : rows) {
    if (op == row.op) return &row;
  }
  return nullptr;
}

// The families of kernels. An element-wise op is a function of one element of each operand.
struct ElementwiseRow {
  const char* op;
  int operands;
  double (*function)(const double* x, const OpArgs& args);
};
absl::Span<const ElementwiseRow> ElementwiseKernels();
absl::StatusOr<Literals> RunElementwise(const ElementwiseRow& row, const OpArgs& args);
absl::Span<const KernelRow> MatmulKernels();
absl::Span<const KernelRow> ReductionKernels();
absl::Span<const KernelRow> ViewKernels();
absl::Span<const KernelRow> SliceKernels();
absl::Span<const KernelRow> IndexingKernels();
absl::Span<const KernelRow> IndexKernels();
absl::Span<const KernelRow> SortKernels();
absl::Span<const KernelRow> BatchNormKernels();
absl::Span<const KernelRow> CreationKernels();
absl::Span<const KernelRow> ConvolutionKernels();
absl::Span<const KernelRow> AttentionKernels();
absl::Span<const KernelRow> OptimizerKernels();

Literal Zeros(const TensorType& type);

// Index arithmetic.
Dims Unravel(int64_t linear, absl::Span<const int64_t> dims);
int64_t Ravel(absl::Span<const int64_t> index, absl::Span<const int64_t> dims);
// The index into a tensor of `dims` that broadcasts to `index`, both aligned at the right.
int64_t RavelBroadcast(absl::Span<const int64_t> index, absl::Span<const int64_t> dims);
// The dims that all of `shapes` broadcast to; nullopt when they do not.
std::optional<Dims> BroadcastDims(absl::Span<const Dims> shapes);
// Result k of `dims` with out[i] = in[source(i)] for every index i; `source` returns a linear
// index, or -1 for a zero.
absl::StatusOr<Literal> Gather(const OpArgs& args, const Literal& in,
                               absl::Span<const int64_t> dims,
                               const std::function<int64_t(const Dims&)>& source);

// Result k as a sum of products over named indices: "mk,kn->mn". '.' stands for leading dimensions,
// the same in all tensors that have it, aligned at the right where ranks differ.
// Errors: an index with two sizes; a rank that does not fit.
absl::StatusOr<Literal> Contract(const OpArgs& args, int k, absl::string_view spec,
                                 absl::Span<const Literal* const> operands);

// `in` with a dimension of size 1 inserted at `dim`.
Literal WithOne(const Literal& in, int dim);

// Returns the single result of a kernel.
inline absl::StatusOr<Literals> One(absl::StatusOr<Literal> literal) {
  if (!literal.ok()) return literal.status();
  Literals all;
  all.push_back(*std::move(literal));
  return all;
}

}  // namespace spmd::reference
