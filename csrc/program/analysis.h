// SPDX-License-Identifier: Apache-2.0
// Facts derived from a program: liveness, peak bytes, traffic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/program/program.h"

namespace spmd::program {

// Inserts kFree after the last use of every value, except outputs and inputs that are not donated.
void InsertFrees(Program& program);

// By value: the bytes that a device holds, of the fullest device.
std::vector<int64_t> HeldBytes(const Program& program);

struct LiveValue {
  ValueId value;
  int64_t bytes;  // per device
};
struct MemoryReport {
  int64_t peak_bytes = 0;       // on the fullest device; inputs included
  int instruction = -1;         // the instruction at which the peak is reached
  std::vector<LiveValue> live;  // at the peak, largest first
  int64_t input_bytes = 0;
  int64_t output_bytes = 0;
};
MemoryReport PeakMemory(const Program& program);

// One row per collective instruction, in order.
struct Traffic {
  int instruction;
  OpCode code;
  AxisList axes;
  int64_t group_size;
  int64_t count;          // number of operands merged into it
  int64_t payload_bytes;  // bytes of the results, per device
  // Bytes sent per device, by the formulas of csrc/cost/price.h: those that plans are priced by.
  int64_t wire_bytes;
  std::string source;  // the user's line, or ""
};
// The traffic of every collective. A slice and a term move nothing and have no row.
std::vector<Traffic> CollectiveTraffic(const Program& program);

}  // namespace spmd::program
