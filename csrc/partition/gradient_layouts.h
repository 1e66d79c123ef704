// SPDX-License-Identifier: Apache-2.0
// The layouts in which gradients leave a program.
//
// An output without `becomes` may leave in any layout. If a backward pass computes it, what follows
// is most likely the update of a parameter of its type, in another program: of an optimizer that
// reads a number first, or after a norm that the script has read. The gradient of a leaf is
// annotated with the leaf's mark. Any other one (torch.autograd.grad) leaves in a layout of the
// graph's inputs of this type where that sends no more bytes than to leave it as it is made:
//
//   %w: f32[64,32] @m {y},{x}
//   %dw: f32[64,32] task(1), made as {y},{} unreduced(sum){x}
//   return %dw          {y},{x} by a reduce_scatter, not {y},{} by an all_reduce of twice the bytes
//
// Which input is the parameter is not known. If the inputs of the type are sharded over different
// axes, or over none, the output has no preference.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "csrc/ir/graph.h"
#include "csrc/sharding/sharding.h"

namespace spmd::partition {

class GradientLayouts {
 public:
  // Requires: every value of `graph` is annotated. Keeps a reference to it.
  explicit GradientLayouts(const ir::Graph& graph);

  // The layouts of the inputs that `output` may be a gradient of, each once; empty if it is none,
  // or if nothing is known of them on `grid`.
  absl::Span<const Sharding> Of(const ir::Output& output, int grid) const;
  // The reduced layout in which a free output leaves that is there as `made`.
  Sharding Leaving(const ir::Output& output, const Sharding& made, int grid) const;

 private:
  struct Wish {
    int grid = 0;
    std::vector<Sharding> shardings;
  };
  const ir::Graph& graph_;
  std::vector<Wish> wishes_;
  std::vector<int> wish_of_;  // by value: index into wishes_, or -1
};

}  // namespace spmd::partition
