// SPDX-License-Identifier: Apache-2.0
// Facts read off a program: liveness, peak bytes, traffic.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "csrc/program/program.h"

namespace spmd::program {

// Inserts kFree after the last use of every value that is not an output and not a non-donated
// input.
void InsertFrees(Program& program);

struct LiveValue {
  ValueId value;
  int64_t bytes;  // per device
};
struct MemoryReport {
  int64_t peak_bytes = 0;       // per device, of the fullest one; inputs included
  int instruction = -1;         // where the peak is
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
  int64_t count;          // operands merged into it
  int64_t payload_bytes;  // of the results, per device
  // Sent per device: AG out·(n−1)/n, RS out·(n−1), AR 2·out·(n−1)/n, A2A out·(n−1)/n, exchange and
  // permute: bytes not already held (worst device).
  int64_t wire_bytes;
  std::string source;  // the user's line, or ""
};
// slice and term move nothing and are left out.
std::vector<Traffic> CollectiveTraffic(const Program& program);

}  // namespace spmd::program
