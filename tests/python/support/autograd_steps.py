# SPDX-License-Identifier: Apache-2.0
"""What autograd has noted of how a tensor was computed."""

import torch


def nodes_of_regions_are_seen():
    """A context in which manual regions keep the nodes of their ops."""
    return torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t)


def steps_behind(t):
    """The names of the autograd nodes behind a tensor, sorted. Each node counts once."""
    seen, todo = {}, [t.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and id(node) not in seen:
            seen[id(node)] = node
            todo += [following for following, _ in node.next_functions]
    return sorted(node.name() for node in seen.values())
