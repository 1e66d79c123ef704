// SPDX-License-Identifier: Apache-2.0
// Coalescing: rewrites a program whose devices all share one place so that adjacent tiles become
// one tile and each op runs once.
//
// Values have global types, and each instruction computes its value whatever the sizes of the axes
// are. Where all devices share a place, every axis may therefore have size 1:
//
//   mesh @m [data=8]                                          mesh @m [] devices=[0]
//   %0: f32[64,9] @m {data},{} = call aten::mm(%x, %w)          %0: f32[64,9] @m {},{} = call …
//   %1: f32[8,9] @m {},{} unreduced(sum){data} = call …         %1: f32[8,9] @m {},{} = call …
//   %2: f32[8,9] @m {},{} = all_reduce(%1) {data}               %2: f32[8,9] @m {},{} = permute(%1)
//
// Eight products of 8 rows become one of 64, eight partial sums of a gradient become one product
// that sums them, and moves become copies that share memory, except for the rows outside an image
// that windows fill; a convolution then pads the image itself, as the user's did.
//
// CoalesceKeeping keeps some sub-axes: each group of devices with the same coordinates along these
// becomes one device.
#pragma once

#include "csrc/program/program.h"

namespace spmd::program {

// The same values, computed by the same instructions on one device; exchanges that only pad are
// dropped. Sums are added up in another order, so results may differ in the last bits.
// Requires: Verify(program).ok(). The result then verifies too.
Program Coalesce(const Program& program);

// The same on the devices of the program's one grid, where values are sharded over the axes in
// `kept` only.
// Requires: as AxesForTurns (csrc/program/one_place/turns.h). The result may fail Verify where a
// move does not mean the same for groups as for devices.
Program CoalesceKeeping(const Program& program, AxisMask kept);

}  // namespace spmd::program
