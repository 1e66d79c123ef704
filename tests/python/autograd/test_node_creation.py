# SPDX-License-Identifier: Apache-2.0
"""torch.autograd.graph.node_creation_hook (PyTorch 2.14) sees the nodes that it sees on the CPU."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import torch_spmd as spmd
from torch_spmd import P

pytestmark = pytest.mark.skipif(
    not hasattr(torch.autograd.graph, "node_creation_hook"), reason="PyTorch has no such hook"
)


def product(x, w):
    return (torch.tanh(x * 2) @ w).sin().sum()


def layers(x, w):
    y = F.layer_norm(F.gelu(torch.addmm(w[0], x, w.t())), w.shape[:1])
    return F.cross_entropy(y.view(2, -1, 4).flatten(1), torch.arange(2, device=x.device))


def views(x, w):
    first, second = (x.t().unsqueeze(0).expand(2, 4, 4) + w).unbind()
    return (first[1:, ::2] * second.split(2)[1][:1, :2]).mean() + x.select(0, 1).sum()


def in_place(x, w):
    y = x * 1
    y.mul_(3).add_(w)
    y[0] = w[1]
    return torch.cat([y, w]).pow(2).sum()


def list_of_tensors(x, w):
    return sum(t.sum() for t in torch._foreach_mul([x, w], 2.0))


def recomputed(x, w):
    return checkpoint(product, x, w, use_reentrant=False)


def second_derivative(x, w):
    [gradient] = torch.autograd.grad(product(x, w), x, create_graph=True)
    return gradient.square().sum()


def nodes(function, device):
    torch.manual_seed(0)
    x, w = (torch.randn(4, 4).to(device).requires_grad_() for _ in range(2))
    seen = []
    with torch.autograd.graph.node_creation_hook(lambda node: seen.append(node.name())):
        function(x, w).backward()
    return seen, [t.grad.cpu() for t in (x, w)]


@pytest.mark.parametrize(
    "function",
    [product, layers, views, in_place, list_of_tensors, recomputed, second_derivative],
    ids=lambda f: f.__name__,
)
def test_the_nodes_of_the_cpu_are_seen(function):
    function_nodes, gradients = nodes(function, "spmd")
    expected, expected_gradients = nodes(function, "cpu")
    assert function_nodes == expected and len(expected) > 3
    torch.testing.assert_close(gradients, expected_gradients)


def test_a_hook_can_register_hooks_on_the_node():
    seen = []

    def created(node):
        node.register_prehook(lambda grads: seen.append((node.name(), grads[0].device.type)))

    x = torch.ones(3, device="spmd", requires_grad=True)
    with torch.autograd.graph.node_creation_hook(created):
        y = (x * 2).tanh()
    y.sum().backward()
    assert seen[:2] == [("TanhBackward0", "spmd"), ("MulBackward0", "spmd")]
    assert len(seen) == 3  # the leaf's


def reachable(node):
    found = {}
    rest = [node]
    while rest:
        node = rest.pop()
        if node is not None and node not in found:
            found[node] = node.name()
            rest.extend(following for following, _ in node.next_functions)
    return sorted(found.values())


def marked(x, mesh):
    return spmd.reshard(x * 2, mesh, P("x", None)).tanh()


def linear(x, mesh):
    """It is one op here (docs/design/0015-kernels-above-autograd.md), and two on the CPU."""
    return F.linear(x, torch.eye(4, device="spmd")).tanh()


def in_a_region(x, mesh):
    return REGION(x) * 2


REGION = spmd.shard_map(
    lambda t: (t.tanh() * t).sin(), spmd.make_mesh((2,), ("x",)), P("x", None), P("x", None)
)


def call(function, *args):
    """The result, and the names of the nodes that the hook saw."""
    seen = []
    with torch.autograd.graph.node_creation_hook(lambda node: seen.append(node.name())):
        return function(*args), seen


@pytest.mark.parametrize("function", [marked, linear, in_a_region], ids=lambda f: f.__name__)
def test_all_nodes_of_the_graph_are_seen(function):
    mesh = spmd.make_mesh((2,), ("x",))
    for hooked in [*[False] * 6, True, False, True]:
        x = torch.randn(4, 4).to("spmd").requires_grad_()
        if hooked:
            result, seen = call(function, x, mesh)
            assert sorted(seen) == reachable(result.grad_fn)
            assert "TanhBackward0" in seen
        else:
            result = function(x, mesh)
        result.sum().backward()
        spmd.sync()
