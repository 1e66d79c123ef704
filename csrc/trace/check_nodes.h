// SPDX-License-Identifier: Apache-2.0
// Checks, when the device is registered, that the autograd nodes that are made here are those of
// the PyTorch that is installed.
//
// For each op of csrc/trace/derivatives.h, PyTorch's own autograd kernel and the code here are
// called on the same small CPU tensors. The two nodes must have the same class, the same edges and
// the same gradients, bit for bit. `tests/python/test_autograd.py` compares more, but only with the
// versions that the tests run with.
#pragma once

#include <string>
#include <vector>

namespace spmd::trace {

// True for the versions of PyTorch with which the shortcuts were verified.
bool IsVerifiedVersion();

// True if the node made here for `op` differs from PyTorch's. False for an op without such a node.
// The first call runs the checks.
bool NodeDiffers(const std::string& op);

// The ops whose nodes were compared, sorted.
std::vector<std::string> CheckedNodes();

}  // namespace spmd::trace
