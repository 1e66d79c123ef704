# SPDX-License-Identifier: Apache-2.0
"""On a backend that only plans: constants are computed, data is asked for, long steps stay whole.

Each test is a process of its own, since the backend is the process's.
"""

import importlib.util
import re
import textwrap

import pytest
from processes import run_script

HEAD = """
import torch, torch_spmd as spmd
from torch import nn
spmd.config.set_backend("mock_tpu:v5e-8:plan")
mesh = spmd.make_mesh((2, 4), ("data", "model"))
def refused(ask):
    try:
        ask()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("it was answered")
"""


def planned(script: str) -> str:
    code = HEAD + textwrap.dedent(script)
    return run_script(f"exec(compile({code!r}, 'train.py', 'exec'))").stdout


def test_what_depends_on_constants_only_is_computed():
    planned("""
        made = torch.ones(4, 32, dtype=torch.int64, device="spmd")
        uploaded = torch.ones(4, 32, dtype=torch.int64).to("spmd")
        spmd.mark_sharding(uploaded, mesh, ("data", None))
        for mask in (made, uploaded):
            assert mask.bool().all().item() is True
            assert bool((mask.sum(-1) == 32).all())
        uploaded[2, 5:] = 0
        assert not uploaded.all() and uploaded.sum().item() == 4 * 32 - 27
        spmd.sync(wait=True)
        assert uploaded.sum(1).tolist() == [32, 32, 5, 32]
        where = torch.arange(5, device="spmd")
        causal = where[:, None] >= where[None, :]
        spmd.sync(wait=True)
        assert torch.equal(causal.cpu(), torch.ones(5, 5).tril().bool())
        places = (causal & (where < 2)).nonzero()
        assert places.shape == (9, 2) and places[:, 0].tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 4]
        assert torch.tensor(2.5).to("spmd").add(1).item() == 3.5
        empty = torch.zeros(0, 3, device="spmd")
        assert empty.sum().item() == 0 and empty.cpu().shape == (0, 3)
        assert torch.full((2,), 7, dtype=torch.uint8, device="spmd").tolist() == [7, 7]
        assert torch.full((), 1 + 2j, device="spmd").item() == 1 + 2j
    """)


def test_counters_are_known_however_long_they_count():
    planned("""
        count = torch.zeros((), device="spmd")
        for step in range(100):
            count += 1
            spmd.sync()
        assert count.item() == 100
    """)


@pytest.mark.parametrize(
    ("data", "question", "asked"),
    [
        ("torch.randn(8, device='spmd')", "(x > 0).all()", "aten::all"),
        ("torch.randn(8).to('spmd')", "x.sum() > 3", "aten::gt.Scalar"),
        ("torch.ones(8).to('spmd')", "x.isnan().any()", "aten::any"),
        ("nn.Linear(8, 8, device='spmd').weight", "(x * 0).sum() == 0", "aten::eq.Scalar"),
    ],
)
def test_a_question_about_data_is_named(data, question, asked):
    said = planned(f"""
        x = {data}
        print(refused(lambda: bool({question})))
    """)
    line = re.search(r"train.py:\d+", said)
    assert line is not None and said.startswith(f"item at {line[0]} asks for the value of {asked}")
    assert f"with spmd.planning.assume({{'{line[0]}': True}}): …" in said
    assert "depends on data" in said and "drop ':plan'" in said


def test_answers():
    planned("""
        x = torch.randn(8, device="spmd")
        loss = x.sum()
        with spmd.planning.assume({"aten::sum": 2, "nothing like it": 3}):
            assert loss.item() == 2.0
            with spmd.planning.assume(0.5):
                assert loss.item() == 0.5 and (x > 0).tolist() == [True] * 8
            assert "aten::any" in refused((x > 0).any().item)
        with spmd.planning.assume({"train.py": 5}):  # how many there are
            assert (x > 0).nonzero().shape == (5, 1)
        assert "aten::sum" in refused(loss.item)
    """)


