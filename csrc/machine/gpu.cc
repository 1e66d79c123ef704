// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/gpu.h"

#include <array>
#include <string>
#include <vector>

#include "absl/strings/match.h"

namespace spmd::machine {
namespace {

struct GpuRow {
  const char* model;
  double flops;             // bf16, dense
  double memory_bandwidth;  // bytes per second
  double link_rate;         // NVLink, bytes per second one way
  double memory_bytes;
  double infiniband_rate;  // per GPU, bytes per second one way
};

// Sources: the maker's data sheets for the SXM modules and DGX nodes (NVLink domain of eight GPUs,
// one InfiniBand adapter for each), collected in "How to Scale Your Model"
// (jax-ml.github.io/scaling-book), chapter on GPUs.
constexpr std::array<GpuRow, 4> kGpus = {{
    {"A100", 312e12, 2.0e12, 300e9, 80e9, 25e9},
    {"H100", 990e12, 3.35e12, 450e9, 80e9, 50e9},
    {"H200", 990e12, 4.8e12, 450e9, 141e9, 50e9},
    {"B200", 2250e12, 8.0e12, 900e9, 180e9, 50e9},
}};

}  // namespace

const Machine* FindGpu(absl::string_view name) {
  static const std::vector<Machine>& machines = *new std::vector<Machine>([] {
    std::vector<Machine> all;
    for (const GpuRow& row : kGpus) {
      Machine& m = all.emplace_back();
      m.name = row.model;
      m.flops = row.flops;
      m.memory_bandwidth = row.memory_bandwidth;
      m.link_bandwidth = row.link_rate;
      m.latency = 5e-6;  // launches a kernel and a collective
      m.memory_bytes = static_cast<int64_t>(row.memory_bytes);
      m.tile_rows = 16;  // the shape of a bf16 tensor-core instruction
      m.tile_columns = 8;
    }
    return all;
  }());
  for (const Machine& m : machines) {
    if (absl::StrContains(name, m.name)) return &m;
  }
  return nullptr;
}

std::vector<std::string> GpuModels() {
  std::vector<std::string> models;
  for (const GpuRow& row : kGpus) models.emplace_back(row.model);
  return models;
}

double InfiniBandRate(const Machine& gpu) {
  for (const GpuRow& row : kGpus) {
    if (gpu.name == row.model) return row.infiniband_rate;
  }
  return 0;
}

}  // namespace spmd::machine
