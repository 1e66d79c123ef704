// SPDX-License-Identifier: Apache-2.0
// Runs consecutive nodes of a backward pass as one task of PyTorch's engine.
//
// The engine makes a task of every node: a queue, a buffer and two exchanges of the thread's whole
// state, some 14,000 instructions in addition to what the node itself does, which is to record a
// call or two. A hook on the nodes of layers continues in the engine's place with the nodes that
// come next in any case:
//
//   y = gelu(linear(layer_norm(x), w))
//
//   the engine's tasks   Gelu, Linear, AccumulateGrad (w), LayerNorm, AccumulateGrad, …
//   with the hook        Gelu, Linear
//
// The order is the engine's own, and so are the checks of what a node returns. What remains goes
// back to the engine, such as the gradient of x if x is used elsewhere, too: while the engine takes
// it, the first node of the chain shows the edges of the chain's last node.
//
// A node is run here only if that cannot be noticed: the edge is all that holds it (there is no
// tensor of Python's, no hook, no other gradient to wait for), it was made right before the last
// one, it is a formula of PyTorch's (not a function in Python), and it is on this device. The
// leaves of a node are filled if no hook waits for any and none has a gradient to add to; otherwise
// the chain ends there. The engine runs all other nodes, and every node if the graph is kept,
// inputs are given (`torch.autograd.grad`), anomaly detection is on, a profiler records, or another
// living thread has used the device and may go through the same graph.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace spmd::trace {

// Adds the hook to `node`, which has just been made.
void ChainFrom(torch::autograd::Node& node);

// The node that runs on this thread, in a chain or a task of its own; null outside backward passes.
const torch::autograd::Node* RunningNode();

// Notes that this thread uses the device.
void NoteThread();

}  // namespace spmd::trace