def test_large_constants_are_not_computed():
    said = planned("""
        ones = torch.ones(1 << 30, device="spmd")
        print(refused(ones.sum().item))
    """)
    assert "MiB to compute" in said and "spmd.planning.assume" in said


def test_weights_that_begin_as_constants_take_no_memory():
    planned("""
        import resource
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        norms = [torch.ones(1 << 22, device="spmd") for _ in range(1000)]
        for norm in norms:
            spmd.mark_sharding(norm, mesh, ("model",))
        spmd.sync(wait=True)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown < 200 * 1024, grown
    """)


# transformers 5, masking_utils.py: what decides whether a mask is needed at all.
MASKS = """
def needs_no_mask(padding_mask, queries, keys):
    return (queries == 1 or keys == queries) and (padding_mask is None or padding_mask.all())

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

    def forward(self, x, padding_mask):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, 4, 8).transpose(1, 2) for y in self.qkv(x).split(32, -1))
        mask = None
        if not needs_no_mask(padding_mask, t, t):
            where = torch.arange(t, device=x.device)
            mask = (where[None] <= where[:, None]) & padding_mask[:, None, None, :].bool()
        y = nn.functional.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None)
        return self.out(y.transpose(1, 2).reshape(b, t, -1)), mask is None
"""


def test_masks_of_transformers():
    planned(
        MASKS
        + textwrap.dedent("""
        layer = Attention().to("spmd")
        optimizer = torch.optim.AdamW(layer.parameters())
        for padded in (False, True, False):
            host = torch.ones(4, 16, dtype=torch.int64)
            if padded:
                host[1, 9:] = 0
            x = spmd.mark_sharding(torch.randn(4, 16, 32).to("spmd"), mesh, ("data", None, None))
            y, without = layer(x, host.to("spmd"))
            assert without is not padded
            y.square().mean().backward()
            optimizer.step()
            assert spmd.debug.memory().peak_bytes > 0
    """)
    )


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="no transformers")
@pytest.mark.parametrize("name", ["Llama", "Bert", "T5"])
def test_models_of_transformers(name):
    planned(f"""
        import transformers as tf
        small = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
                     intermediate_size=128, vocab_size=256)
        ids = torch.randint(0, 256, (4, 32))
        model = dict(
            Llama=lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**small)),
            Bert=lambda: tf.BertForMaskedLM(tf.BertConfig(**small)),
            T5=lambda: tf.T5ForConditionalGeneration(tf.T5Config(
                d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, vocab_size=256,
                decoder_start_token_id=0, pad_token_id=0)),
        )["{name}"]().to("spmd").train()
        optimizer = torch.optim.AdamW(model.parameters())
        mask = torch.ones(4, 32, dtype=torch.int64)
        mask[1, 20:] = 0
        for m in (mask, torch.ones_like(mask)):
            model(input_ids=ids.to("spmd"), labels=ids.to("spmd"),
                  attention_mask=m.to("spmd")).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert spmd.debug.memory().peak_bytes > 0
    """)


@pytest.mark.parametrize("foreach", [False, True])
def test_adafactor_plans_without_answers(foreach):
    planned(f"""
        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 8)).to("spmd")
        spmd.shard_module(model, mesh, {{"0.weight": ("model", None), "2.weight": (None, "model")}})
        optimizer = torch.optim.Adafactor(model.parameters(), foreach={foreach})
        for _ in range(2):
            x = spmd.mark_sharding(torch.randn(32, 64).to("spmd"), mesh, ("data", None))
            model(x).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert spmd.debug.memory(step=True).peak_bytes > 64 * 256
        assert len(spmd.debug.collectives(step=True)) > 0
        assert "aten::sum" in refused(model(x).sum().item)
    """)


