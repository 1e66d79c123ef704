# SPDX-License-Identifier: Apache-2.0
"""Positions along a sharded dimension that change from step to step: results, and what is sent."""

import pytest
import torch
from reported import reported

import torch_spmd as spmd

pytestmark = pytest.mark.modes("in_turns")

DEVICES, ROWS, COLUMNS = 8, 1024, 16
ROW = COLUMNS * 4  # bytes
X = torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)
# What a device sends of an all-reduce of one byte.
REDUCED = 2 * (DEVICES - 1) / DEVICES


def marked(x, dim=0):
    spec = tuple("x" if d == dim else None for d in range(x.dim()))
    return spmd.mark_sharding(x.to("spmd"), spmd.make_mesh((DEVICES,), ("x",)), spec)


def sent():
    return sum(row.wire_bytes for row in spmd.debug.collectives().rows)


def rounds(body, *starts):
    """By start: what a device sends, and whether a program was compiled."""
    bytes_sent, compiled = [], []
    for start in starts:
        before = reported()["compiles"]
        body(start)
        spmd.sync(wait=True)
        bytes_sent.append(sent())
        compiled.append(reported()["compiles"] > before)
    assert compiled[2:] == [False] * len(starts[2:])
    return bytes_sent


READS = {
    "slice": (lambda x, i: x[i : i + 8], 8),
    "across shards": (lambda x, i: x[i + 120 : i + 132], 12),
    "narrow": (lambda x, i: x.narrow(0, i, 5), 5),
    "select": (lambda x, i: x[i], 1),
    "narrow_copy": (lambda x, i: torch.narrow_copy(x, 0, i, 3), 3),
    "chunk": (lambda x, i: x.chunk(ROWS // 8)[i], 8),
}


@pytest.mark.parametrize("name", READS)
def test_the_owner_of_rows_sends_them(name):
    read, rows = READS[name]
    x = marked(X)

    def body(i):
        y = read(x, i) * 2
        torch.testing.assert_close(y.cpu(), read(X, i) * 2)

    assert rounds(body, 1, 9, 65, 3)[1:] == [REDUCED * rows * ROW] * 3


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16])
def test_rows_of_other_types(dtype):
    host = (X % 3).to(dtype)
    x = marked(host)
    for i in (0, 5, 127, 1000):
        assert torch.equal(x[i : i + 4].cpu(), host[i : i + 4])


def test_a_sum_of_rows_sends_one_number():
    x, w = marked(X), torch.ones(COLUMNS, 3).to("spmd")
    sums = []
    assert (
        rounds(lambda i: sums.append((x[i : i + 8] @ w).sum()), 1, 9, 65)[1:] == [REDUCED * 4] * 2
    )
    assert [s.item() for s in sums] == [3 * X[i : i + 8].sum().item() for i in (1, 9, 65)]


def test_a_marked_batch_is_scattered():
    x = marked(X)

    def body(i):
        batch = marked(x[i : i + 64] * 1)
        assert torch.equal(batch.cpu(), X[i : i + 64])

    part = 64 * ROW * (DEVICES - 1) / DEVICES
    assert max(rounds(body, 1, 9, 65)[1:]) <= 2 * part


WRITES = {
    "slice": lambda x, i, k: x[:, i : i + 2].copy_(k),
    "select": lambda x, i, k: x[:, i].copy_(k[:, 0]),
    "setitem": lambda x, i, k: x.__setitem__((slice(None), slice(i, i + 2)), k),
    "slice_scatter": lambda x, i, k: x.copy_(x.slice_scatter(k, 1, i, i + 2)),
    "fill": lambda x, i, k: x[:, i : i + 2].fill_(3),
    "add": lambda x, i, k: x[:, i : i + 2].add_(k),
}


@pytest.mark.parametrize("name", WRITES)
def test_rows_are_written_where_they_are(name):
    host, k = torch.zeros(2, 64, 4), torch.randn(2, 2, 4)
    cache, there = marked(host.clone(), dim=1), k.to("spmd")
    spmd.sync(wait=True)

    def body(i):
        WRITES[name](cache, i, there)
        WRITES[name](host, i, k)

    # What is written is brought to the devices. What is added to is read, too.
    assert max(rounds(body, 1, 7, 30, 62)) <= k.nbytes or name == "add"
    assert spmd.sharding_of(cache).spec == (None, "x", None)
    torch.testing.assert_close(cache.cpu(), host)


def test_gradients_of_rows_stay_where_they_are():
    host = X.clone().requires_grad_()
    x = marked(X.clone()).requires_grad_()

    def body(i):
        (x[i : i + 8] ** 2).sum().backward()
        (host[i : i + 8] ** 2).sum().backward()

    body(1)  # makes the gradient, to which the others add
    spmd.sync()
    assert max(rounds(body, 9, 65, 3)) <= REDUCED * 8 * ROW
    torch.testing.assert_close(x.grad.cpu(), host.grad)
    assert spmd.sharding_of(x.grad).spec == ("x", None)


@pytest.mark.parametrize("sign", [1, -1, ROWS - 1])
def test_a_short_roll_sends_what_lies_beside_a_shard(sign):
    x = marked(X)

    def body(i):
        assert torch.equal((x.roll(sign * i, 0) * 2).cpu(), X.roll(sign * i, 0) * 2)

    # Of 1024 rows at most 64, which is a sixteenth, are known to move.
    assert rounds(body, 5, 9, 61, 20)[1:] == [64 * ROW] * 3


def test_a_roll_of_a_long_shift_is_right():
    x = marked(X)
    for i in (1, 2, 400, 500, 600, -512, 1024, 64, -64, 65, 0):
        assert torch.equal((x.roll(i, 0) * 2).cpu(), X.roll(i, 0) * 2)


def test_a_roll_along_another_dimension_sends_nothing():
    x = marked(X)

    def body(i):
        assert torch.equal((x.roll((0, i), (0, 1)) * 2).cpu(), X.roll((0, i), (0, 1)) * 2)

    assert rounds(body, 1, 2, 3) == [0] * 3


@pytest.mark.parametrize("rows", [16, 32, 48, 80, 96, 7 * 16])
def test_a_roll_of_uneven_shards(rows):
    host = X[:rows]
    x = spmd.mark_sharding(host.to("spmd"), spmd.make_mesh((3,), ("x",)), ("x", None))
    for i in (1, 2, 3, -1, -2, rows // 16):
        assert torch.equal((x.roll(i, 0) * 2).cpu(), host.roll(i, 0) * 2)
