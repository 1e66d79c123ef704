// SPDX-License-Identifier: Apache-2.0
// What is known of the layouts of pending values from the questions so far (`sharding_of`).
#pragma once

#include <cstddef>
#include <cstdint>

#include "csrc/trace/program/lower.h"
#include "csrc/trace/program/meshes.h"
#include "csrc/trace/program/program_cache.h"

namespace spmd::trace {

// Layouts that a plan gave values of the tape with this number. A question plans the records that
// no earlier one has planned, and among the last kPlannedAgain those behind which no unknown value
// is read. What earlier records made is taken in the layout that a question found, so that a
// question does not take longer where more is pending:
//   records  0 … 899       a question plans all of them
//   records  0 … 902       the next one plans those from 775 on, with the values before as given
//
// If no more records are pending than are planned again, every answer is what a plan of all would
// give now.
struct PendingLayouts {
  static constexpr int kPlannedAgain = 128;

  uint64_t tape = 0;
  ProgramOptions options;  // with which they were planned
  int64_t changes = 0;     // of the tape, at the last question
  int records = 0;         // planned so far
  size_t annotations = 0;  // of the tape, at the last question
  MeshSet meshes;          // the grids of the layouts
  Given values;            // as they were last planned
};

}  // namespace spmd::trace
