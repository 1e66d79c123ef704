# SPDX-License-Identifier: Apache-2.0
"""Each thread records by itself, and values may be used by any thread."""

from __future__ import annotations

import copy
import queue
import threading

import pytest
import torch
from reported import reported
from torch import nn

import torch_spmd as spmd


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("a",))


def in_thread(function, *args):
    """What the function returns, from a thread of its own that has ended."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    thread.join()
    return results[0]


def in_threads(count, function):
    results = [None] * count

    def run(i):
        results[i] = function(i)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def compiles():
    return reported()["compiles"]


def net(seed, layers=6):
    torch.manual_seed(seed)
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(16, 16), nn.Tanh())])


def sharded(module, mesh):
    module = module.to("spmd")
    for layer in module[::2]:
        spmd.mark_sharding(layer.weight, mesh, ("a", None))
    return module


def train(module, steps, device):
    optimizer = torch.optim.AdamW(module.parameters(), 0.01)
    for _ in range(steps):
        loss = module(torch.ones(8, 16).to(device)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss


def test_threads_that_train_compile_what_one_does(mesh):
    nets = [net(i) for i in range(4)]
    expected = [train(copy.deepcopy(n), 8, "cpu").item() for n in nets]
    nets = [sharded(n, mesh) for n in nets]
    spmd.sync()
    losses = [train(nets[0], 8, "spmd").item()]
    known = compiles()
    losses += in_threads(3, lambda i: train(nets[i + 1], 8, "spmd").item())
    assert compiles() == known
    assert losses == pytest.approx(expected, rel=1e-4)


def test_batches_that_a_thread_prepares_are_part_of_the_step(mesh):
    module = sharded(net(0), mesh)
    optimizer = torch.optim.SGD(module.parameters(), 0.01)

    def batch(i):
        x = spmd.mark_sharding(torch.full((8, 16), float(i)).to("spmd"), mesh, ("a", None))
        return ((x - 3.0) / 2.0).flip(1)

    def steps(batches):
        losses = []
        for i, x in enumerate(batches):
            loss = module(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if i % 5 == 4:
                losses.append(loss.item())
        return losses

    def prefetched(count):
        made = queue.Queue(2)

        def make():
            for i in range(count):
                made.put(batch(i))
            made.put(None)

        thread = threading.Thread(target=make)
        thread.start()
        while (x := made.get()) is not None:
            yield x
        thread.join()

    start = copy.deepcopy(module.state_dict())
    expected = steps(batch(i) for i in range(20))
    known = compiles()
    for _ in range(3):
        module.load_state_dict(start)
        assert steps(prefetched(20)) == expected
    assert compiles() <= known + 2  # what load_state_dict copies


def test_threads_that_share_a_model(mesh):
    module = net(1)
    inputs = [torch.randn(8, 16) for _ in range(4)]
    with torch.no_grad():
        expected = [module(x).sum().item() for x in inputs]
    module = sharded(module, mesh)

    def evaluate(i):
        with torch.no_grad():
            return [module(inputs[i].to("spmd")).sum().item() for _ in range(5)]

    evaluate(0)
    known = compiles()
    for i, sums in enumerate(in_threads(4, evaluate)):
        assert sums == pytest.approx([expected[i]] * 5, rel=1e-4)
    assert compiles() == known


def test_a_pending_value_of_a_thread_that_has_ended(mesh):
    x = spmd.mark_sharding(torch.arange(8.0, device="spmd"), mesh, ("a",))
    y = in_thread(lambda: x * 2 + 1)
    assert spmd.sharding_of(y).spec == spmd.P("a")
    assert (y + x).tolist() == [3.0 * i + 1 for i in range(8)]


def test_values_that_several_results_need():
    def make():
        x = torch.ones(4, device="spmd").cumsum(0)
        return x, x * 2, (x * 3).view(2, 2)

    x, y, z = in_thread(make)
    assert (y + 1).tolist() == [3, 5, 7, 9]
    assert z.tolist() == [[3, 6], [9, 12]]
    assert x.tolist() == [1, 2, 3, 4]


def test_writes_of_another_thread():
    x = torch.zeros(4, device="spmd")

    def write(tensor, number):
        tensor[1:3] += number
        return tensor

    write(x, 1)
    in_thread(write, x, 2)
    write(x, 4)
    in_thread(write, x[2:], 8)
    assert x.tolist() == [0, 7, 7, 8]


def test_what_a_thread_trains_is_read_by_another(mesh):
    plain = net(2)
    module = sharded(copy.deepcopy(plain), mesh)
    for _ in range(2):
        train(plain, 3, "cpu")
        in_thread(train, module, 3, "spmd")
        torch.testing.assert_close(module[0].weight.cpu(), plain[0].weight)


def test_random_numbers_of_a_thread():
    torch.manual_seed(3)
    expected = torch.rand(5, device="spmd").tolist()
    torch.manual_seed(3)
    x = in_thread(lambda: torch.rand(5, device="spmd"))
    assert (x * 1).tolist() == expected


def test_sync_runs_the_work_of_all_threads():
    x = torch.ones(4, device="spmd")
    go, made, end = threading.Event(), [], threading.Event()

    def work():
        made.append(x * 2)
        go.set()
        end.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert go.wait(60)
    spmd.sync()
    runs = reported()["runs"]
    assert made[0].tolist() == [2.0] * 4
    assert reported()["runs"] == runs
    end.set()
    thread.join()


def test_a_failing_program_of_another_thread():
    table, index = torch.ones(3, 2, device="spmd"), torch.tensor([7]).to("spmd")

    def fail():
        x = table.clone()
        return x[index], x * 2

    bad, good = in_thread(fail)
    with pytest.raises(IndexError):
        bad.tolist()
    assert good.tolist() == [[2.0, 2.0]] * 3
