// SPDX-License-Identifier: Apache-2.0
// Attention and its gradient, one (batch, head, query) row at a time:
//   query [b,h,s,d], key [b,k,t,d], value [b,k,t,e], h a multiple of k → out [b,h,s,e], lse [b,h,s]
#include <algorithm>
#include <cmath>
#include <limits>

#include "csrc/reference/op_args.h"

namespace spmd::reference {
namespace {

class Attention {
 public:
  // Reads query, key and value from the operands at `first`, and the mask from operand `mask`.
  static absl::StatusOr<Attention> Read(const OpArgs& args, int first, int mask) {
    Attention a;
    SPMD_ASSIGN_OR_RETURN(a.query, args.operand(first, 4));
    SPMD_ASSIGN_OR_RETURN(a.key, args.operand(first + 1, 4));
    SPMD_ASSIGN_OR_RETURN(a.value, args.operand(first + 2, 4));
    a.mask = args.optional(mask);
    const Dims &q = a.query->type.dims, &k = a.key->type.dims, &v = a.value->type.dims;
    if (q[0] != k[0] || q[0] != v[0] || k[1] != v[1] || k[2] != v[2] || q[3] != k[3] || k[1] == 0 ||
        q[1] % k[1] != 0) {
      return args.Error("query, key and value do not fit");
    }
    if (a.mask != nullptr) {
      const Dims scores = {q[0], q[1], q[2], k[2]};
      const auto dims = BroadcastDims({scores, a.mask->type.dims});
      if (!dims.has_value() || *dims != scores) return args.Error("the mask does not fit");
    }
    a.causal = args.BoolOr("is_causal", false);
    a.scale = args.DoubleOr("scale", 1 / std::sqrt(static_cast<double>(q[3])));
    return a;
  }

  int64_t keys() const { return key->type.dims[2]; }
  int64_t width() const { return query->type.dims[3]; }
  int64_t value_width() const { return value->type.dims[3]; }
  Dims RowDims() const {
    const Dims& q = query->type.dims;
    return {q[0], q[1], q[2]};
  }
  // The row number of key (or value) t for row `row` of the queries.
  int64_t KeyRow(int64_t row, int64_t t) const {
    const Dims index = Unravel(row, RowDims());
    const Dims& k = key->type.dims;
    const int64_t head = index[1] / (query->type.dims[1] / k[1]);
    return (index[0] * k[1] + head) * k[2] + t;
  }

  // The scaled and masked scores of one row.
  std::vector<double> Scores(int64_t row) const {
    constexpr double kNever = -std::numeric_limits<double>::infinity();
    const Dims index = Unravel(row, RowDims());
    std::vector<double> scores(keys());
    for (int64_t t = 0; t < keys(); ++t) {
      double dot = 0;
      for (int64_t d = 0; d < width(); ++d) {
        dot += query->data[row * width() + d] * key->data[KeyRow(row, t) * width() + d];
      }
      scores[t] = dot * scale;
      if (causal && t > index[2]) scores[t] = kNever;
      if (mask == nullptr) continue;
      const double m =
          mask->data[RavelBroadcast({index[0], index[1], index[2], t}, mask->type.dims)];
      if (mask->type.dtype != DType::kBool) {
        scores[t] += m;
      } else if (m == 0) {
        scores[t] = kNever;
      }
    }
    return scores;
  }

  // Turns scores into probabilities in place and returns the log of their sum. If all are masked,
  // the probabilities are zero and the log is -inf.
  static double Softmax(std::vector<double>& scores) {
    double top = -std::numeric_limits<double>::infinity(), sum = 0;
    for (double s : scores) top = std::max(top, s);
    if (std::isinf(top)) {
      std::fill(scores.begin(), scores.end(), 0);
      return top;
    }
    for (double& s : scores) sum += s = std::exp(s - top);
    for (double& s : scores) s /= sum;
    return top + std::log(sum);
  }

