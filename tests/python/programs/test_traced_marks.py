# SPDX-License-Identifier: Apache-2.0
"""mark_sharding and reshard in traced graphs: as ops, with the effects they have in the program."""

import pytest
import torch
from functorch.compile import aot_function, make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx

import torch_spmd as spmd
from torch_spmd import P

mesh = spmd.make_mesh((2, 2), ("a", "b"))
names = spmd.Mesh([3, 1, 0, 2], (2, 2), ("a", "b"))


def layer(x, w):
    h = x @ w
    spmd.mark_sharding(h, mesh, P("a", "b"))
    h = spmd.reshard(h.relu(), mesh, ("a", None))
    return (h * h).sum()


def inputs(requires_grad=True):
    torch.manual_seed(0)
    x, w = torch.randn(8, 6).to("spmd"), torch.randn(6, 4).to("spmd")
    return x, w.requires_grad_(requires_grad)


def outcome(f, x, w):
    """The loss, the gradient, its sharding, and the collectives."""
    loss = f(x, w)
    loss.backward()
    spmd.sync()
    sent = [(row.kind, row.axes, row.bytes) for row in spmd.debug.collectives().rows]
    return loss.item(), w.grad.cpu(), spmd.sharding_of(w.grad).spec, sent


def targets(graph):
    return [node.target for node in graph.graph.nodes if node.op == "call_function"]


MARK, RESHARD = torch.ops.spmd.mark_sharding.default, torch.ops.spmd.reshard.default


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_make_fx(mode):
    x, w = inputs(requires_grad=False)
    graph = make_fx(layer, tracing_mode=mode)(x, w)
    assert targets(graph).count(MARK) == 1 and targets(graph).count(RESHARD) == 1
    assert "'[a=2, b=2]', \"('a', 'b')\"" in graph.code
    graph.graph.eliminate_dead_code()
    graph.recompile()
    assert MARK in targets(graph)
    w.requires_grad_()
    expected = outcome(layer, x, w)
    w.grad = None
    got = outcome(graph, x, w)
    torch.testing.assert_close(got[1], expected[1], rtol=0, atol=0)
    assert (got[0], *got[2:]) == (expected[0], *expected[2:])


def test_a_gradient_is_traced():
    x, w = inputs(requires_grad=False)

    def gradient(x, w):
        w = w.detach().requires_grad_()
        return torch.autograd.grad(layer(x, w), w)[0]

    graph = make_fx(gradient)(x, w)
    assert targets(graph).count(RESHARD) == 2  # the gradient's, too
    torch.testing.assert_close(graph(x, w).cpu(), gradient(x, w).cpu(), rtol=0, atol=0)


def test_aot_function():
    graphs = []

    def compiler(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    x, w = inputs()
    expected = outcome(layer, x, w)
    w.grad = None
    got = outcome(aot_function(layer, fw_compiler=compiler, bw_compiler=compiler), x, w)
    torch.testing.assert_close(got[1], expected[1], rtol=0, atol=0)
    assert got[2] == expected[2] and sorted(got[3]) == sorted(expected[3])
    assert MARK in targets(graphs[0]) and RESHARD in targets(graphs[0])
    assert RESHARD in targets(graphs[1])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile(backend):
    torch._dynamo.reset()
    x, w = inputs()
    expected = outcome(layer, x, w)
    w.grad = None
    got = outcome(torch.compile(layer, backend=backend, fullgraph=True), x, w)
    torch.testing.assert_close(got[1], expected[1], rtol=0, atol=0)
    assert got[2] == expected[2] and sorted(got[3]) == sorted(expected[3])


def test_compile_with_a_global_mesh_and_a_tree():
    torch._dynamo.reset()

    def f(x, y):
        x, y = x * 2, y * 3
        spmd.mark_sharding({"x": x, "y": [y]}, None, {"x": P("a", None), "y": [P("b")]})
        return x, y

    with spmd.use_mesh(mesh):
        x, y = torch.compile(f, backend="eager")(
            torch.ones(4, 2, device="spmd"), torch.ones(4, device="spmd")
        )
    assert spmd.sharding_of(x).spec == P("a", None) and spmd.sharding_of(y).spec == P("b")


def test_a_graph_marks_its_inputs():
    def f(x):
        spmd.mark_sharding(x, names, (("a", "b"), None))
        return x * 2

    graph = make_fx(f, tracing_mode="fake")(torch.ones(8, 2, device="spmd"))
    assert "devices=[3,1,0,2]" in graph.code
    x = torch.ones(8, 2, device="spmd")
    graph(x)
    assert spmd.sharding_of(x) == spmd.NamedSharding(names, (("a", "b"), None))


def test_wrong_specs_are_refused_while_tracing():
    x = torch.ones(8, 2, device="spmd")
    with pytest.raises(ValueError, match=r"has 3 entries but the tensor has 2 dimensions"):
        make_fx(lambda t: spmd.reshard(t * 1, mesh, ("a", None, None)), tracing_mode="fake")(x)
    with pytest.raises(ValueError, match=r"has no axis 'c'|does not have"):
        make_fx(lambda t: spmd.mark_sharding(t * 1, mesh, ("c", None)), tracing_mode="fake")(x)


def test_reshard_under_vmap():
    x = torch.arange(24.0).reshape(3, 8).to("spmd")
    y = torch.vmap(lambda row: spmd.reshard(row, mesh, ("a",)) * 2)(x)
    torch.testing.assert_close(y.cpu(), torch.arange(24.0).reshape(3, 8) * 2)
    assert spmd.sharding_of(y).spec == P(None, "a")


def test_reshard_under_transforms():
    def f(x):
        return spmd.reshard(x * x * x, mesh, ("a",)).sum()

    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).to("spmd")
    assert torch.func.grad(f)(x).tolist() == [3, 12, 27, 48]
    value, tangent = torch.func.jvp(f, (x,), (torch.ones_like(x),))
    assert value.item() == 100 and tangent.item() == 90
    assert torch.func.hessian(f)(x).diag().tolist() == [6, 12, 18, 24]
    rows = torch.vmap(torch.func.grad(f))(torch.stack([x, 2 * x]))
    assert rows.tolist() == [[3, 12, 27, 48], [12, 48, 108, 192]]
    gradient = make_fx(torch.func.grad(f))(x)
    assert targets(gradient).count(RESHARD) == 2
    double = x.double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda t: spmd.reshard(t * t, mesh, ("a",)), double)


