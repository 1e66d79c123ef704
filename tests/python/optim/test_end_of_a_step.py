# SPDX-License-Identifier: Apache-2.0
"""The program of a step waits for its gradients to be dropped, and holds them only where they are
used."""

import pytest
import torch
from processes import run_python
from reported import reported
from torch import nn
from torch.optim import lr_scheduler

import torch_spmd as spmd
from torch_spmd import _C

LAYERS, WIDTH = 3, 16
WEIGHTS = 4 * LAYERS * WIDTH * WIDTH  # bytes


@pytest.fixture(autouse=True)
def as_a_process_begins():
    """Without a limit, and not taken for one that accumulates gradients."""
    spmd.config.update(memory_limit=None)
    for _ in range(2):
        never_zeroed(Run("spmd"), 0)
    _C.forget_programs()  # one with more results would serve, too
    yield
    spmd.config.update(memory_limit=None)


class Run:
    """A net and its optimizer; the same numbers on every device."""

    def __init__(self, device, make=None):
        torch.manual_seed(0)
        layers = [nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]
        self.net = nn.Sequential(*layers).to(device)
        self.device = device
        self.optimizer = (make or sgd)(self.net.parameters())
        self.seen = []  # what the script reads

    def loss(self, k):
        x = torch.linspace(-1, 1, 4 * WIDTH).view(4, WIDTH).mul(k + 1).to(self.device)
        return self.net(x).square().mean()

    def weights(self):
        return [p.detach().cpu() for p in self.net.parameters()]


def sgd(params):
    return torch.optim.SGD(params, lr=0.1, momentum=0.9)


def behind(run, k):
    run.loss(k).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()


def behind_a_view(run, k):
    loss = run.loss(k)
    loss.backward()
    run.optimizer.step()
    value = loss.detach()
    run.optimizer.zero_grad()
    run.seen.append(value.item())


def behind_an_upload(run, k):
    run.loss(k).backward()
    run.optimizer.step()
    x = torch.ones(4).to(run.device)
    if run.device == "spmd":
        spmd.mark_sharding(x, spmd.make_mesh((2,), ("data",)), ("data",))
    run.optimizer.zero_grad()
    run.seen.append(x.sum())


def by_hand(run, k):
    run.loss(k).backward()
    run.optimizer.step()
    for p in run.net.parameters():
        p.grad = None


def zeroed_once_before_the_loop(run, k):
    if k == 0:
        run.net.zero_grad()
    run.loss(k).backward()
    run.optimizer.step()
    run.net.zero_grad()


def clipped(run, k):
    run.loss(k).backward()
    run.seen.append(torch.nn.utils.clip_grad_norm_(run.net.parameters(), 0.01))
    run.optimizer.step()
    run.optimizer.zero_grad()


def hooked(run, k):
    def halve(p):
        p.grad.mul_(0.5)

    handles = [p.register_post_accumulate_grad_hook(halve) for p in run.net.parameters()]
    behind(run, k)
    for handle in handles:
        handle.remove()


def at_the_head(run, k):
    run.optimizer.zero_grad()
    run.loss(k).backward()
    run.optimizer.step()


def behind_the_forward(run, k):
    loss = run.loss(k)
    run.net.zero_grad()
    loss.backward()
    run.optimizer.step()


def in_a_closure(run, k):
    def closure():
        run.optimizer.zero_grad()
        loss = run.loss(k)
        loss.backward()
        return loss

    run.optimizer.step(closure)


def zeros_kept(run, k):
    run.loss(k).backward()
    run.optimizer.step()
    run.optimizer.zero_grad(set_to_none=False)
    run.seen += [p.grad.sum() for p in run.net.parameters()]


def never_zeroed(run, k):
    run.loss(k).backward()
    run.optimizer.step()


def gradients_read(run, k):
    run.loss(k).backward()
    run.optimizer.step()
    run.seen += [p.grad.norm().item() for p in run.net.parameters()]
    run.optimizer.zero_grad()


def gradients_held(run, k):
    run.loss(k).backward()
    held = [p.grad for p in run.net.parameters()]
    run.optimizer.step()
    run.optimizer.zero_grad()
    run.seen += [g.norm() for g in held]


def loss_read(run, k):
    loss = run.loss(k)
    loss.backward()
    run.optimizer.step()
    run.seen.append(loss.item())
    run.optimizer.zero_grad()


def averaged(run, k):
    run.loss(k).backward()
    run.optimizer.step()
    if k == 0:
        run.average = [torch.zeros_like(p) for p in run.net.parameters()]
    with torch.no_grad():
        for a, p in zip(run.average, run.net.parameters(), strict=True):
            run.seen.append(a.lerp_(p, 0.5).sum())
    run.optimizer.zero_grad()


def accumulated(run, k):
    for part in range(2):
        run.loss(k + part).backward()
    run.optimizer.step()
    run.optimizer.zero_grad()


def scaled(run, k):
    if k == 0:
        run.scaler = torch.amp.GradScaler(run.device, init_scale=8.0)
    run.scaler.scale(run.loss(k)).backward()
    run.scaler.step(run.optimizer)
    run.scaler.update()
    run.optimizer.zero_grad()


DROPPED = [
    behind,
    behind_a_view,
    behind_an_upload,
    by_hand,
    zeroed_once_before_the_loop,
    clipped,
    hooked,
]
OTHERS = [
    at_the_head,
    behind_the_forward,
    in_a_closure,
    zeros_kept,
    gradients_read,
    gradients_held,
    loss_read,
    averaged,
    never_zeroed,
    accumulated,
    scaled,
]
STEPS = 5


