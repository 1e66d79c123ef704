// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/timeline.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "csrc/program/analysis.h"
#include "csrc/timeline/collective.h"
#include "csrc/timeline/fusion.h"
#include "csrc/timeline/places.h"
#include "csrc/timeline/recomputed.h"
#include "csrc/timeline/work.h"
#include "csrc/util/status.h"

namespace spmd::timeline {
namespace {

using program::Instruction;
using program::OpCode;
using program::Program;
using program::ValueId;

class Scheduler {
 public:
  Scheduler(const Program& program, const machine::System& system, const Places& places)
      : program_(program),
        system_(system),
        places_(places),
        ready_(program.values.size(), 0),
        free_at_(1 + system.levels.size(), 0) {}

  Timeline Run() {
    timeline_.streams = {"compute"};
    for (const machine::Level& level : system_.levels) timeline_.streams.push_back(level.name);
    timeline_.peak_flops = system_.device.flops;
    for (const GridPtr& grid : program_.grids) {
      timeline_.devices = std::max(timeline_.devices, grid->num_devices());
    }
    const std::vector<Work> work = AllWork();
    const Fusion fusion = Fuse(program_, work);
    const std::vector<bool> recomputed = Recomputed(program_);
    const std::vector<program::Traffic> traffic = program::CollectiveTraffic(program_);
    auto collective = traffic.begin();
    for (size_t i = 0; i < program_.instructions.size(); ++i) {
      const Instruction& instruction = program_.instructions[i];
      if (instruction.code == OpCode::kFree) continue;
      Entry entry;
      entry.instruction = static_cast<int>(i);
      if (collective != traffic.end() && collective->instruction == entry.instruction) {
        Communicate(instruction, *collective++, entry);
      } else {
        entry.recomputed = recomputed[i];
        Compute(instruction, work[i], fusion.bytes[i], entry);
      }
      timeline_.seconds = std::max(timeline_.seconds, entry.start + entry.seconds);
      timeline_.entries.push_back(entry);
    }
    return std::move(timeline_);
  }

 private:
  std::vector<Work> AllWork() const {
    std::vector<Work> work;
    work.reserve(program_.instructions.size());
    for (const Instruction& i : program_.instructions) {
      work.push_back(i.code == OpCode::kCall ? WorkOf(program_, i, system_.device) : Work{});
    }
    return work;
  }

  double OperandsReady(const Instruction& instruction) const {
    double ready = 0;
    for (ValueId v : instruction.operands) {
      if (v != program::kNoValue) ready = std::max(ready, ready_[v]);
    }
    return ready;
  }

  void Finish(const Instruction& instruction, const Entry& entry) {
    for (ValueId v : instruction.results) ready_[v] = entry.start + entry.seconds;
  }

  void Compute(const Instruction& instruction, const Work& work, double bytes, Entry& entry) {
    const machine::Machine& device = system_.device;
    entry.flops = work.flops;
    entry.bytes = bytes;
    entry.seconds = std::max(work.padded_flops / (device.flops * system_.efficiency),
                             bytes / device.memory_bandwidth);
    // A view is there when its operand is; nothing waits for it.
    entry.start = OperandsReady(instruction);
    if (entry.seconds > 0) {
      entry.start = std::max(entry.start, free_at_[0]);
      free_at_[0] = entry.start + entry.seconds;
      timeline_.compute_seconds += entry.seconds;
    }
    Finish(instruction, entry);
    const double devices = static_cast<double>(timeline_.devices);
    timeline_.hardware_flops += work.flops * devices;
    if (!entry.recomputed) timeline_.model_flops += work.flops * static_cast<double>(work.shares);
  }

  void Communicate(const Instruction& instruction, const program::Traffic& traffic, Entry& entry) {
    const int grid = program_.values[instruction.results[0]].grid;
    const machine::Routes routes = places_.RoutesOf(grid, traffic.axes);
    entry.bytes = static_cast<double>(traffic.wire_bytes);
    entry.seconds = CollectiveSeconds(instruction.code, routes, entry.bytes);
    entry.start = std::max(OperandsReady(instruction), free_at_[0]);
    for (const machine::Route& route : routes) {
      entry.start = std::max(entry.start, free_at_[1 + route.level]);
    }
    for (const machine::Route& route : routes) {
      free_at_[1 + route.level] = entry.start + entry.seconds;
    }
    if (!routes.empty()) entry.stream = 1 + routes.front().level;
    Finish(instruction, entry);
  }

  const Program& program_;
  const machine::System& system_;
  const Places& places_;
  std::vector<double> ready_;    // by value: when it is there
  std::vector<double> free_at_;  // by stream
  Timeline timeline_;
};

}  // namespace

double Timeline::Utilisation(double flops) const {
  if (seconds == 0) return 0;
  return flops / (seconds * static_cast<double>(devices) * peak_flops);
}

std::string Timeline::ToString(const Program& program) const {
  std::string text;
  for (const std::string& axis : placement) absl::StrAppend(&text, axis, "\n");
  absl::StrAppendFormat(&text, "%12s %12s  %-8s %12s %12s\n", "start us", "us", "stream", "FLOPs",
                        "bytes");
  for (const Entry& entry : entries) {
    const Instruction& i = program.instructions[entry.instruction];
    absl::StrAppendFormat(
        &text, "%12.3f %12.3f  %-8s %12.6g %12.6g  %%%s = %s%s\n", entry.start * 1e6,
        entry.seconds * 1e6, streams[entry.stream], entry.flops, entry.bytes,
        i.results.empty() ? "" : program.values[i.results[0]].name,
        i.code == OpCode::kCall ? i.op : OpCodeName(i.code), entry.recomputed ? " again" : "");
  }
  absl::StrAppendFormat(&text, "%.3f us, %.3f us of it not hidden; MFU %.1f %%, HFU %.1f %%\n",
                        seconds * 1e6, exposed_seconds() * 1e6, 100 * mfu(), 100 * hfu());
  return text;
}

absl::StatusOr<Timeline> Predict(const Program& program, const machine::System& system) {
  SPMD_ASSIGN_OR_RETURN(const Places places, Places::Of(program, system));
  Timeline timeline = Scheduler(program, system, places).Run();
  timeline.placement = places.Describe();
  timeline.device_order = places.DeviceOrder();
  return timeline;
}

}  // namespace spmd::timeline