def test_a_training_step_is_one_program_however_many_layers_it_has():
    """Also under checkpointing, where few values are held between the layers."""
    said = planned("""
        from torch.utils.checkpoint import checkpoint

        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
            def forward(self, x):
                for _ in range(12):
                    x = x * 1.5 + x.sin() - x.cos()
                h = self.up(x)
                heads = h.view(4, 2, 4, 8).transpose(1, 2)
                spmd.mark_sharding(heads, mesh, ("data", "model", None, None))
                return x + self.down(heads.transpose(1, 2).reshape(4, 2, 32))

        blocks = nn.ModuleList(Block() for _ in range(256)).to("spmd")
        optimizer = torch.optim.AdamW(blocks.parameters(), foreach=False)
        x = torch.randn(4, 2, 8, device="spmd")
        spmd.sync()
        before = len(spmd.debug.explain_compile().rows)
        y = x
        for block in blocks:
            y = checkpoint(block, y, use_reentrant=False)
        y.sum().backward()
        optimizer.step()
        rows = spmd.debug.explain_compile().rows[before:]
        print([(row.ended_by, row.ops > 50_000) for row in rows])
    """)
    assert said.strip() == "[('optimizer step', True)]"


def test_a_mark_on_a_view_means_the_same_before_and_after_a_cut():
    planned("""
        weight = torch.randn(8, 32, device="spmd")
        layouts = []
        for cut in (False, True):
            hidden = torch.randn(4, 6, 8, device="spmd") @ weight
            spmd.mark_sharding(hidden, mesh, ("data", None, None))
            if cut:
                spmd.sync()
            heads = hidden.view(4, 6, 8, 4).transpose(1, 2)
            spmd.mark_sharding(heads, mesh, ("data", "model", None, None))
            y = heads * 2
            spmd.sync()
            layouts.append(spmd.sharding_of(y).spec)
        assert layouts == [spmd.P("data", "model", None, None)] * 2, layouts
    """)


UPDATES = """
LAYERS, WIDTH = 12, 256
N = 4 * WIDTH * WIDTH
def peak(make=lambda ps: torch.optim.SGD(ps, lr=0.1), first=None, between=None, head=False):
    layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
    net = nn.Sequential(*([first] if first is not None else []), *layers).to("spmd")
    optimizer = make(net.parameters())
    for k in range(2):
        if head:
            optimizer.zero_grad()
        if first is None:
            x = torch.randn(1, WIDTH).to("spmd")
        else:
            x = torch.tensor([k, 3]).to("spmd")
        net(x).square().sum().backward()
        if between is not None:
            between(net)
        optimizer.step()
        if not head:
            optimizer.zero_grad()
    inputs = sum(4 * p.numel() for p in net.parameters())
    return spmd.debug.memory().peak_bytes - inputs
"""


def test_each_parameter_is_updated_where_its_gradient_is_made():
    """Beyond parameters and moments a step holds one gradient, however many layers there are,
    unless all gradients are needed at once."""
    planned(
        UPDATES
        + """
few = N // 8  # activations
assert N <= peak() <= N + few
adam = lambda ps: torch.optim.AdamW(ps, lr=0.1)
moments = 2 * LAYERS * N
assert moments + N <= peak(adam) <= moments + N + few
assert peak(head=True) >= LAYERS * N
clip = lambda net: nn.utils.clip_grad_norm_(net.parameters(), 1.0)
assert peak(between=clip) >= LAYERS * N
"""
    )


def test_no_parameter_is_updated_before_a_call_that_may_fail():
    """Indices that a program is given are checked before it begins; others fail in the last call of
    the backward pass, which then finds all parameters as they were."""
    planned(
        UPDATES
        + """
class Lookup(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.table, self.given = nn.Embedding(8, WIDTH), given
    def forward(self, index):
        return self.table(index if self.given else index * 2)

assert peak(first=Lookup(True)) <= N + N // 8
assert peak(first=Lookup(False)) >= LAYERS * N
"""
    )
