# SPDX-License-Identifier: Apache-2.0
"""shard_module."""

import re

import pytest
import torch
from torch import nn

import torch_spmd as spmd
from torch_spmd import P


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))


def test_rules_in_order_globs_and_regular_expressions(mesh):
    model = mlp().to("spmd")
    report = spmd.shard_module(
        model,
        mesh,
        {"0.*weight": ("model", None), re.compile(r"\d\.weight"): (None, "model"), "0.bias": (0,)},
    )
    assert report.sharded == {
        "0.weight": P("model", None),
        "0.bias": P(0),
        "2.weight": P(None, "model"),
    }
    assert report.replicated == ["2.bias"]
    assert report.unmatched == []
    assert spmd.sharding_of(model[2].weight).spec == P(None, "model")
    assert str(report).splitlines()[0] == "0.weight   P('model', None)"


def test_a_mark_that_no_rule_mentions_is_kept(mesh):
    model = mlp().to("spmd")
    spmd.mark_sharding(model[2].bias, mesh, ("model",))
    report = spmd.shard_module(model, mesh, {"0.weight": ("model", None)})
    assert report.kept == {"2.bias": P("model")}
    assert report.replicated == ["0.bias", "2.weight"]
    assert "2.bias     P('model'), as before" in str(report).splitlines()


def test_a_rule_that_matches_nothing_is_a_warning(mesh):
    with pytest.warns(UserWarning) as caught:
        report = spmd.shard_module(mlp().to("spmd"), mesh, {"*.weigth": ("model", None)})
    assert report.unmatched == ["*.weigth"]
    assert str(caught[0].message) == (
        "shard_module: rule '*.weigth' matched no parameter; the names start with '0.weight', "
        "'0.bias', '2.weight'"
    )


def test_tied_parameters_match_by_any_name(mesh):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(8, 4)
            self.head = nn.Linear(4, 8, bias=False)
            self.head.weight = self.embed.weight

    model = Tied().to("spmd")
    report = spmd.shard_module(model, mesh, {"head.weight": ("model", None)})
    assert report.sharded == {"embed.weight": P("model", None)}
    assert model.head.weight is model.embed.weight


def test_errors_name_the_parameter(mesh):
    with pytest.raises(ValueError) as raised:
        spmd.shard_module(mlp().to("spmd"), mesh, {"0.bias": ("model", None)})
    assert str(raised.value) == (
        "shard_module: parameter '0.bias': mark_sharding: spec ('model', None) has 2 entries but "
        "the tensor has 1 dimension; give one entry per dimension, None where it is not sharded, "
        "as in ('model',)"
    )


def test_a_module_on_meta(mesh):
    with torch.device("meta"):
        model = mlp()
    with pytest.raises(ValueError) as raised:
        spmd.shard_module(model, mesh, {})
    assert str(raised.value) == (
        "shard_module: parameter '0.weight' is on 'meta'; pass materialize=True to initialise it "
        "sharded"
    )
    spmd.shard_module(model, mesh, {"0.weight": ("model", None)}, materialize=True)
    shards = spmd.local_shards(model[0].weight)
    assert {tuple(shard.data.shape) for shard in shards} == {(4, 8)}
    assert 0 < spmd.full_tensor(model[0].weight).abs().max() <= 8**-0.5


def test_a_module_that_cannot_initialise_itself(mesh):
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

    with torch.device("meta"):
        model = Bare()
    with pytest.raises(ValueError) as raised:
        spmd.shard_module(model, mesh, {}, materialize=True)
    assert str(raised.value) == (
        "shard_module: module 'Bare' (Bare) holds 'scale' and has no reset_parameters() to "
        "initialise it; add one, or build the module under `with torch.device('spmd'):` instead of "
        "on 'meta'"
    )
