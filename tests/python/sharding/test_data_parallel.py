# SPDX-License-Identifier: Apache-2.0
"""Plain data parallelism sends gradients: every stock module, every model of the zoo."""

import warnings

import model_zoo
import pytest
import torch
from data_parallel import STOCK, step
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_map

import torch_spmd as spmd

SMALL = 4096

# What sends more than gradients, and why.
MODELS_THAT_SEND_MORE = {
    "longformer": "global attention gathers the tokens of all samples that are attended globally",
    "mixtral": "experts take tokens by the indices that nonzero gives for all samples together",
    "olmoe": "experts take tokens by the indices that nonzero gives for all samples together",
}
STOCK_THAT_SENDS_MORE = {
    "EmbeddingBag": "the bags' ends are made from the list of all indices",
}


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def sent(module, args, kwargs):
    """Bytes of the parameters, bytes reduced, and the rows that are no reduction."""
    mesh = spmd.make_mesh((4,), ("data",))
    place = lambda t: t.to("spmd") if isinstance(t, torch.Tensor) else t  # noqa: E731
    args, kwargs = tree_map(place, (args, kwargs))
    params = step(module.to("spmd"), args, kwargs, mesh)
    rows = spmd.debug.collectives().rows
    reduced = sum(row.bytes for row in rows if row.kind == "all_reduce")
    others = [row for row in rows if row.kind != "all_reduce"]
    return sum(p.numel() * p.element_size() for p in params), reduced, others


@pytest.mark.parametrize("name", [n for n in STOCK if n not in STOCK_THAT_SENDS_MORE])
def test_stock_modules_send_their_gradients(name):
    make, draw = STOCK[name]
    torch.manual_seed(0)
    parameters, reduced, others = sent(make(), draw(), {})
    assert [row for row in others if row.bytes >= SMALL] == []
    # Gradients that are the same (two biases of a cell) are reduced once.
    assert parameters / 2 <= reduced < parameters + SMALL


def test_every_stock_module_is_tested():
    names = {info.formatted_name.removeprefix("nn_").removeprefix("Lazy") for info in module_db}
    assert names - {name.split()[0] for name in STOCK} == set()


@pytest.mark.parametrize("name", [n for n in model_zoo.MODELS if n not in MODELS_THAT_SEND_MORE])
def test_models_send_their_gradients(name, monkeypatch):
    monkeypatch.setattr(model_zoo, "BATCH", 32)
    make, draw = model_zoo.MODELS[name]
    torch.manual_seed(0)
    parameters, reduced, others = sent(make(), (), draw(torch.Generator().manual_seed(0)))
    assert others == []
    # A model may have parameters that this loss does not reach, and normalisations statistics.
    assert parameters / 2 < reduced < parameters + SMALL
