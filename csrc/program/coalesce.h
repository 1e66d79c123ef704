// SPDX-License-Identifier: Apache-2.0
// The program of one place: adjacent tiles as one tile, so that each op runs once.
//
// A value has a global type, and each instruction computes its value whatever the sizes of the
// axes are. Where all devices share a place, the sizes may as well be 1:
//
//   mesh @m [data=8]                                          mesh @m [] devices=[0]
//   %0: f32[64,9] @m {data},{} = call aten::mm(%x, %w)          %0: f32[64,9] @m {},{} = call …
//   %1: f32[8,9] @m {},{} unreduced(sum){data} = call …         %1: f32[8,9] @m {},{} = call …
//   %2: f32[8,9] @m {},{} = all_reduce(%1) {data}               %2: f32[8,9] @m {},{} = permute(%1)
//
// Eight products of 8 rows are one of 64, eight terms of a gradient are one product that sums them,
// and moves share what is there, but for the rows outside an image that windows are filled with; a
// convolution pads the image itself, as the user's did.
//
// Some sub-axes may be kept: then groups of devices with the same coordinates along them are one.
#pragma once

#include "csrc/program/program.h"

namespace spmd::program {

// The same values, made by the same instructions but for exchanges that only pad, on one device.
// Sums are made in another order: results may differ in the last bits. Requires:
// Verify(program).ok(). Then it holds of the result.
Program Coalesce(const Program& program);

// The same on the devices of the program's one grid, nothing being cut but by the axes in `kept`.
// Requires: as in AxesForTurns (csrc/program/turns.h). Verify may refuse the result, where a move
// does something else for groups than for devices.
Program CoalesceKeeping(const Program& program, AxisMask kept);

}  // namespace spmd::program