@pytest.mark.parametrize("step", DROPPED + OTHERS, ids=lambda step: step.__name__)
def test_every_form_of_a_loop(step):
    """It computes what eager does with one program for all steps but the first ones, whose results
    are gradients only where they are used."""
    run, reference = Run("spmd"), Run("cpu")
    for k in range(STEPS):
        step(run, k)
        programs = _C.last_step()[0]
        step(reference, k)
        if k == 1:
            before = reported()
    if step in DROPPED:
        results = max(program.memory()[2] for program in programs)
        assert 2 * WEIGHTS <= results <= 2 * WEIGHTS + 64  # with momentum
    if step is not never_zeroed:
        assert reported()["compiles"] == before["compiles"]
    torch.testing.assert_close(run.weights(), reference.weights())
    for ours, theirs in zip(run.seen, reference.seen, strict=True):
        torch.testing.assert_close(torch.as_tensor(ours).cpu(), torch.as_tensor(theirs))


def lbfgs(params):
    return torch.optim.LBFGS(params, max_iter=3)


@pytest.mark.parametrize("step", [in_a_closure])
def test_an_optimizer_that_reads_values(step):
    run, reference = Run("spmd", lbfgs), Run("cpu", lbfgs)
    for k in range(2):
        step(run, k)
        step(reference, k)
    torch.testing.assert_close(run.weights(), reference.weights(), rtol=1e-3, atol=1e-4)


def test_a_loop_that_reads_the_loss_now_and_then():
    run, reference = Run("spmd"), Run("cpu")
    for k in range(9):
        for r in (run, reference):
            loss = r.loss(k)
            loss.backward()
            r.optimizer.step()
            if k % 4 == 0:
                r.seen.append(loss.item())
            r.optimizer.zero_grad()
    torch.testing.assert_close(run.weights(), reference.weights())
    torch.testing.assert_close(run.seen, reference.seen)


def test_two_optimizers():
    def trained(device):
        nets = [Run(device), Run(device, lambda ps: torch.optim.Adam(ps, lr=0.1))]
        for k in range(4):
            for run in nets:
                for other in nets:  # both have gradients of both losses
                    (run.loss(k) * other.loss(k)).backward()
                run.optimizer.step()
                run.optimizer.zero_grad()
        return nets[0].weights() + nets[1].weights()

    torch.testing.assert_close(trained("spmd"), trained("cpu"))


def test_updates_inside_the_backward_pass():
    """Where memory is known, each parameter is updated where its gradient is made, and a lookup
    that fails leaves all parameters as they were."""
    peaks = []
    for limit in (None, "1GiB"):
        spmd.config.update(memory_limit=limit)
        run, reference = Run("spmd"), Run("cpu")
        for r in (run, reference):
            torch.manual_seed(1)
            table = nn.Embedding(8, WIDTH).to(r.device)
            r.net.append(table)
            r.optimizer = sgd(r.net.parameters())
        for rows in ([1, 2], [3, 1], [50, 0], [0, 7]):
            before = run.weights()
            for r in (run, reference):
                *layers, table = r.net
                if 50 in rows and r is reference:
                    continue
                found = table(torch.tensor(rows).to(r.device))
                nn.Sequential(*layers)(found).square().mean().backward()
                r.optimizer.step()
                r.optimizer.zero_grad()
            if 50 in rows:
                with pytest.raises(IndexError):
                    spmd.sync(wait=True)
                torch.testing.assert_close(run.weights(), before, rtol=0, atol=0)
        torch.testing.assert_close(run.weights(), reference.weights())
        peaks.append(max(program.memory()[0] for program in _C.last_step()[0]))
    assert peaks[1] <= peaks[0] - WEIGHTS // LAYERS


def adam(params):
    return torch.optim.Adam(params, lr=0.1)


def test_a_step_that_does_not_fit_says_so_where_its_gradients_are_dropped():
    run, reference = Run("spmd", adam), Run("cpu", adam)
    schedule = lr_scheduler.StepLR(run.optimizer, 2)
    before = run.weights()
    spmd.config.update(memory_limit=WEIGHTS)
    for _ in range(2):
        run.loss(0).backward()
        run.optimizer.step()
        schedule.step()
        with pytest.raises(spmd.OutOfMemoryError, match="What would make it fit"):
            run.optimizer.zero_grad()
        assert "does not fit and did not run" in spmd.debug.memory().note
        assert all(p.grad is None for p in run.net.parameters())
        torch.testing.assert_close(run.weights(), before, rtol=0, atol=0)
    assert schedule.last_epoch == 2  # is ahead
    run.optimizer.param_groups[0]["lr"] = 0.1
    spmd.config.update(memory_limit=None)
    for k in range(3):
        for r in (run, reference):
            r.loss(k).backward()
            r.optimizer.step()
            r.optimizer.zero_grad()
    torch.testing.assert_close(run.weights(), reference.weights())


@pytest.mark.parametrize(
    "use", [lambda run: run.loss(1), lambda run: spmd.debug.memory(), lambda run: spmd.sync()]
)
def test_whatever_uses_the_device_next_runs_it(use):
    run = Run("spmd", adam)
    spmd.config.update(memory_limit=WEIGHTS)
    run.loss(0).backward()
    run.optimizer.step()
    with pytest.raises(spmd.OutOfMemoryError):
        use(run)
    spmd.config.update(memory_limit=None)
    use(run)


def test_a_script_that_ends_with_a_step_runs_it():
    script = """
import torch, torch_spmd as spmd
spmd.config.update(memory_limit=64)
weight = torch.ones(16, 16, device="spmd", requires_grad=True)
weight.square().sum().backward()
torch.optim.SGD([weight]).step()
"""
    assert "OutOfMemoryError" in run_python("-c", script).stderr
    assert "OutOfMemoryError" not in run_python("-c", script + "raise KeyError").stderr
