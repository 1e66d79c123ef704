# SPDX-License-Identifier: Apache-2.0
"""Marks on inputs and outputs of modules, set by shard_module from outside of the model."""

import copy
import io
from dataclasses import dataclass

import pytest
import torch
from random_calls import RaisingList
from torch import nn

import torch_spmd as spmd
from torch_spmd import P


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


@dataclass
class Result:
    logits: torch.Tensor
    loss: torch.Tensor


class Several(nn.Module):
    def forward(self, x, *, mask=None, form=tuple):
        if form is Result:
            return Result(x + 1, x.sum())
        return {"a": x + 1, "b": mask} if form is dict else form([x + 1, x.sum(0)])


def spec(t):
    return spmd.sharding_of(t).spec


def test_inputs_and_outputs_by_name(mesh):
    model = Net().to("spmd")
    report = spmd.shard_module(
        model,
        mesh,
        {},
        inputs={"": P("data", None)},
        outputs={"layers.1": P(None, "model"), "layers.*": P("data", "model")},
    )
    assert report.inputs == {"": P("data", None)}
    assert report.outputs == {
        "layers.0": P("data", "model"),
        "layers.1": P(None, "model"),
        "layers.2": P("data", "model"),
    }
    assert "output of layers.1  P(None, 'model')" in str(report).splitlines()
    expected = copy.deepcopy(model).cpu()(torch.ones(16, 8))  # where hooks leave tensors alone
    seen = []
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, result: seen.append(spec(result)))
    x = torch.ones(16, 8, device="spmd")
    torch.testing.assert_close(model(x).cpu(), expected)
    assert seen == [P("data", "model"), P(None, "model"), P("data", "model")]
    assert spmd.sharding_of(x).is_committed  # data without a mark gets it


def test_an_input_that_has_a_mark_is_resharded_and_keeps_it(mesh):
    model = Net().to("spmd")
    spmd.shard_module(model, mesh, {}, inputs={"": P("data", None)})
    x = spmd.mark_sharding(torch.ones(16, 8, device="spmd"), mesh, P("model", None))
    got = []
    model.layers[0].register_forward_pre_hook(lambda module, args: got.append(spec(args[0])))
    model(x)
    assert got == [P("data", None)]
    assert spec(x) == P("model", None)


def test_gradients_go_through(mesh):
    torch.manual_seed(0)
    model = Net()
    x = torch.randn(16, 8, requires_grad=True)
    model(x).pow(2).sum().backward()
    ours = copy.deepcopy(model).to("spmd")
    ours.zero_grad()
    spmd.shard_module(ours, mesh, {}, inputs={"*": P("data", None)}, outputs={"*": ("model", None)})
    y = x.detach().to("spmd").requires_grad_()
    ours(y).pow(2).sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter.grad.cpu(), model.get_parameter(name).grad)


@pytest.mark.parametrize("form", [tuple, list])
def test_by_position(mesh, form):
    model = Several().to("spmd")
    specs = [P("data", None), P("model")]
    spmd.shard_module(model, mesh, {}, outputs={"": specs})
    first, second = model(torch.ones(16, 8, device="spmd"), form=form)
    assert (spec(first), spec(second)) == (P("data", None), P("model"))


def test_by_name_of_arguments_and_results(mesh):
    model = Several().to("spmd")
    x = torch.ones(16, 8, device="spmd")
    mask = torch.ones(16, 16, device="spmd")
    spmd.shard_module(
        model,
        mesh,
        {},
        inputs={"": {"mask": P("model", None)}},
        outputs={"": {"a": P("data", None)}},
    )
    result = model(x, mask=mask, form=dict)
    assert (spec(result["a"]), spec(result["b"])) == (P("data", None), P("model", None))
    spmd.shard_module(model, mesh, {}, outputs={"": {"logits": P(None, "model"), "none": P()}})
    assert spec(model(x, form=Result).logits) == P(None, "model")


def test_copies_and_pickles_keep_the_hooks_and_a_later_call_replaces_them(mesh):
    model = Net().to("spmd")
    spmd.shard_module(model, mesh, {}, outputs={"": P("data", None)})
    x = torch.ones(16, 8, device="spmd")
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        assert spec(other(x)) == P("data", None)
    spmd.shard_module(model, mesh, {}, outputs={"": P(None, "model")})
    assert spec(model(x)) == P(None, "model")
    assert len(model._forward_hooks) == 1


def test_under_vmap_and_grad(mesh):
    model = nn.Linear(8, 8).to("spmd")
    spmd.shard_module(model, mesh, {}, inputs={"": P("data", None)}, outputs={"": P(None, "model")})
    x = torch.randn(3, 16, 8)
    weights = {name: p.detach() for name, p in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).pow(2).sum()

    got = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x.to("spmd"))
    model.cpu()
    model._forward_hooks.clear(), model._forward_pre_hooks.clear()
    weights = {name: p.detach().cpu() for name, p in weights.items()}
    expected = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x)
    for name, grad in got.items():
        torch.testing.assert_close(grad.cpu(), expected[name])


def test_errors_name_the_place_and_change_nothing(mesh):
    model = Net().to("spmd")
    rules = {"layers.0.weight": P("model", None)}
    for wrong, error, message in (
        ({"": P("modle", None)}, ValueError, r"shard_module: outputs\[''\]: .*modle"),
        (
            {"": RaisingList([P()])},
            TypeError,
            r"outputs\[''\]: shard_module: outputs cannot be read: Rec",
        ),
        ({"": 5}, TypeError, r"shard_module: outputs\[''\]: PartitionSpec: expected a tuple"),
        ([P("data")], TypeError, "shard_module: outputs must be a mapping from names of modules"),
    ):
        with pytest.raises(error, match=message):
            spmd.shard_module(model, mesh, rules, outputs=wrong)
        assert not spmd.sharding_of(model.layers[0].weight).is_committed
    spmd.shard_module(model, mesh, {}, outputs={"layers.1": P("data", None, None)})
    with pytest.raises(ValueError, match=r"output of module 'layers.1': .*has 3 entries but"):
        model(torch.ones(16, 8, device="spmd"))
    with pytest.warns(UserWarning, match="inputs pattern 'layer.9' matched no module; the names"):
        spmd.shard_module(model, mesh, {}, inputs={"layer.9": P("data")})
