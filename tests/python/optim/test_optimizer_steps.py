# SPDX-License-Identifier: Apache-2.0
"""An optimizer step happens or not: its tensors are those after it or those before it.

What Python has counted stays, and the error says how far it is ahead."""

import functools
import os
import re
import signal
import threading
import time

import pytest
import torch
from processes import run_script
from torch import nn
from torch.optim import lr_scheduler

ROWS = [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 5, 9], [0, 4, 8], [3, 2, 1]]
OUT_OF_RANGE = [1, 2, 50]


class Job:
    """A table whose rows are looked up, and an optimizer; the same numbers on every device."""

    def __init__(self, device, make, shape=(10, 4)):
        torch.manual_seed(0)
        self.table = nn.Embedding(*shape).double().to(device)
        self.scale = nn.Parameter(
            torch.ones(shape[1], dtype=torch.float64, device="cpu").to(device)
        )
        self.device = device
        self.optimizer = make([self.table.weight, self.scale])

    def step(self, rows):
        self.optimizer.zero_grad()
        # The gradient of the scale is right whatever the rows are.
        found = self.table(torch.tensor(rows).to(self.device))
        loss = found.square().sum() + self.scale.square().sum()
        loss.backward()
        self.optimizer.step()
        return loss

    def state(self):
        """What the device holds."""
        held = {"table": self.table.weight, "scale": self.scale}
        for name, p in (("table", self.table.weight), ("scale", self.scale)):
            for key, value in self.optimizer.state.get(p, {}).items():
                if isinstance(value, torch.Tensor) and value.shape == p.shape:
                    held[f"{name}.{key}"] = value
        return {k: v.detach().cpu().double().clone() for k, v in held.items()}


def assert_same(job, expected):
    got = job.state()
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(got[key], value, msg=lambda m, key=key: f"{key}: {m}")


def not_happened(steps):
    count = "1 step" if steps == 1 else f"{steps} steps"
    return (
        f"out of range.*; {count} of the optimizer did not happen: its tensors are as before, and "
        f"its counters and those of a schedule are {count} ahead of them$"
    )


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def adam(params):
    return torch.optim.Adam(params, lr=0.1)


