// SPDX-License-Identifier: Apache-2.0
// How much memory graphs and programs take (see csrc/util/heap_bytes.h).
#pragma once

#include "csrc/ir/graph.h"
#include "csrc/program/program.h"
#include "csrc/util/heap_bytes.h"

namespace spmd {

// Counts an expression's tree wherever it occurs, although copies share it.
int64_t HeapBytes(const Expr& expr);
int64_t HeapBytes(const Attributes& attributes);
inline int64_t HeapBytes(const TensorType& type) { return HeapBytes(type.dims); }
inline int64_t HeapBytes(const DimSharding& dim) { return HeapBytes(dim.axes); }
inline int64_t HeapBytes(const Sharding& sharding) {
  return HeapBytes(sharding.dims) + HeapBytes(sharding.unreduced) + HeapBytes(sharding.manual);
}

namespace ir {
int64_t HeapBytes(const Graph& graph);
}  // namespace ir

namespace program {
int64_t HeapBytes(const Program& program);
}  // namespace program

}  // namespace spmd
