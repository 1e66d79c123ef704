# SPDX-License-Identifier: Apache-2.0
"""Environment variables, warnings, and Ctrl-C."""

import ast
import os
import re
import signal
import threading
import time
import warnings

import pytest
import torch
from processes import run_script

import torch_spmd as spmd

PRODUCT = """
    import torch, torch_spmd as spmd
    torch.manual_seed(0)
    mesh = spmd.make_mesh((4,), ("x",))
    a = torch.randn(8, 64).to("spmd")
    b = torch.randn(64, 16).to("spmd")
    spmd.mark_sharding(a, mesh, (None, "x"))
    spmd.mark_sharding(b, mesh, ("x", None))
    print((torch.nn.functional.dropout(a @ b, 0.5).relu().sum() * 2).item())
"""


def test_log_names_passes_and_traffic():
    text = run_script(PRODUCT, SPMD_LOG="passes,traffic").stderr
    for name in ("lower", "propagate", "choose", "reshard", "load"):
        assert f"spmd:   {name} " in text
    assert "all_reduce" in text and "bytes per device" in text


def test_nothing_is_logged_by_default():
    assert "spmd:" not in run_script(PRODUCT).stderr


def test_log_knows_its_words():
    done = run_script(
        """
        import torch, torch_spmd
        try:
            torch.ones(2).to("spmd").sum().item()
        except ValueError as e:
            print(e)
        """,
        SPMD_LOG="pases",
    )
    assert "did you mean 'passes'?" in done.stdout


def test_verify_agrees_and_changes_nothing():
    verified, plain = (run_script(PRODUCT, SPMD_VERIFY="1"), run_script(PRODUCT, SPMD_COALESCE="0"))
    assert verified.stdout == plain.stdout


def test_a_large_gather_that_repeats_work_is_warned_about():
    mesh = spmd.make_mesh((4,), ("x",))
    a = torch.zeros(1, 2**22 + 16).to("spmd")
    spmd.mark_sharding(a, mesh, (None, "x"))
    with pytest.warns(UserWarning, match=r"gathers f32\[1,4194320\] from P\(None, 'x'\)") as seen:
        torch.sort(a, dim=1).values.cpu()
    (text,) = [str(w.message) for w in seen]
    assert "aten::sort" in text and "test_environment.py" in text and "16.0 MiB" in text
    assert "needs dimension 1 whole" in text and "None of its dimensions can stay sharded" in text


@pytest.mark.parametrize("op", [lambda x: x.sort(-1).values, torch.fft.rfft], ids=["sort", "fft"])
def test_a_warning_says_which_spec_avoids_the_gather_and_that_does(op):
    mesh = spmd.make_mesh((4,), ("x",))

    def warnings_of(spec):
        """The warnings for an op on rows with this sharding, whose result is replicated."""
        x = spmd.mark_sharding(torch.zeros(8192, 2048).to("spmd"), mesh, spec)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            result = spmd.mark_sharding(op(x), mesh, (None, None))
            result[0, 0].item()
        return [str(w.message) for w in seen]

    (text,) = warnings_of((None, "x"))
    assert re.search(r"^aten::\w+ at test_environment.py:\d+ gathers f32\[8192,2048\] from", text)
    assert "from P(None, 'x') to P(None, None): 64.0 MiB on every device, because it needs" in text
    (advice,) = re.findall(r"Mark it P\((.*)\) to avoid that", text)
    assert advice == "'x', None"
    assert warnings_of(ast.literal_eval(f"({advice})")) == []


def test_a_gather_on_purpose_is_not_warned_about():
    mesh = spmd.make_mesh((4,), ("x",))
    weight = torch.zeros(2**11, 2**12).to("spmd")
    spmd.mark_sharding(weight, mesh, ("x", None))
    batch = torch.zeros(2**14, 2**12).to("spmd")
    spmd.mark_sharding(batch, mesh, ("x", None))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.nn.functional.linear(batch, weight).sum().item()


def test_ctrl_c_lets_what_python_has_finished_happen():
    weight = torch.randn(1024, 1024).to("spmd")
    before = weight.cpu()
    step = torch.zeros(()).to("spmd")
    with torch.no_grad():
        x = weight
        for _ in range(100):  # a second of work
            x = x @ weight * 1e-3
        weight.copy_(x)
        step.add_(1)
    # A shell starts background processes with the signal ignored.
    before_us = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            step.item()
            timer.join()
            time.sleep(10)  # it was done sooner
    finally:
        signal.signal(signal.SIGINT, before_us)
    assert not torch.equal(weight.cpu(), before)
    assert step.item() == 1
    assert (step + 1).item() == 2


def test_verify_names_the_op_that_gives_something_else():
    done = run_script(
        """
        import torch, torch_spmd
        from torch.library import Library
        calls = []

        library = Library("seeing", "DEF")
        library.define("drift(Tensor x) -> Tensor")
        library.impl("drift", lambda x: x + len(calls) + (calls.append(1) or 0), "CPU")
        library.impl("drift", lambda x: torch.empty_like(x), "Meta")
        drift = torch.ops.seeing.drift

        try:
            (drift(torch.ones(3).to("spmd")) * 2).cpu()
        except RuntimeError as e:
            print(e)
        """,
        SPMD_VERIFY="1",
    )
    assert "= seeing::drift" in done.stdout and "differs by" in done.stdout
