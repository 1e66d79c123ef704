// SPDX-License-Identifier: Apache-2.0
// What one device has to do for one call, and how hardware runs it.
//
//   aten::mm of tiles 256×1000, 1000×512   kProduct, 2·256·1024·512 FLOPs where columns are padded
//                                          to 128
//   spmd::conv of 8×3×224×224, 64×3×7×7    kProduct: 49 products of 8·112·112 × 3 and 3 × 64, whose
//                                          3 and 64 are padded to 128
//   aten::add.Tensor                       kPointwise: fused with its neighbours
//   aten::sum                              kReduction: fused with what it reads
//   aten::_softmax                         kNormalisation: reads its operands twice, then fused
//   with
//                                          what reads its result
//   aten::view                             kView: nothing
//   aten::index_select                     kOther: a kernel of its own
#pragma once

#include <cstdint>

#include "csrc/machine/machine.h"
#include "csrc/program/program.h"

namespace spmd::timeline {

enum class CallKind : uint8_t {
  kProduct,    // sums products of two tensors on the matrix unit
  kPointwise,  // every element of a result depends on one element of each operand
  kReduction,  // reads its operands once; its results are complete only at the end
  // Every element depends on a whole dimension: one pass reads it, a second one is point-wise.
  kNormalisation,
  kView,      // no work: its operand seen in another form
  kCreation,  // reads no tensor and is made where it is used
  kOther,     // moves elements; neither fused nor free
};

struct Work {
  CallKind kind = CallKind::kOther;
  double flops = 0;         // of a product: a multiplication and an addition are two
  double padded_flops = 0;  // the same with the rows and columns that the matrix unit is padded to
  int64_t shares = 1;       // over how many devices the call's work is divided
};

// Requires: the instruction is a call of a verified program.
Work WorkOf(const program::Program& program, const program::Instruction& call,
            const machine::Machine& machine);

}  // namespace spmd::timeline
