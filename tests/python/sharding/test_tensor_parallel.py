# SPDX-License-Identifier: Apache-2.0
"""spmd.tensor_parallel: plans written for torch.distributed.tensor.parallel."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
)
from torch.nn import functional as F

import torch_spmd as spmd
from torch_spmd import UNCONSTRAINED, P


@pytest.fixture
def mesh():
    return spmd.make_mesh((2, 4), ("data", "model"))


class Attention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.heads = heads
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(size, size, bias=False) for _ in range(4))

    def forward(self, x, mask=None):
        q, k, v = (
            w(x).view(*x.shape[:2], -1, x.shape[-1] // self.heads).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(x.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(size), nn.LayerNorm(size)
        self.attention = Attention(size, heads)
        self.w1, self.w2 = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x), mask=None)
        return x + self.w2(F.silu(self.w1(self.mlp_norm(x))))


class Transformer(nn.Module):
    """In the shape for which torchtitan's plans are written."""

    def __init__(self, size=32, layers=2):
        super().__init__()
        self.tok_embeddings = nn.Embedding(64, size)
        self.layers = nn.ModuleDict({str(i): Block(size, 8) for i in range(layers)})
        self.norm = nn.RMSNorm(size)
        self.output = nn.Linear(size, 64, bias=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x)
        return self.output(self.norm(x))


PLAN = {
    "layers.*.attention.wq": ColwiseParallel(),
    "layers.*.attention.w[kv]": ColwiseParallel(),
    "layers.*.attention.wo": RowwiseParallel(),
    "layers.*.w1": ColwiseParallel(),
    "layers.*.w2": RowwiseParallel(),
    "output": ColwiseParallel(output_layouts=Replicate()),
}
SEQUENCE_PLAN = {
    "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
    "layers.*.attention_norm": SequenceParallel(),
    "layers.*.mlp_norm": SequenceParallel(),
    "layers.*.attention": PrepareModuleInput(
        input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
    ),
    **PLAN,
    "layers.*.attention.wo": RowwiseParallel(output_layouts=Shard(1)),
    "layers.*.w2": RowwiseParallel(output_layouts=Shard(1)),
    "norm": SequenceParallel(),
}


def train(model, prepare=lambda tokens: tokens, steps=3):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator, losses = torch.Generator().manual_seed(3), []
    for _ in range(steps):
        tokens = prepare(torch.randint(0, 64, (8, 16), generator=generator))
        loss = F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("plan", [PLAN, SEQUENCE_PLAN], ids=["tensor", "sequence"])
@pytest.mark.parametrize("fully_sharded", [False, True])
def test_losses_are_those_of_one_device(mesh, plan, fully_sharded):
    torch.manual_seed(0)
    reference = Transformer()
    model = copy.deepcopy(reference).to("spmd")
    report = spmd.tensor_parallel(model, mesh, plan)
    assert report.unmatched == []
    if fully_sharded:
        spmd.fsdp(model, mesh)

    def prepare(tokens):
        return spmd.mark_sharding(tokens.to("spmd"), mesh, P("data", None))

    torch.testing.assert_close(train(model, prepare), train(reference), rtol=1e-5, atol=1e-6)
    wo = spmd.sharding_of(model.layers["1"].attention.wo.weight).spec
    assert wo == (P("data", "model") if fully_sharded else P(None, "model"))


def test_what_is_sent_is_megatrons(mesh):
    mesh = spmd.make_mesh((4,), ("tp",))
    torch.manual_seed(0)
    model = Transformer(size=256, layers=2).to("spmd")
    spmd.tensor_parallel(model, mesh, PLAN)
    tokens = torch.randint(0, 64, (8, 128)).to("spmd")
    with torch.no_grad():
        x = model.layers["0"](model.tok_embeddings(tokens))
        spmd.sync(wait=True)
    kinds = [row.kind for row in spmd.debug.collectives() if row.bytes >= 4096]
    assert kinds == ["all_reduce", "all_reduce"], x.shape