def test_reshard_of_a_tensor_with_a_tangent_that_requires_a_gradient():
    x = torch.arange(8.0).to("spmd").requires_grad_()
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        moved = spmd.reshard(dual, mesh, ("a",))
        value, tangent = torch.autograd.forward_ad.unpack_dual(moved)
        assert spmd.sharding_of(value).spec == spmd.sharding_of(tangent).spec == P("a")
        assert tangent.tolist() == [1.0] * 8
        (gradient,) = torch.autograd.grad((value * value).sum(), x)
    assert gradient.tolist() == [2.0 * i for i in range(8)]
    assert spmd.sharding_of(gradient).spec == P("a")


def test_texts_that_are_wrong_are_refused_each_time():
    x = torch.ones(8, 2, device="spmd", requires_grad=True)
    for _ in range(2):
        assert torch.ops.spmd.reshard(x, mesh._text, "('a', None)").requires_grad
        with pytest.raises(ValueError, match="mesh must be the text of a mesh"):
            torch.ops.spmd.reshard(x, "no mesh", "('a', None)")
        with pytest.raises(ValueError, match="spec must be text like"):
            torch.ops.spmd.reshard(x, mesh._text, "('a'")
        with pytest.raises(ValueError, match="has 1 entry but the tensor has 2 dimensions"):
            torch.ops.spmd.reshard(x, mesh._text, "('a',)")
        with pytest.raises(ValueError, match=r"axis 'a' .* in dimensions 0 and 1"):
            torch.ops.spmd.reshard(x, mesh._text, "('a', 'a')")


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_module_marks_inputs_and_parameters(backend):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.mesh, self.spec = torch.nn.Linear(6, 4), mesh, P("b", None)

        def forward(self, x):
            spmd.mark_sharding(x, self.mesh, ("a", None))
            spmd.mark_sharding(self.linear.weight, self.mesh, self.spec)
            return self.linear(x).square().sum()

    torch._dynamo.reset()
    net = Net().to("spmd")
    compiled = torch.compile(net, backend=backend, fullgraph=True)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(2):
        x = torch.ones(8, 6).to("spmd")
        compiled(x).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert spmd.sharding_of(x) == spmd.NamedSharding(mesh, ("a", None))
    assert spmd.sharding_of(net.linear.weight) == spmd.NamedSharding(mesh, P("b", None))


def test_exported_programs_have_the_ops():
    class Net(torch.nn.Module):
        def forward(self, x):
            return spmd.reshard(spmd.mark_sharding(x * 2, mesh, ("a", None)), mesh, ("b", None))

    x = torch.ones(4, 2, device="spmd")
    program = torch.export.export(Net(), (x,))
    found = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert MARK in found and RESHARD in found
    assert spmd.sharding_of(program.module()(x)).spec == P("b", None)