  const Literal* query = nullptr;
  const Literal* key = nullptr;
  const Literal* value = nullptr;
  const Literal* mask = nullptr;
  bool causal = false;
  double scale = 1;
};

absl::StatusOr<Literals> Forward(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Attention a, Attention::Read(args, 0, 3));
  Dims dims = a.RowDims();
  SPMD_ASSIGN_OR_RETURN(Literal lse, args.Make(1, dims));
  dims.push_back(a.value_width());
  SPMD_ASSIGN_OR_RETURN(Literal out, args.Make(0, dims));
  const int64_t width = a.value_width();
  for (size_t row = 0; row < lse.data.size(); ++row) {
    std::vector<double> p = a.Scores(row);
    lse.data[row] = Attention::Softmax(p);
    for (int64_t t = 0; t < a.keys(); ++t) {
      for (int64_t d = 0; d < width; ++d) {
        out.data[row * width + d] += p[t] * a.value->data[a.KeyRow(row, t) * width + d];
      }
    }
  }
  return Literals{std::move(out), std::move(lse)};
}

// grad_out, query, key, value, out, logsumexp, mask → dq, dk, dv. Recomputes the probabilities from
// the logarithms of their sums, so that the gradients of a block of keys are a part of those of
// all.
absl::StatusOr<Literals> Backward(const OpArgs& args) {
  SPMD_ASSIGN_OR_RETURN(const Attention a, Attention::Read(args, 1, 6));
  SPMD_ASSIGN_OR_RETURN(const Literal* grad, args.operand(0, 4));
  SPMD_ASSIGN_OR_RETURN(const Literal* out, args.operand(4, 4));
  SPMD_ASSIGN_OR_RETURN(Literal dq, args.Make(0, a.query->type.dims));
  SPMD_ASSIGN_OR_RETURN(Literal dk, args.Make(1, a.key->type.dims));
  SPMD_ASSIGN_OR_RETURN(Literal dv, args.Make(2, a.value->type.dims));
  Dims expected = a.RowDims();
  const int64_t rows = NumElements(expected), width = a.width(), value_width = a.value_width();
  expected.push_back(value_width);
  if (grad->type.dims != expected || out->type.dims != expected) {
    return args.Error("the gradient or the result does not fit");
  }
  SPMD_ASSIGN_OR_RETURN(const Literal* lse, args.operand(5, 3));
  if (lse->type.dims != a.RowDims()) return args.Error("the logarithms of the sums do not fit");
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<double> p = a.Scores(row);
    // The sums may be over more keys than these.
    const double log = lse->data[row];
    for (double& s : p) s = std::isinf(log) ? 0 : std::exp(s - log);
    std::vector<double> dp(a.keys(), 0);
    double mean = 0;
    for (int64_t t = 0; t < a.keys(); ++t) {
      const int64_t at = a.KeyRow(row, t) * value_width;
      for (int64_t d = 0; d < value_width; ++d) {
        const double g = grad->data[row * value_width + d];
        dp[t] += g * a.value->data[at + d];
        dv.data[at + d] += p[t] * g;
      }
    }
    for (int64_t d = 0; d < value_width; ++d) {
      mean += grad->data[row * value_width + d] * out->data[row * value_width + d];
    }
    for (int64_t t = 0; t < a.keys(); ++t) {
      const double ds = p[t] * (dp[t] - mean) * a.scale;
      const int64_t at = a.KeyRow(row, t) * width;
      for (int64_t d = 0; d < width; ++d) {
        dq.data[row * width + d] += ds * a.key->data[at + d];
        dk.data[at + d] += ds * a.query->data[row * width + d];
      }
    }
  }
  return Literals{std::move(dq), std::move(dk), std::move(dv)};
}

constexpr KernelRow kAttentionKernels[] = {
    {"spmd::attention", Forward},
    {"spmd::attention_backward", Backward},
};
static_assert(SortedByOp(kAttentionKernels));

}  // namespace

absl::Span<const KernelRow> AttentionKernels() { return kAttentionKernels; }

}  // namespace spmd::reference
