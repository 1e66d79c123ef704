// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/system.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/machine/efficiency.h"
#include "csrc/machine/gpu.h"
#include "csrc/machine/tpu.h"
#include "csrc/util/status.h"

namespace spmd::machine {
namespace {

constexpr int64_t kGpusPerNode = 8;

System OfSlice(const TpuSlice& slice) {
  System system;
  system.name = slice.name;
  system.device = slice.machine;
  system.efficiency = FittedEfficiency(slice.generation);
  const double per_device = slice.link_rate / slice.devices_per_chip;
  for (size_t i = 0; i < slice.topology.size(); ++i) {
    if (slice.topology[i] == 1) continue;
    system.levels.push_back({std::string(1, static_cast<char>('x' + i)), slice.topology[i],
                             slice.wrap[i] ? Wiring::kRing : Wiring::kLine, per_device,
                             slice.machine.latency});
  }
  if (slice.devices_per_chip > 1) {
    // The cores of a chip copy through the memory that they share.
    system.levels.push_back({"core", slice.devices_per_chip, Wiring::kSwitch,
                             slice.machine.memory_bandwidth, slice.machine.latency});
  }
  return system;
}

// "8xh100", "8xanything": no TPU slice begins with a digit.
bool IsGpuCluster(absl::string_view name) {
  return !name.empty() && absl::ascii_isdigit(name.front()) && absl::StrContains(name, 'x');
}

absl::StatusOr<System> ParseGpus(absl::string_view name, int64_t gpus, absl::string_view model) {
  const std::string upper = absl::AsciiStrToUpper(model);
  const Machine* const gpu = FindGpu(upper);
  if (gpu == nullptr || gpu->name != upper) {
    return absl::InvalidArgumentError(absl::StrCat("machine '", name, "': there is no GPU '", model,
                                                   "'; known are ",
                                                   absl::StrJoin(GpuModels(), ", ")));
  }
  if (gpus < 1 || (gpus > kGpusPerNode && gpus % kGpusPerNode != 0)) {
    return absl::InvalidArgumentError(absl::StrCat("machine '", name, "': ", gpus,
                                                   " GPUs are neither in one node of up to ",
                                                   kGpusPerNode, " nor a multiple of that"));
  }
  System system;
  system.name = absl::StrCat(gpus, "x", absl::AsciiStrToLower(model));
  system.device = *gpu;
  system.device.name = system.name;
  system.efficiency = FittedEfficiency(gpu->name);
  if (gpus > kGpusPerNode) {
    system.levels.push_back(
        {"node", gpus / kGpusPerNode, Wiring::kSwitch, InfiniBandRate(*gpu), gpu->latency});
  }
  if (gpus > 1) {
    system.levels.push_back(
        {"gpu", std::min(gpus, kGpusPerNode), Wiring::kSwitch, gpu->link_bandwidth, gpu->latency});
  }
  return system;
}

}  // namespace

absl::string_view WiringName(Wiring wiring) {
  switch (wiring) {
    case Wiring::kRing:
      return "ring";
    case Wiring::kLine:
      return "line";
    case Wiring::kSwitch:
      return "switch";
  }
  return "";
}

int64_t System::num_devices() const {
  int64_t n = 1;
  for (const Level& level : levels) n *= level.size;
  return n;
}

std::string System::ToString() const {
  if (levels.empty()) return "one device";
  return absl::StrJoin(levels, " × ", [](std::string* out, const Level& level) {
    absl::StrAppend(out, level.name, " ", level.size, " ", WiringName(level.wiring));
  });
}

absl::StatusOr<System> ParseGpuCluster(absl::string_view name) {
  const size_t x = name.find('x');
  int64_t gpus = 0;
  if (x == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, x), &gpus)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "machine '", name, "' is not of the form <number>x<model>, as in '8xh100'; known are ",
        absl::StrJoin(GpuModels(), ", ")));
  }
  return ParseGpus(name, gpus, name.substr(x + 1));
}

absl::StatusOr<System> ParseSystem(absl::string_view name) {
  if (IsGpuCluster(name)) return ParseGpuCluster(name);
  absl::StatusOr<TpuSlice> slice = ParseTpuSlice(name);
  if (!slice.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        slice.status().message(), "; GPUs are written <number>x<model>, as in '8xh100'"));
  }
  return OfSlice(*slice);
}

System OneRing(const Machine& machine, int64_t devices) {
  System system;
  system.name = machine.name;
  system.device = machine;
  if (devices > 1) {
    system.levels.push_back(
        {"ring", devices, Wiring::kRing, machine.link_bandwidth / 2, machine.latency});
  }
  return system;
}

}  // namespace spmd::machine
