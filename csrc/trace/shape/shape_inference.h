// SPDX-License-Identifier: Apache-2.0
// Infers the metadata of an op's results without computing them: a cache in front of PyTorch's Meta
// kernels.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "csrc/trace/op/op_info.h"
#include "csrc/trace/op/words.h"
#include "csrc/trace/shape/cpu_dtype_probe.h"
#include "csrc/util/dims.h"

namespace spmd::trace {

struct TensorMeta {
  bool defined = true;
  at::ScalarType dtype = at::kFloat;
  Dims sizes;
  Dims strides;
  int64_t offset = 0;
  // Identifies metadata that recordings share: different ones have different serials; 0 for none.
  // Not compared.
  uint64_t serial = 0;
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

// The single copy of `meta` that all recordings share, with a serial.
// Requires: the session's lock is held.
TensorMetaPtr Shared(const TensorMeta& meta);

// The results, flattened in order; counts[i] tensors belong to result i.
struct Inference {
  // False if PyTorch cannot infer the results without data, or if it or the CPU's kernel refuses
  // the call.
  bool ok = false;
  std::vector<TensorMeta> tensors;
  std::vector<int> counts;
};

class ShapeCache {
 public:
  // Infers the results of `op` for `args`, which follow its schema and may contain tensors of any
  // device. May take the GIL. The answer stays valid until thousands of others have been asked for.
  const Inference& Infer(const OpInfo& op, const std::vector<c10::IValue>& args);
  // Throws: PyTorch's error for a call that has no answer. The call is made again for this, since
  // an error of Python's can be thrown only once.
  [[noreturn]] static void Refuse(const OpInfo& op, const std::vector<c10::IValue>& args);

 private:
  using Answers = absl::flat_hash_map<Words, std::unique_ptr<Inference>>;
  // The answers to the last calls, and those to the calls before them, which are forgotten when
  // `recent_` is full. So an answer keeps its address while as many others are asked for.
  Answers recent_, older_;
  CpuAnswers cpu_;
};

}  // namespace spmd::trace
