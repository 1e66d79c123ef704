# SPDX-License-Identifier: Apache-2.0
"""Plain data parallelism sends gradients: every stock module, every model of the zoo."""

import copy
import warnings

import model_zoo
import pytest
import torch
from data_parallel import STOCK, step
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_map

import torch_spmd as spmd

SMALL = 4096

# Models whose tokens are taken out of all samples by their places, and put back. Their rows are
# sent, since which device has a row is known when the program runs.
BY_PLACES = ("longformer", "mixtral", "olmoe")
EXPERTS = ("mixtral", "olmoe")


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


@pytest.mark.parametrize("name", STOCK)
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


def check_model(make, draw, monkeypatch):
    monkeypatch.setattr(model_zoo, "BATCH", 32)
    torch.manual_seed(0)
    parameters, reduced, others = sent(make(), (), draw(torch.Generator().manual_seed(0)))
    assert others == []
    # A model may have parameters that this loss does not reach, and normalisations statistics.
    assert parameters / 2 < reduced < parameters + SMALL


OTHERS = [n for n in model_zoo.MODELS if n not in BY_PLACES]


@pytest.mark.parametrize("name", OTHERS)
def test_models_send_their_gradients(name, monkeypatch):
    check_model(*model_zoo.MODELS[name], monkeypatch)


def test_overlapping_windows_of_attention_send_nothing(monkeypatch):
    """Longformer without tokens that are attended globally."""
    check_model(model_zoo.longformer, model_zoo.token_inputs, monkeypatch)


def attended(counts):
    """Inputs with `counts` globally attended tokens of each sample, anywhere."""

    def draw(generator):
        kwargs = model_zoo.token_inputs(generator)
        places = torch.rand(kwargs["input_ids"].shape, generator=generator).argsort(1)
        chosen = places < counts(len(places), generator)[:, None]
        return {**kwargs, "global_attention_mask": chosen.long()}

    return draw


MODELS_BY_PLACES = {name: model_zoo.MODELS[name] for name in BY_PLACES} | {
    "longformer, two of each": (
        model_zoo.longformer,
        attended(lambda n, g: torch.full((n,), 2)),
    ),
    "longformer, some of each": (
        model_zoo.longformer,
        attended(lambda n, g: torch.randint(0, 4, (n,), generator=g)),
    ),
}


@pytest.mark.parametrize("name", MODELS_BY_PLACES)
def test_models_that_take_tokens_out(name, monkeypatch):
    """Each `nonzero` ends a program. Rows are summed over the devices; few are gathered."""
    monkeypatch.setattr(model_zoo, "BATCH", 32)
    make, draw = MODELS_BY_PLACES[name]
    torch.manual_seed(0)
    model, kwargs = make(), draw(torch.Generator().manual_seed(0))
    plain = copy.deepcopy(model)
    plain(**kwargs).loss.backward()
    torch.optim.SGD(plain.parameters(), lr=0.1).step()

    mesh = spmd.make_mesh((4,), ("data",))
    params = step(model.to("spmd"), (), {k: t.to("spmd") for k, t in kwargs.items()}, mesh)
    rows = spmd.debug.collectives().rows
    sums = {"all_reduce", "reduce_scatter", "all_gather"}
    assert {row.kind for row in rows if row.bytes >= SMALL} <= sums
    for ours, theirs in zip(params, plain.parameters(), strict=True):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", EXPERTS)
def test_experts_that_take_no_tokens_out_send_nothing(name, monkeypatch):
    make, draw = model_zoo.MODELS[name]

    def batched():
        model = make()
        model.set_experts_implementation("batched_mm")
        return model

    check_model(batched, draw, monkeypatch)
