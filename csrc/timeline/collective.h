// SPDX-License-Identifier: Apache-2.0
// The time of one collective, from how its devices are wired. With n devices, V bytes of the
// gathered array, W bytes per second one way over one link, `a` seconds a hop:
//
//   all-gather, reduce-scatter   ring    max(a·n/2, V·(n−1)/n / (2W))
//                                line    (n−1)·(a + V/(n·W))
//                                switch  a + V·(n−1)/n / W
//   all-reduce                   twice that
//   all-to-all                   ring    V/(8W)      line  V/(4W)      switch  V·(n−1)/n² / W
//   permute, exchange            the bytes that the worst-off device lacks over its links
//
// k axes of a torus carry a gather together at k times the rate. Levels above and below a switch
// work at the same time, each on what its devices lack, and the slowest decides. Source of the
// formulas for rings and lines: "How to Scale Your Model" (jax-ml.github.io/scaling-book).
#pragma once

#include "csrc/machine/placement.h"
#include "csrc/program/program.h"

namespace spmd::timeline {

// Seconds of a move of `code` over the devices that `routes` join. `wire_bytes` is what a device
// sends, as program::CollectiveTraffic counts it.
// Requires: `code` communicates.
double CollectiveSeconds(program::OpCode code, const machine::Routes& routes, double wire_bytes);

}  // namespace spmd::timeline
