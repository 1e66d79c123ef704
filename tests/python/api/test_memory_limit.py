# SPDX-License-Identifier: Apache-2.0
"""Limits of memory: what is gathered again to keep them, what it costs, and what does not fit."""

import warnings

import pytest
import torch
from reported import reported
from torch import nn

import torch_spmd as spmd
from torch_spmd import _C

LAYERS, WIDTH = 8, 64
WEIGHT = 4 * WIDTH * WIDTH


@pytest.fixture(autouse=True)
def no_limit_afterwards():
    yield
    spmd.config.update(memory_limit=None)


def step():
    """One step of layers whose weights are sharded over four devices: gradients and the loss."""
    mesh = spmd.make_mesh((4,), ("x",))
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).to("spmd")
    for weight in net.parameters():
        spmd.mark_sharding(weight, mesh, ("x", None))
    # So many rows that moving weights is cheaper than moving activations.
    x = torch.randn(4 * 256, WIDTH).to("spmd")
    spmd.mark_sharding(x, mesh, ("x", None))
    loss = net(x).square().mean()
    loss.backward()
    return [loss.item(), *[weight.grad.cpu() for weight in net.parameters()]]


def wire_bytes():
    return sum(row.wire_bytes for row in spmd.debug.collectives(step=False).rows)


@pytest.fixture
def unlimited():
    """The peak, the bytes on the wire, and the results without a limit."""
    results = step()
    return spmd.debug.memory(step=False).peak_bytes, wire_bytes(), results


def test_gathers_again_where_a_limit_asks_for_it(unlimited):
    peak, sent, results = unlimited
    assert spmd.debug.memory().made_again == []
    limit = peak - 3 * WEIGHT
    spmd.config.update(memory_limit=limit)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        again = step()
    for ours, theirs in zip(again, results):
        torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(theirs))
    table = spmd.debug.memory()
    assert table.peak_bytes <= limit < table.peak_bytes_without
    assert len(table.made_again) >= 3
    assert {(row.how, row.bytes) for row in table.made_again} == {("gathered", WEIGHT)}
    assert all("test_memory_limit.py" in row.line for row in table.made_again)
    count = len(table.made_again)
    assert f"{count} values are gathered and 0 computed again, which sends" in table.note
    assert wire_bytes() == sent + table.again_wire_bytes
    assert (
        f"; gathers {count} and computes 0 values again"
        in spmd.debug.explain_compile().rows[-1].reason
    )
    assert any(
        f"gathers {count} and computes 0 values" in str(warning.message) for warning in given
    )


def test_a_program_is_compiled_anew_for_another_limit(unlimited):
    def compiles():
        before = reported()["compiles"]
        step()
        return reported()["compiles"] - before

    assert compiles() == 0
    spmd.config.update(memory_limit=unlimited[0] - WEIGHT)
    assert compiles() > 0
    assert compiles() == 0
    spmd.config.update(memory_limit=None)
    assert compiles() == 0


def test_what_does_not_fit_can_be_looked_at(unlimited):
    limit = unlimited[0] // 4
    spmd.config.update(memory_limit=limit)
    with pytest.raises(spmd.OutOfMemoryError) as raised:
        step()
    message = str(raised.value)
    assert "the limit that was set" in message and "What would make it fit: " in message
    assert "test_memory_limit.py" in message
    table = spmd.debug.memory()
    assert table.peak_bytes > limit
    assert "does not fit and did not run" in table.note
    assert any("test_memory_limit.py" in row.line for row in table.rows)
    assert "all_gather" in {row.kind for row in spmd.debug.collectives().rows}
    assert "all_gather" in spmd.debug.print_program(limit=1)
    assert spmd.debug.timeline("v5e-4").seconds > 0
    spmd.config.update(memory_limit=None)
    again = step()
    assert again[0] == pytest.approx(unlimited[2][0])
    assert "does not fit" not in spmd.debug.memory().note


def test_says_that_sharding_would_make_it_fit():
    mesh = spmd.make_mesh((8,), ("data",))
    w = torch.zeros(64, 64).to("spmd")
    spmd.mark_sharding(w, mesh, (None, None))
    spmd.sync()
    spmd.config.update(memory_limit=3 * WEIGHT // 2)
    with pytest.raises(spmd.OutOfMemoryError) as raised:
        (w * 2).cpu()
    assert (
        "shard the inputs that every device along 'data' (8) has a copy of: up to 28.0 KiB less, "
        "which is enough"
    ) in str(raised.value)
    spmd.config.update(memory_limit=None)
    assert (w + 1).sum().item() == 64 * 64


@pytest.mark.parametrize(
    "limit, count",
    [
        ("12GiB", 12 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("7kb", 7000),
        (" 100 ", 100),
        ("100B", 100),
        (2**40, 2**40),
    ],
)
def test_limits_are_text_or_bytes(limit, count):
    spmd.config.update(memory_limit=limit)
    assert _C.memory_limit() == count
    spmd.config.update(memory_limit=None)
    assert _C.memory_limit() == 0


@pytest.mark.parametrize(
    "limit, error",
    [
        ("12 gigs", ValueError),
        ("GiB", ValueError),
        ("-1GiB", ValueError),
        ("1e3", ValueError),
        ("", ValueError),
        ("0.1B", ValueError),
        ("0", ValueError),
        (0, ValueError),
        (-5, ValueError),
        (2**64, ValueError),
        ("9999999999999TiB", ValueError),
        (1.5, TypeError),
        (True, TypeError),
        (b"1GiB", TypeError),
        ([1], TypeError),
    ],
)
def test_wrong_limits(limit, error):
    spmd.config.update(memory_limit=77)
    with pytest.raises(error, match=r"config.update: .*limit"):
        spmd.config.update(memory_limit=limit)
    assert _C.memory_limit() == 77


def test_the_text_of_a_wrong_limit():
    with pytest.raises(ValueError) as raised:
        spmd.config.update(memory_limit="12 gigs")
    assert str(raised.value) == (
        "config.update: memory_limit is '12 gigs' (str), not a number of bytes such as \"12GiB\", "
        '"512 MiB", "1.5GB" or 2**30'
    )


def train(adam):
    """Three steps, data parallel over four devices: losses and parameters, the peak, wire bytes."""
    mesh = spmd.make_mesh((4,), ("x",))
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).to("spmd")
    if adam:
        optimizer = torch.optim.AdamW(net.parameters())
    else:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(3):
        x = spmd.mark_sharding(torch.randn(32, WIDTH).to("spmd"), mesh, ("x", None))
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach().cpu())
        peak, sent = spmd.debug.memory().peak_bytes, wire_bytes()
    return [*losses, *[weight.detach().cpu() for weight in net.parameters()]], peak, sent


@pytest.mark.parametrize("adam", (False, True), ids=("SGD", "AdamW"))
def test_updates_come_before_the_next_gradients_where_a_limit_asks_for_it(adam):
    """A gradient is given up when its parameter has been updated, so that they are not held
    together. Nothing more is sent, and the numbers are the same."""
    results, peak, sent = train(adam)
    # The gradients of all layers, reduced together, were held at the end.
    state = (3 if adam else 2) * LAYERS * WEIGHT
    assert peak >= state + LAYERS * WEIGHT
    limit = state + 5 * WEIGHT
    spmd.config.update(memory_limit=limit)
    again, held, sent_again = train(adam)
    assert held <= limit and sent_again == sent
    assert spmd.debug.memory().made_again == []
    for ours, theirs in zip(again, results):
        assert torch.equal(ours, theirs)
