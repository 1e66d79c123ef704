// SPDX-License-Identifier: Apache-2.0
#include "csrc/timeline/collective.h"

#include <algorithm>
#include <vector>

namespace spmd::timeline {
namespace {

using machine::Route;
using machine::Routes;
using machine::Wiring;
using program::OpCode;

// The routes as independent stages: all axes of the torus are one.
struct Stage {
  double size = 1;
  double rate = 0;
  double line_latency = 0;  // added: the hops of an open line, or of a switch
  double ring_latency = 0;  // hidden behind the transfer where that takes longer
};

std::vector<Stage> Stages(const Routes& routes) {
  std::vector<Stage> stages;
  Stage torus;
  for (const Route& route : routes) {
    const double n = static_cast<double>(route.size);
    if (route.wiring == Wiring::kSwitch) {
      stages.push_back({n, route.rate, route.latency, 0});
      continue;
    }
    torus.size *= n;
    torus.rate += route.rate;
    if (route.wiring == Wiring::kRing) {
      torus.ring_latency += route.latency * n / 2;
    } else {
      torus.line_latency += route.latency * (n - 1);
    }
  }
  if (torus.size > 1) stages.push_back(torus);
  return stages;
}

// Of an array of `bytes` of which each device has an equal part, until all have all of it.
double GatherSeconds(const Routes& routes, double bytes) {
  double seconds = 0;
  for (const Stage& stage : Stages(routes)) {
    const double transfer = bytes * (stage.size - 1) / stage.size / stage.rate;
    seconds = std::max(seconds, stage.line_latency + std::max(stage.ring_latency, transfer));
  }
  return seconds;
}

// Of an array of `bytes`, each device's part of which is spread over all. Half of what half of the
// places have crosses the middle of a ring or line.
double AllToAllSeconds(const Routes& routes, double bytes) {
  double seconds = 0, all = 1;
  for (const Route& route : routes) all *= static_cast<double>(route.size);
  for (const Route& route : routes) {
    const double n = static_cast<double>(route.size);
    const double side_by_side = all / n;  // as many rows of this level work at the same time
    const double transfer = route.wiring == Wiring::kSwitch ? bytes * (n - 1) / n / all / route.rate
                                                            : bytes / 4 / route.rate / side_by_side;
    seconds = std::max(seconds, route.latency + transfer);
  }
  return seconds;
}

double PermuteSeconds(const Routes& routes, double bytes) {
  double rate = 0, latency = 0;
  for (const Route& route : routes) {
    rate = rate == 0 ? route.rate : std::min(rate, route.rate);
    latency = std::max(latency, route.latency);
  }
  return rate == 0 ? 0 : latency + bytes / rate;
}

}  // namespace

double CollectiveSeconds(OpCode code, const Routes& routes, double wire_bytes) {
  double n = 1;
  for (const Route& route : routes) n *= static_cast<double>(route.size);
  if (n == 1) return 0;
  const double of_whole = n / (n - 1);  // a device sends (n-1)/n of what is gathered
  switch (code) {
    case OpCode::kAllGather:
    case OpCode::kReduceScatter:
      return GatherSeconds(routes, wire_bytes * of_whole);
    case OpCode::kAllReduce:
      return 2 * GatherSeconds(routes, wire_bytes / 2 * of_whole);
    case OpCode::kAllToAll:
      return AllToAllSeconds(routes, wire_bytes * of_whole * n);
    default:
      return PermuteSeconds(routes, wire_bytes);
  }
}

}  // namespace spmd::timeline