def test_activations_of_sequence_parallelism_are_sharded_over_the_sequence(mesh):
    model = Transformer().to("spmd")
    spmd.tensor_parallel(model, mesh, SEQUENCE_PLAN)
    seen = []
    model.layers["0"].attention_norm.register_forward_hook(
        lambda module, args, result: seen.append(spmd.local_shards(result)[0].data.shape)
    )
    tokens = spmd.mark_sharding(
        torch.zeros(8, 16, dtype=torch.long).to("spmd"), mesh, ("data", None)
    )
    model(tokens)
    assert seen == [(4, 4, 32)]


def test_styles_that_prepare_inputs_and_outputs(mesh):
    class Pair(nn.Module):
        def forward(self, x, *, y=None):
            self.seen = [spmd.sharding_of(t).spec for t in (x, y)]
            return x + 1, y + 1

    def run(style):
        model = Pair().to("spmd")
        spmd.tensor_parallel(model, mesh, style, axis="model")
        results = model(torch.ones(8, 4, device="spmd"), y=torch.ones(8, 4, device="spmd"))
        return model.seen, [spmd.sharding_of(t).spec for t in results]

    inputs = {
        "input_layouts": (Replicate(),),
        "desired_input_layouts": (Shard(0),),
        "input_kwarg_layouts": {"y": Replicate()},
        "desired_input_kwarg_layouts": {"y": Shard(-1)},
    }
    outputs = {
        "output_layouts": (Replicate(), Replicate()),
        "desired_output_layouts": (Shard(1), Shard(0)),
    }
    seen, _ = run(PrepareModuleInput(**inputs))
    assert seen == [P("model", UNCONSTRAINED), P(UNCONSTRAINED, "model")]
    _, results = run(PrepareModuleOutput(**outputs))
    assert results == [P(UNCONSTRAINED, "model"), P("model", UNCONSTRAINED)]
    seen, results = run(PrepareModuleInputOutput(**inputs, **outputs))
    assert seen == [P("model", UNCONSTRAINED), P(UNCONSTRAINED, "model")]
    assert results == [P(UNCONSTRAINED, "model"), P("model", UNCONSTRAINED)]


def test_one_style_for_the_module_itself(mesh):
    model = nn.Embedding(64, 8).to("spmd")
    report = spmd.tensor_parallel(model, mesh, RowwiseParallel())
    assert report.sharded == {"weight": P("model", None)}


def test_modules_on_meta(mesh):
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 32), nn.Linear(32, 8))
    spmd.tensor_parallel(
        model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()}, materialize=True
    )
    assert spmd.sharding_of(model[1].weight).spec == P(None, "model")


def test_errors(mesh):
    class Own(ParallelStyle):
        def _apply(self, module, device_mesh):
            return module

    class OwnColwise(ColwiseParallel):
        pass

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).to("spmd")
    to_partial = PrepareModuleOutput(output_layouts=Shard(0), desired_output_layouts=Partial())
    for plan, error, message in (
        ({"0": Own()}, NotImplementedError, "plan\\['0'\\] is a Own, whose code is written for DT"),
        ({"0": OwnColwise()}, NotImplementedError, "is a OwnColwise"),
        (
            {"1": ColwiseParallel()},
            NotImplementedError,
            "for nn.Linear and nn.Embedding, not for R",
        ),
        ({"0": "colwise"}, TypeError, "plan\\['0'\\] must be a style"),
        (None, TypeError, "plan must be a style"),
        ({"0": to_partial}, ValueError, "is a partial sum, which cannot be asked for"),
    ):
        with pytest.raises(error, match=message):
            spmd.tensor_parallel(model, mesh, plan)
    with pytest.raises(ValueError, match=r"tensor_parallel: axis: .*'tp'"):
        spmd.tensor_parallel(model, mesh, PLAN, axis="tp")
    with pytest.raises(ValueError, match="say which one is the axis"):
        spmd.tensor_parallel(model, spmd.make_mesh((2, 2), ("a", "b")), PLAN)
    assert not spmd.sharding_of(model[0].weight).is_committed
    with pytest.warns(
        UserWarning, match=r"'layers\.\*' in plan matched no module; the names start"
    ):
        spmd.tensor_parallel(model, mesh, {"layers.*": ColwiseParallel()})
    spmd.fsdp(model, mesh)
    with pytest.raises(ValueError, match="call tensor_parallel before fsdp"):
        spmd.tensor_parallel(model, mesh, {"0": ColwiseParallel()})