OPTIMIZERS: dict[str, tuple[type, dict]] = {
    "SGD": (torch.optim.SGD, {}),
    "SGD momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "SGD one by one": (torch.optim.SGD, {"momentum": 0.9, "foreach": False}),
    "SGD fused": (torch.optim.SGD, {"momentum": 0.9, "fused": True}),
    "Adam": (torch.optim.Adam, {}),
    "Adam amsgrad": (torch.optim.Adam, {"amsgrad": True}),
    "Adam one by one": (torch.optim.Adam, {"foreach": False}),
    "Adam fused": (torch.optim.Adam, {"fused": True}),
    "Adam capturable": (torch.optim.Adam, {"capturable": True}),
    "AdamW": (torch.optim.AdamW, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "NAdam one by one": (torch.optim.NAdam, {"foreach": False}),
    "NAdam capturable": (torch.optim.NAdam, {"capturable": True}),
    "RAdam": (torch.optim.RAdam, {}),
    "RAdam capturable": (torch.optim.RAdam, {"capturable": True}),
    "Adamax": (torch.optim.Adamax, {}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adadelta": (torch.optim.Adadelta, {}),
    "RMSprop": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    "Rprop": (torch.optim.Rprop, {}),
    "ASGD": (torch.optim.ASGD, {}),
    "ASGD one by one": (torch.optim.ASGD, {"foreach": False}),
    "Adafactor": (torch.optim.Adafactor, {}),
}


def jobs(name):
    """An optimizer on the device, and one on the CPU, if it has such an optimizer, for
    comparison."""
    kind, options = OPTIMIZERS[name]
    make = functools.partial(kind, lr=0.1, **options)
    return Job("spmd", make), Job("spmd" if "capturable" in options else "cpu", make)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_first_step_fails(name):
    """Moments that it was to make are made by the next one."""
    job, reference = jobs(name)
    with pytest.raises(IndexError, match=not_happened(1)):
        job.step(OUT_OF_RANGE).item()
    for rows in ROWS:
        reference.step(rows)
        job.step(rows).item()
    assert_same(job, reference.state())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_that_fails_leaves_tensors_as_they_were(name):
    job, _ = jobs(name)
    for rows in ROWS[:3]:
        job.step(rows).item()
    before = job.state()
    with pytest.raises(IndexError, match=not_happened(1)):
        job.step(OUT_OF_RANGE).item()
    assert_same(job, before)
    job.step(ROWS[3]).item()
    assert not torch.equal(job.state()["scale"], before["scale"])


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("behind", [1, 5])
def test_steps_behind_a_failing_one_do_not_happen(make, behind):
    job = Job("spmd", make)
    for rows in ROWS[:2]:
        job.step(rows)
    before = job.state()
    losses = [job.step(OUT_OF_RANGE)] + [job.step(rows) for rows in ROWS[:behind]]
    with pytest.raises(IndexError, match=not_happened(behind + 1)):
        losses[-1].item()
    assert_same(job, before)
    if make is sgd:  # which counts nothing
        reference = Job("cpu", make)
        for rows in [*ROWS[:2], *ROWS]:
            reference.step(rows)
        for rows in ROWS:
            job.step(rows)
        assert_same(job, reference.state())


def test_counters_are_ahead_by_the_steps_that_did_not_happen():
    job, reference = jobs("Adam")
    schedules = [lr_scheduler.StepLR(j.optimizer, 2) for j in (job, reference)]
    for rows in ROWS[:2]:
        for j, schedule in zip((job, reference), schedules, strict=True):
            j.step(rows)
            schedule.step()
    loss = job.step(OUT_OF_RANGE)
    schedules[0].step()
    with pytest.raises(IndexError, match=not_happened(1)):
        loss.item()
    assert job.optimizer.state[job.scale]["step"] == 3
    assert schedules[0].last_epoch == 3
    for state in job.optimizer.state.values():  # as the error says
        state["step"] -= 1
    schedules[0].load_state_dict(schedules[1].state_dict())
    for rows in ROWS[2:]:
        for j, schedule in zip((job, reference), schedules, strict=True):
            j.step(rows)
            schedule.step()
    assert_same(job, reference.state())


def test_a_loop_that_reads_nothing_gets_the_error_from_a_step():
    job = Job("spmd", adam)
    job.step(ROWS[0])
    before = job.state()
    job.step(OUT_OF_RANGE)
    with pytest.raises(IndexError, match="steps of the optimizer did not happen"):
        for _ in range(100):
            job.step(ROWS[1])
    assert_same(job, before)
    job.step(ROWS[1]).item()


def test_a_step_whose_gradients_are_known_to_be_lost_says_so():
    job = Job("spmd", adam)
    job.step(ROWS[0])
    before = job.state()
    job.optimizer.zero_grad()
    loss = job.table(torch.tensor(OUT_OF_RANGE).to("spmd")).sum()
    loss.backward()
    with pytest.raises(IndexError):
        loss.item()
    with pytest.raises(
        IndexError, match=r"^the value was lost, because ops that it depends on failed"
    ):
        job.optimizer.step()
    assert_same(job, before)


def test_a_failure_that_no_step_depends_on_undoes_none():
    job, reference = jobs("Adam")
    for rows in ROWS[:2]:
        metric = job.table(torch.tensor(OUT_OF_RANGE).to("spmd")).detach().sum()
        job.step(rows)
        reference.step(rows)
        with pytest.raises(IndexError):
            metric.item()
    assert_same(job, reference.state())


def test_a_normalization_behind_the_failing_op_counts_no_batch():
    norm = nn.BatchNorm1d(4).to("spmd")
    table = nn.Embedding(10, 4).to("spmd")
    norm(table(torch.tensor(ROWS[0]).to("spmd"))).sum().item()
    mean = norm.running_mean.cpu()
    with pytest.raises(IndexError):
        norm(table(torch.tensor(OUT_OF_RANGE).to("spmd"))).sum().item()
    assert norm.num_batches_tracked.item() == 1
    assert torch.equal(norm.running_mean.cpu(), mean)
    before_it = nn.BatchNorm1d(4).to("spmd")
    h = before_it(torch.randn(3, 4).to("spmd"))
    with pytest.raises(IndexError):
        h.index_select(0, torch.tensor([7]).to("spmd")).sum().item()
    assert before_it.num_batches_tracked.item() == 1
    assert before_it.running_mean.abs().sum().item() > 0


def slow_steps(device, count=None):
    """Parameters after each of the steps, each of which takes a while."""
    torch.manual_seed(0)
    weight = (torch.randn(500, 500, dtype=torch.float64) / 23).to(device).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=1e-4)

    def step():
        h = torch.eye(500, dtype=torch.float64).to(device)
        for _ in range(8):
            h = torch.tanh(h @ weight)
        h.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return weight, optimizer, step


def after(steps):
    weight, _, step = slow_steps("cpu")
    for _ in range(steps):
        step()
    return weight.detach()


def within_an_optimizer(frame):
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("torch.optim."):
            return True
        frame = frame.f_back
    return False


class Interrupts:
    """Ctrl-C from outside, `times` times, one as soon as the one before has arrived.

    Catches the KeyboardInterrupt that the block must raise, as `raised`.
    """

    def __init__(self, times):
        self.left = times
        self.senders = []
        self.arrived = 0
        self.raised = None

    def __enter__(self):
        self.before = signal.signal(signal.SIGINT, self.handle)
        self.send()
        return self

    def __exit__(self, kind, error, _):
        # From here on `handle` raises nothing; it does so only in a test's own frame.
        for sender in self.senders:
            sender.join()
        signal.signal(signal.SIGINT, self.before)
        self.raised = error
        assert kind is None or issubclass(kind, KeyboardInterrupt), error
        assert error is not None, "nothing was interrupted"
        return True

    def send(self):
        self.left -= 1
        self.send_again()

    def send_again(self):
        self.senders.append(threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)))
        self.senders[-1].start()

    def handle(self, _, frame):
        if within_an_optimizer(frame):
            # Python itself is half way through a step, which an interrupt leaves so, as in eager.
            self.send_again()
            return
        self.arrived += 1
        is_first = self.arrived == 1
        if self.left > 0:
            self.send()
        # One that comes after the block has raised has nothing to interrupt.
        if is_first or frame.f_code.co_name.startswith("test_"):
            raise KeyboardInterrupt


