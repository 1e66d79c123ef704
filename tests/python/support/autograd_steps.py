# SPDX-License-Identifier: Apache-2.0
"""What autograd has noted of how a tensor was computed."""


def steps_behind(t):
    """The names of the autograd nodes behind a tensor, sorted. Each node counts once."""
    seen, todo = {}, [t.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and id(node) not in seen:
            seen[id(node)] = node
            todo += [following for following, _ in node.next_functions]
    return sorted(node.name() for node in seen.values())
