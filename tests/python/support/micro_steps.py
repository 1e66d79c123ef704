# SPDX-License-Identifier: Apache-2.0
"""Micro-steps: several backward passes to a step of the optimizer."""

import torch
from torch import nn


def end_micro_steps():
    """Afterwards each step follows a single pass again, and is one program."""
    weight = nn.Parameter(torch.ones(3, device="spmd"))
    optimizer = torch.optim.SGD([weight], 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
