# SPDX-License-Identifier: Apache-2.0
"""Dimensions of several blocks, each of which is sharded: projections that are one weight."""

import copy
import io
import pickle
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

import torch_spmd as spmd
from torch_spmd import P, blocks

WIDTH, HEADS, LENGTH, BATCH, LAYERS = 64, 8, 24, 4, 2
ACTIVATION = (
    4 * BATCH * LENGTH * WIDTH
)  # bytes of the activations that a block of a network adds to its input


class FusedAttention(nn.Module):
    """As in GPT-2: one projection for queries, keys and values."""

    def __init__(self, conv):
        super().__init__()
        self.c_attn = Conv1D(3 * WIDTH, WIDTH) if conv else nn.Linear(WIDTH, 3 * WIDTH)
        self.c_proj = Conv1D(WIDTH, WIDTH) if conv else nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))

    def marks(self, axis):
        out = isinstance(self.c_attn, nn.Linear)
        fused = (blocks(3, axis), None) if out else (None, blocks(3, axis))
        return [
            (self.c_attn.weight, fused),
            (self.c_attn.bias, (blocks(3, axis),)),
            (self.c_proj.weight, (None, axis) if out else (axis, None)),
        ]


class MultiheadAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attn = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        return self.attn(x, x, x, need_weights=False)[0]

    def marks(self, axis):
        return [
            (self.attn.in_proj_weight, (blocks(3, axis), None)),
            (self.attn.in_proj_bias, (blocks(3, axis),)),
            (self.attn.out_proj.weight, (None, axis)),
        ]


class UnboundAttention(FusedAttention):
    """As in vision transformers: heads are split before queries, keys and values are."""

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.c_attn(x).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.c_proj(y.transpose(1, 2).flatten(2))


class GatedMLP(nn.Module):
    """As in models of the Llama family that keep gate and up in one weight."""

    def __init__(self):
        super().__init__()
        self.gate_up = nn.Linear(WIDTH, 2 * 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)

    def marks(self, axis):
        return [(self.gate_up.weight, (blocks(2, axis), None)), (self.down.weight, (None, axis))]


class GLU(GatedMLP):
    def forward(self, x):
        return self.down(F.glu(self.gate_up(x)))


class Block(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = inner

    def forward(self, x):
        return x + self.inner(self.norm(x))


FUSED = {
    "linear": lambda: FusedAttention(conv=False),
    "conv1d": lambda: FusedAttention(conv=True),
    "unbound": lambda: UnboundAttention(conv=False),
    "in_proj": MultiheadAttention,
    "gate_up": GatedMLP,
    "glu": GLU,
}


def network(kind):
    torch.manual_seed(0)
    return nn.Sequential(*[Block(FUSED[kind]()) for _ in range(LAYERS)])


def mark(tensor, mesh, spec):
    spmd.mark_sharding(tensor, mesh, P(*spec))


def mark_view(tensor, mesh, spec):
    """The same mark, on the view in which the blocks are a dimension of their own."""
    with torch.no_grad():
        view, plain = tensor, []
        for d in reversed(range(len(spec))):
            if isinstance(spec[d], blocks):
                view = view.unflatten(d, (spec[d].n, -1))
        for entry in spec:
            plain += [None, entry.axes] if isinstance(entry, blocks) else [entry]
        spmd.mark_sharding(view, mesh, P(*plain))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, eps=1e-3),
    "adamw, one by one": lambda p: torch.optim.AdamW(p, 1e-2, eps=1e-3, foreach=False),
}


def step(model, optimizer, device, seed, micro=1, clip=None, inputs=None):
    torch.manual_seed(seed)
    total = 0.0
    for _ in range(micro):
        x = torch.randn(BATCH, LENGTH, WIDTH).to(device)
        if inputs is not None and device == "spmd":
            inputs(x)
        loss = (model(x) ** 2).mean() / micro
        loss.backward()
        total = total + loss.detach()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    optimizer.zero_grad()
    return total


def train(model, optimizer="adamw", steps=4, **how):
    """Trains the model and its copy on the CPU; the collectives of the third step."""
    reference = copy.deepcopy(model).cpu()
    ours, theirs = (OPTIMIZERS[optimizer](m.parameters()) for m in (model, reference))
    for seed in range(steps):
        loss = step(model, ours, "spmd", seed, **how)
        expected = step(reference, theirs, "cpu", seed, **how)
        if seed == 2:
            spmd.sync()
            table = spmd.debug.collectives()
        torch.testing.assert_close(loss.cpu(), expected, rtol=1e-5, atol=1e-6)
    for p, q in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(p.detach().cpu(), q.detach(), rtol=1e-3, atol=1e-4)
    return table, ours


