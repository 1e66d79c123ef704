// SPDX-License-Identifier: Apache-2.0
// Metadata of an op's results without computing them: a cache in front of PyTorch's Meta kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/cpu_answers.h"
#include "csrc/trace/hash.h"
#include "csrc/trace/op_info.h"
#include "csrc/trace/tensor_impl.h"
#include "csrc/util/dims.h"

namespace spmd::trace {

struct TensorMeta {
  bool defined = true;
  at::ScalarType dtype = at::kFloat;
  Dims sizes;
  Dims strides;
  int64_t offset = 0;
  // Of those that recordings share: no two different ones have the same; 0: none. Not compared.
  uint64_t serial = 0;
  // Of the same, where anything is defined: as tensors have it.
  std::optional<TensorForm> form;
  static TensorMeta Of(const at::Tensor& t);
  static TensorMeta Contiguous(at::ScalarType dtype, at::IntArrayRef sizes);
  friend bool operator==(const TensorMeta& a, const TensorMeta& b) {
    return a.defined == b.defined && a.dtype == b.dtype && a.offset == b.offset &&
           a.sizes == b.sizes && a.strides == b.strides;
  }
  template <typename H>
  friend H AbslHashValue(H h, const TensorMeta& m) {
    return H::combine(std::move(h), m.defined, m.dtype, m.sizes, m.strides, m.offset);
  }
};
using TensorMetaPtr = std::shared_ptr<const TensorMeta>;

// The one that all who share equal metadata have, with a serial. Requires: the session's lock is
// held.
TensorMetaPtr Shared(const TensorMeta& meta);

// Results flattened, in order; counts[i] tensors belong to result i.
struct Inference {
  // False: PyTorch cannot say without data, or refuses, or so does the CPU's kernel.
  bool ok = false;
  std::vector<TensorMeta> tensors;
  std::vector<int> counts;
};

class ShapeCache {
 public:
  // `args` follow the schema of `op`; tensors of any device stand in them. May take the GIL. The
  // answer is there until thousands of others have been asked for.
  const Inference& Infer(const OpInfo& op, const std::vector<c10::IValue>& args);
  // Throws: what PyTorch says of a call that there is no answer for. It is asked anew, since an
  // error of Python's can be thrown once.
  [[noreturn]] static void Refuse(const OpInfo& op, const std::vector<c10::IValue>& args);

 private:
  using Answers = absl::flat_hash_map<Hash128, std::unique_ptr<Inference>>;
  // Of the last calls; when there are many, those that came before them are forgotten. So an answer
  // stays where it is while as many others are asked for.
  Answers recent_, older_;
  CpuAnswers cpu_;
};

}  // namespace spmd::trace
