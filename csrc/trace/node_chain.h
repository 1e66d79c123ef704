// SPDX-License-Identifier: Apache-2.0
// Nodes of a backward pass that follow one another, run as one task of PyTorch's engine.
//
// The engine makes a task of every node: a queue, a buffer, and two exchanges of the thread's whole
// state, some 14,000 instructions beside what the node itself does, which is to record a call or
// two. A hook on the nodes of layers goes on in its place with what comes next anyhow:
//
//   y = gelu(linear(layer_norm(x), w))
//
//   the engine's tasks   Gelu, Linear, AccumulateGrad (w), LayerNorm, AccumulateGrad, …
//   with the hook        Gelu, Linear
//
// The order is the engine's own, and so are the checks of what a node returns. What is left, such
// as the gradient of x, which is used elsewhere, too, goes back to the engine: while it takes it,
// the node that began shows it the edges of the chain's end.
//
// A node is run here if nobody could tell: the edge is all that holds it (no tensor of Python's,
// no hook, no other gradient to wait for), it stands right before the last one in the order of
// making, it is a formula of PyTorch's (no function of Python's), on this device. The leaves of a
// node are filled if no hook waits for any and none has a gradient to add to; else the chain ends
// there. All else is the engine's, and so is every node where the graph is kept, inputs are given
// (`torch.autograd.grad`), anomalies are looked for, a profiler looks on, or another thread has
// used the device and is alive: it may go through the same graph.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace spmd::trace {

// For a node just made.
void ChainFrom(torch::autograd::Node& node);

// The node at work on this thread, in a chain or a task of its own; null outside of passes.
const torch::autograd::Node* RunningNode();

// This thread uses the device.
void NoteThread();

}  // namespace spmd::trace