def whole_reductions(table):
    """The collectives that are sent, asserting that all of them are reductions."""
    assert {row.kind for row in table.rows} == {"all_reduce"}
    return sum(row.bytes >= ACTIVATION for row in table.rows)


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("model",))


@pytest.mark.parametrize("how", [mark, mark_view])
@pytest.mark.parametrize("kind", FUSED)
def test_a_layer_sends_two_reductions(mesh, kind, how):
    model = network(kind).to("spmd")
    for block in model:
        for tensor, spec in block.inner.marks("model"):
            how(tensor, mesh, spec)
    table, optimizer = train(model)
    # The gradient of the input is not needed. The gradients of the first layer's norm are;
    # they are reduced before or after they are summed over the tokens.
    assert LAYERS * 2 - 1 <= whole_reductions(table) <= LAYERS * 2
    for block in model:
        weight, spec = block.inner.marks("model")[0]
        assert spmd.sharding_of(weight).spec == P(*spec)
        for name in ("exp_avg", "exp_avg_sq"):
            assert spmd.sharding_of(optimizer.state[weight][name]).spec == P(*spec)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(mesh, optimizer):
    model = network("linear").to("spmd")
    for block in model:
        for tensor, spec in block.inner.marks("model"):
            mark(tensor, mesh, spec)
    table, _ = train(model, optimizer)
    assert whole_reductions(table) <= LAYERS * 2


def test_micro_steps_and_clipping(mesh):
    model = network("conv1d").to("spmd")
    for block in model:
        for tensor, spec in block.inner.marks("model"):
            mark(tensor, mesh, spec)
    table, _ = train(model, micro=2, clip=0.1)
    assert whole_reductions(table) <= 2 * LAYERS * 2


@pytest.mark.parametrize("kind", FUSED)
def test_beside_data_parallelism(kind):
    mesh = spmd.make_mesh((2, 2), ("data", "model"))
    model = network(kind).to("spmd")
    for block in model:
        for tensor, spec in block.inner.marks("model"):
            mark(tensor, mesh, spec)
    table, _ = train(model, inputs=lambda x: mark(x, mesh, ("data", None, None)))
    assert {row.kind for row in table.rows} == {"all_reduce"}


def test_a_weight_sharded_in_both_dimensions():
    mesh = spmd.make_mesh((2, 2), ("data", "model"))
    model = network("linear").to("spmd")
    for block in model:
        for tensor, spec in block.inner.marks("model"):
            cut = tuple("data" if entry is None else entry for entry in spec)
            mark(tensor, mesh, cut)
    table, _ = train(model, inputs=lambda x: mark(x, mesh, ("data", None, None)))
    assert set(Counter(row.kind for row in table.rows)) <= {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
    }


def test_uneven_blocks():
    mesh = spmd.make_mesh((4,), ("model",))
    layer = nn.Linear(6, 3 * 10).to("spmd")
    mark(layer.weight, mesh, (blocks(3, "model"), None))
    mark(layer.bias, mesh, (blocks(3, "model"),))
    reference = copy.deepcopy(layer).cpu()
    for net, device in ((layer, "spmd"), (reference, "cpu")):
        optimizer = torch.optim.AdamW(net.parameters(), 0.1)
        for seed in range(3):
            torch.manual_seed(seed)
            q, k, v = net(torch.randn(5, 6).to(device)).chunk(3, -1)
            (q * k.tanh() + v).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(layer.weight.cpu(), reference.weight)
    assert {row.kind for row in spmd.debug.collectives().rows} <= {"all_reduce"}
    sizes = [tuple(shard.data.shape) for shard in spmd.local_shards(layer.weight)]
    assert sizes == [(3, 3, 6), (3, 3, 6), (3, 3, 6), (3, 1, 6)]


# --- one tensor ---


@pytest.fixture
def data():
    return torch.arange(8 * 30.0).view(8, 30)


def fused(data, mesh):
    return spmd.mark_sharding(data.to("spmd"), mesh, P(None, blocks(3, "model")))


