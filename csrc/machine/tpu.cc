// SPDX-License-Identifier: Apache-2.0
#include "csrc/machine/tpu.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "csrc/util/did_you_mean.h"
#include "csrc/util/status.h"

namespace spmd::machine {
namespace {

using Topology = absl::InlinedVector<int64_t, 3>;

enum class Shape {
  kFlatTorus,  // 2-D; an axis is a ring when it spans the pod
  kCubes       // 3-D of 4×4×4 cubes; rings when every axis is a multiple of 4
};

struct Generation {
  const char* name;
  bool name_counts_cores;
  int devices_per_chip;
  Shape shape;
  int64_t min_chips;  // in one slice
  int64_t max_chips;
  int64_t ring_size;  // for kFlatTorus: the length at which an axis is a ring
  int chips_per_host;
  // The rest is per chip where nothing else is said.
  double flops;             // bf16
  double memory_bandwidth;  // bytes per second
  double memory_gib;        // usable, per *device*
  double link_rate;         // bytes per second, one way, per link
  int matrix_unit;          // rows and columns of the unit that matrices are padded to
};

// FLOP/s, HBM bandwidth, pods, hosts: Cloud TPU documentation, "TPU architecture" pages of each
// version. Link rates: "How to Scale Your Model" (jax-ml.github.io/scaling-book), table of TPU
// specs; v2 and v3: Jouppi et al., "A domain-specific supercomputer for training deep neural
// networks", CACM 63(7), 2020. Usable HBM: what the TPU compiler gives as capacity in its
// out-of-memory messages ("Used 9.08G of 7.48G hbm").
constexpr std::array<Generation, 6> kGenerations = {{
    {"v2", true, 2, Shape::kFlatTorus, 4, 256, 16, 4, 46e12, 700e9, 7.48, 62e9, 128},
    {"v3", true, 2, Shape::kFlatTorus, 4, 1024, 32, 4, 123e12, 900e9, 15.48, 82e9, 128},
    {"v4", true, 1, Shape::kCubes, 4, 4096, 0, 4, 275e12, 1200e9, 30.75, 45e9, 128},
    {"v5e", false, 1, Shape::kFlatTorus, 1, 256, 16, 8, 197e12, 819e9, 15.75, 45e9, 128},
    {"v5p", true, 1, Shape::kCubes, 4, 6144, 0, 4, 459e12, 2765e9, 95.74, 90e9, 128},
    {"v6e", false, 1, Shape::kFlatTorus, 1, 256, 16, 8, 918e12, 1638e9, 31.25, 90e9, 256},
}};

bool IsPowerOfTwo(int64_t n) { return n > 0 && (n & (n - 1)) == 0; }

// A×B with A = B or 2A = B for 1, 4, 8, 16, … chips; empty for any other number.
Topology FlatTopology(int64_t chips) {
  if (!IsPowerOfTwo(chips) || chips == 2) return {};
  int64_t a = 1;
  while (4 * a * a <= chips) a *= 2;
  return {a, chips / a};
}

// Below one cube of 64 chips: one of the three shapes that part of a rack may have. From 64 on: A ≤
// B ≤ C in cubes, as near to a cube as the count allows (the least surface, as in the
// documentation's tables).
Topology CubeTopology(int64_t chips) {
  switch (chips) {
    case 4:
      return {2, 2, 1};
    case 8:
      return {2, 2, 2};
    case 16:
      return {2, 2, 4};
    case 32:
      return {2, 4, 4};
    default:
      break;
  }
  if (chips <= 0 || chips % 64 != 0) return {};
  const int64_t cubes = chips / 64;
  Topology best;
  for (int64_t a = 1; a * a * a <= cubes; ++a) {
    if (cubes % a != 0) continue;
    for (int64_t b = a; a * b * b <= cubes; ++b) {
      if (cubes / a % b != 0) continue;
      const Topology candidate = {4 * a, 4 * b, 4 * (cubes / a / b)};
      auto sum = [](const Topology& t) { return t[0] + t[1] + t[2]; };
      if (best.empty() || sum(candidate) < sum(best)) best = candidate;
    }
  }
  return best;
}

Topology TopologyOf(const Generation& g, int64_t chips) {
  if (chips < g.min_chips || chips > g.max_chips) return {};
  return g.shape == Shape::kFlatTorus ? FlatTopology(chips) : CubeTopology(chips);
}

// The nearest legal sizes below and above `size`, which counts what the generation's name counts.
std::string NearestSizes(const Generation& g, int64_t size) {
  const int64_t unit = g.name_counts_cores ? 2 : 1;
  const int64_t chips = std::clamp<int64_t>(size / unit, 0, g.max_chips);
  std::vector<std::string> names;
  for (int64_t c = chips; c >= 1; --c) {
    if (!TopologyOf(g, c).empty() && c * unit != size) {
      names.push_back(absl::StrCat("'", g.name, "-", c * unit, "'"));
      break;
    }
  }
  for (int64_t c = chips + 1; c <= g.max_chips; ++c) {
    if (!TopologyOf(g, c).empty()) {
      names.push_back(absl::StrCat("'", g.name, "-", c * unit, "'"));
      break;
    }
  }
  return absl::StrJoin(names, " or ");
}

absl::StatusOr<const Generation*> FindGeneration(absl::string_view slice, absl::string_view name) {
  if (name == "v5litepod") name = "v5e";
  for (const Generation& g : kGenerations) {
    if (name == g.name) return &g;
  }
  const std::vector<std::string> known = TpuGenerations();
  const auto near = DidYouMean(name, known);
  return absl::InvalidArgumentError(
      absl::StrCat("TPU slice '", slice, "': there is no generation '", name, "'; ",
                   near.has_value() ? absl::StrCat("did you mean '", *near, "'? ") : "",
                   near.has_value() ? "Known are " : "known are ", absl::StrJoin(known, ", ")));
}

Machine DeviceOf(const Generation& g) {
  Machine m;
  m.flops = g.flops / g.devices_per_chip;
  m.memory_bandwidth = g.memory_bandwidth / g.devices_per_chip;
  m.link_bandwidth = 2 * g.link_rate / g.devices_per_chip;
  m.latency = 1e-6;  // one hop
  m.memory_bytes = static_cast<int64_t>(g.memory_gib * (int64_t{1} << 30));
  m.tile_rows = 8;  // sublanes; the matrix unit streams rows
  m.tile_columns = g.matrix_unit;
  return m;
}

}  // namespace

std::vector<std::string> TpuGenerations() {
  std::vector<std::string> names;
  for (const Generation& g : kGenerations) names.emplace_back(g.name);
  return names;
}

absl::StatusOr<TpuSlice> ParseTpuSlice(absl::string_view name) {
  const size_t dash = name.rfind('-');
  int64_t size = 0;
  if (dash == absl::string_view::npos || !absl::SimpleAtoi(name.substr(dash + 1), &size)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "TPU slice '", name, "' is not of the form <generation>-<size>, as in 'v4-16' or 'v5e-8'"));
  }
  SPMD_ASSIGN_OR_RETURN(const Generation* g, FindGeneration(name, name.substr(0, dash)));
  const int64_t unit = g->name_counts_cores ? 2 : 1;
  TpuSlice slice;
  slice.num_chips = size / unit;
  if (size > 0 && size % unit == 0) slice.topology = TopologyOf(*g, slice.num_chips);
  if (slice.topology.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("TPU slice '", name, "': there is no ", g->name, " slice of ", size,
                     g->name_counts_cores ? " TensorCores (two per chip)" : " chips",
                     "; the nearest is ", NearestSizes(*g, size)));
  }
  slice.name = absl::StrCat(g->name, "-", size);
  slice.generation = g->name;
  slice.devices_per_chip = g->devices_per_chip;
  slice.chips_per_host = static_cast<int>(std::min<int64_t>(g->chips_per_host, slice.num_chips));
  const bool cubes = std::all_of(slice.topology.begin(), slice.topology.end(),
                                 [](int64_t n) { return n % 4 == 0; });
  for (int64_t n : slice.topology) {
    slice.wrap.push_back(g->shape == Shape::kCubes ? cubes : n == g->ring_size);
  }
  slice.link_rate = g->link_rate;
  slice.machine = DeviceOf(*g);
  slice.machine.name = slice.name;
  return slice;
}

}  // namespace spmd::machine