def test_ctrl_c_lets_what_python_has_finished_happen():
    weight, optimizer, step = slow_steps("spmd")
    step()
    weight.sum().item()
    done = 1
    with Interrupts(1):
        while True:
            for _ in range(5):
                step()
                done += 1
            weight.sum().item()
    # One step may be over for the optimizer and not yet counted by the loop.
    counted = optimizer.state[weight]["step"].item()
    assert done <= counted <= done + 1
    torch.testing.assert_close(weight.detach().cpu(), after(int(counted)))


def test_a_second_ctrl_c_drops_what_waits_and_says_how_many_steps():
    weight, optimizer, step = slow_steps("spmd")
    step()
    weight.sum().item()
    for _ in range(6):
        step()
    with Interrupts(2) as interrupts:
        weight.sum().item()
        while True:  # it was done sooner
            time.sleep(0.01)
    text = str(interrupts.raised)
    dropped = 0  # all was done before the second one came
    if text:
        dropped = int(re.match(r"interrupted twice: (\d+) steps? of the optimizer", text)[1])
        assert re.search(rf"; tensors are .*, and counters are {dropped} steps? ahead$", text)
    assert optimizer.state[weight]["step"].item() == 7
    optimizer.state[weight]["step"] -= dropped
    torch.testing.assert_close(weight.detach().cpu(), after(7 - dropped))
    step()
    torch.testing.assert_close(weight.detach().cpu(), after(8 - dropped))


def test_without_memory_for_its_program_a_step_does_not_happen():
    done = run_script(
        """
        import torch, torch_spmd as spmd

        spmd.config.set_backend("mock_tpu:v4-8")
        weight = torch.ones(4).to("spmd").requires_grad_()
        optimizer = torch.optim.Adam([weight], lr=0.1)
        for size in (4, 2**36):
            try:
                loss = (weight.sum() * torch.ones(size, device="spmd")).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()  # for which the step has waited
            except spmd.OutOfMemoryError:
                print("out of memory")
        print(optimizer.state[weight]["step"].item(), round(weight[0].item(), 4))
        """
    )
    assert done.stdout.split("\n")[:2] == ["out of memory", "2.0 0.9"], done.stderr