def saved(tensor):
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    return torch.load(file)


COPIES = {
    "clone": torch.clone,
    "detach": torch.detach,
    "contiguous": torch.Tensor.contiguous,
    "deepcopy": copy.deepcopy,
    "pickle": lambda t: pickle.loads(pickle.dumps(t)),
    "torch.save": saved,
    "double": torch.Tensor.double,
    "the CPU and back": lambda t: t.cpu().to("spmd"),
    "reshard": lambda t: spmd.reshard(t * 1, spmd.sharding_of(t).mesh, P(None, blocks(3, "model"))),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_keep_blocks(mesh, data, name):
    result = COPIES[name](fused(data, mesh))
    sharding = spmd.sharding_of(result)
    assert sharding.spec == P(None, blocks(3, "model")) and sharding.is_committed
    assert torch.equal(result.cpu().float(), data)
    assert spmd.local_shards(result)[0].data.shape == (8, 3, 3)


@pytest.mark.parametrize("assign", [False, True])
def test_state_dicts_keep_blocks(mesh, assign):
    source, target = nn.Linear(8, 30).to("spmd"), nn.Linear(8, 30).to("spmd")
    for module in (source, target):
        mark(module.weight, mesh, (blocks(3, "model"), None))
    target.load_state_dict(source.state_dict(), assign=assign)
    assert spmd.sharding_of(target.weight).spec == P(blocks(3, "model"), None)
    assert torch.equal(target.weight.cpu(), source.weight.cpu())


def test_shards_of_blocks(mesh, data):
    weight = fused(data, mesh)
    shards = spmd.local_shards(weight)
    apart = data.view(8, 3, 10)
    assert all(torch.equal(shard.data, apart[shard.index]) for shard in shards)
    again = spmd.from_local_shards(shards, mesh, P(None, blocks(3, "model")), (8, 30))
    assert torch.equal(again.cpu(), data)
    assert spmd.sharding_of(again) == spmd.sharding_of(weight)
    weight.zero_()
    assert torch.equal(spmd.load_local_shards_(weight, shards).cpu(), data)
    assert "drawn as (8, 3, 10)" in str(spmd.debug.visualize_sharding(weight))


def test_views_and_writes(mesh, data):
    weight = fused(data, mesh)
    assert spmd.sharding_of(weight.view(8, 3, 10)).spec == P(None, None, "model")
    assert spmd.sharding_of(weight.t()).spec == P(blocks(3, "model"), None)
    assert spmd.sharding_of(weight[:, 10:20]).spec == P(None, "model")
    weight[:, :10].mul_(2)
    weight.add_(1)
    expected = data.clone()
    expected[:, :10] *= 2
    expected += 1
    assert torch.equal(weight.cpu(), expected)
    assert not spmd.debug.collectives().rows
    assert spmd.sharding_of(weight).spec == P(None, blocks(3, "model"))


def test_the_same_blocks_in_two_forms_are_one_mark(mesh, data):
    weight = fused(data, mesh)
    mark(weight, mesh, (None, blocks(3, "model")))
    mark(weight.unflatten(1, (3, 10)), mesh, (None, None, "model"))
    with pytest.raises(ValueError, match=r"is marked \(None, blocks\(3, 'model'\)\) on mesh"):
        mark(weight, mesh, (None, "model"))
    spmd.clear_sharding(weight)
    mark(weight, mesh, (None, blocks(2, "model")))
    assert torch.equal(weight.cpu(), data)


def test_a_copied_mark_can_be_replaced(mesh, data):
    plain = spmd.mark_sharding(data.to("spmd"), mesh, P(None, "model"))
    copied = plain.clone()
    mark(copied, mesh, (None, blocks(3, "model")))
    assert spmd.sharding_of(copied).spec == P(None, blocks(3, "model"))
    assert torch.equal(copied.cpu(), data)


def test_compiled(mesh, data):
    spec = P(None, blocks(3, "model"))

    def double(x):
        y = spmd.reshard(x, mesh, P(None, blocks(3, "model"))) * 2
        spmd.mark_sharding(y, mesh, P(None, blocks(3, "model")))
        return y

    result = torch.compile(double, backend="aot_eager", fullgraph=True)(data.to("spmd"))
    assert torch.equal(result.cpu(), 2 * data)
    assert spmd.sharding_of(result).spec == spec


def test_tied_weights(mesh):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 24, bias=False), nn.Linear(8, 24, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x):
            q, k, v = self.first(x).chunk(3, -1)
            return self.second(q * k + v).chunk(3, -1)[1]

    torch.manual_seed(0)
    model = Tied().to("spmd")
    mark(model.first.weight, mesh, (blocks(3, "model"), None))
    reference = copy.deepcopy(model).cpu()
    assert spmd.sharding_of(model.second.weight).spec == P(blocks(3, "model"), None)
    for net, device in ((model, "spmd"), (reference, "cpu")):
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for seed in range(3):
            torch.manual_seed(seed)
            net(torch.randn(5, 8).to(device)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(model.first.weight.cpu(), reference.first.weight)


def test_specs_as_values(mesh):
    spec = P(None, blocks(3, "model"))
    assert repr(spec) == "P(None, blocks(3, 'model'))"
    assert pickle.loads(pickle.dumps(spec)) == spec == P(None, blocks(3, "model"))
    assert hash(spec) == hash(P(None, blocks(3, "model"))) != hash(P(None, "model"))
    sharding = spmd.NamedSharding(mesh, spec)
    assert sharding == spmd.NamedSharding(mesh, P(None, blocks(3, 0)))
    assert sharding.hlo_string() == "{devices=[1,1,4]0,1,2,3}"
    assert hash(sharding) == hash(spmd.NamedSharding(mesh, P(None, blocks(3, 0))))
    assert sharding != spmd.NamedSharding(mesh, P(None, "model"))
    assert sharding != spmd.NamedSharding(mesh, P(None, blocks(2, "model")))
    assert spmd.NamedSharding(mesh, P(blocks(1, "model"))) == spmd.NamedSharding(mesh, P("model"))


NO_AXES = "give the axis that shards each block, by name or index, or a tuple of axes"


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (
            lambda: blocks(0, "x"),
            ValueError,
            "blocks: n must be an integer of 64 bits, 1 or more; got 0",
        ),
        (lambda: blocks(10**30, "x"), ValueError, "blocks: n must be an integer of 64 bits"),
        (lambda: blocks(2.5, "x"), TypeError, r"blocks: n must be an integer; got 2.5 \(float\)"),
        (lambda: blocks((4, 2, 2), "x"), TypeError, "blocks of unequal sizes are not supported"),
        (lambda: blocks(3, None), TypeError, NO_AXES),
        (lambda: blocks(3, ()), TypeError, NO_AXES),
        (lambda: blocks(3, blocks(2, "x")), TypeError, NO_AXES),
        (lambda: P(("x", blocks(2, "y"))), TypeError, r"entry 0 contains blocks\(2, 'y'\)"),
    ],
)
def test_malformed_entries(make, kind, message):
    with pytest.raises(kind, match=message):
        make()


@pytest.mark.parametrize(
    ("shape", "spec", "message"),
    [
        ((8, 10), P(None, blocks(3, "model")), "its size is 10, which 3 does not divide"),
        ((), P(blocks(3, "model")), "has 1 entry but the tensor has 0 dimensions"),
        ((8, 9), P(None, blocks(3, "modle")), "did you mean 'model'"),
        ((8, 9), P("model", blocks(3, "model")), "in dimensions 0 and 1"),
    ],
)
def test_specs_that_do_not_fit(mesh, shape, spec, message):
    for call in (spmd.mark_sharding, spmd.reshard):
        with pytest.raises(ValueError, match=message):
            call(torch.ones(shape, device="spmd"), mesh, spec)


def test_part_of_a_tensor_has_no_blocks(mesh):
    with pytest.raises(ValueError, match="marks a whole tensor, or a copy"):
        mark(torch.ones(8, 60, device="spmd")[:, :30], mesh, (None, blocks(3, "model")))


def test_a_held_result_of_merged_tokens_is_not_gathered():
    mesh = spmd.make_mesh((4,), ("data",))
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).to("spmd")
    optimizer = torch.optim.SGD(attention.parameters(), 0.1)
    for _ in range(3):
        x = torch.randn(BATCH, LENGTH, WIDTH).to("spmd")
        mark(x, mesh, ("data", None, None))
        out = attention(x, x, x, need_weights=False)[0]
        out.pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert {row.kind for row in spmd.debug.collectives().rows} == {"all_reduce"}
    assert spmd.sharding_of(out).spec == P("data", None, None)
