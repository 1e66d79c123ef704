# SPDX-License-Identifier: Apache-2.0
"""spmd.checkpoint.Checkpointer: when it saves, what it keeps, where a run goes on."""

import os
import signal

import pytest
import torch
from processes import run_script
from training_state import Run

import torch_spmd as spmd


def tree():
    return {"w": torch.zeros(3), "step": 0}


def test_intervals_and_what_is_kept(tmp_path):
    with spmd.checkpoint.Checkpointer(tmp_path, every=2, keep=2) as checkpoints:
        saved = [checkpoints.save(step, tree()) for step in range(1, 9)]
    assert saved == [False, True] * 4
    assert checkpoints.steps() == [6, 8]
    assert sorted(os.listdir(tmp_path)) == ["step-0000000006", "step-0000000008"]
    assert checkpoints.save(9, tree(), force=True, wait=True)
    assert checkpoints.steps() == [8, 9]
    assert spmd.checkpoint.Checkpointer(tmp_path).steps() == [8, 9]  # survives a restart


def test_a_run_that_went_back_keeps_what_it_saves(tmp_path):
    with spmd.checkpoint.Checkpointer(tmp_path, keep=3) as checkpoints:
        for step in (100, 200, 300, 10):
            checkpoints.save(step, tree())
    assert checkpoints.steps() == [10, 200, 300]
    assert checkpoints.load(tree(), step=10) == 10


def test_a_run_goes_on_where_the_last_checkpoint_was(tmp_path):
    mesh = spmd.make_mesh((2,), ("x",))
    expected = Run(mesh).losses(8)
    run = Run(mesh)
    with spmd.checkpoint.Checkpointer(tmp_path, every=3) as checkpoints:
        assert checkpoints.load(run.tree()) is None
        losses = []
        for step in range(5):
            losses += run.losses(1)
            checkpoints.save(step + 1, run.tree())
    resumed = Run(mesh, seed=4)
    checkpoints = spmd.checkpoint.Checkpointer(tmp_path, every=3)
    assert checkpoints.load(resumed.tree()) == 3  # with the random numbers
    assert resumed.losses(5) == expected[3:]


def test_an_altered_checkpoint_is_passed_over(tmp_path):
    checkpoints = spmd.checkpoint.Checkpointer(tmp_path)
    for step in (1, 2):
        checkpoints.save(step, {"step": step, "w": torch.ones(3)}, wait=True)
    [data] = (tmp_path / "step-0000000002").glob("data-*")
    data.write_bytes(data.read_bytes()[:-1])
    target = tree()
    with pytest.warns(UserWarning, match="is truncated.*the one before is tried"):
        assert checkpoints.load(target) == 1
    assert target["step"] == 1
    with pytest.raises(spmd.checkpoint.CheckpointError, match="is truncated"):
        checkpoints.load(target, step=2)


def test_an_error_of_a_save_is_raised_by_the_next(tmp_path, monkeypatch):
    checkpoints = spmd.checkpoint.Checkpointer(tmp_path)
    with monkeypatch.context() as patch:

        def refuse(*args):
            raise OSError("refused")

        patch.setattr(os, "fsync", refuse)
        checkpoints.save(1, tree())
        with pytest.raises(OSError, match="refused"):
            checkpoints.wait()
    checkpoints.save(2, tree(), wait=True)
    assert checkpoints.steps() == [2]


def test_sigterm_saves(tmp_path):
    run_script(
        f"""
        import os, signal, torch, torch_spmd as spmd
        asked = []
        signal.signal(signal.SIGTERM, lambda *args: asked.append(args))
        with spmd.checkpoint.Checkpointer({str(tmp_path)!r}, every=100) as checkpoints:
            for step in range(1, 50):
                if step == 7:
                    os.kill(os.getpid(), signal.SIGTERM)
                checkpoints.save(step, {{"w": torch.ones(2), "step": step}})
                if checkpoints.stopping:
                    break
        assert asked and step == 7
        os.kill(os.getpid(), signal.SIGTERM)
        assert len(asked) == 2  # as before
        """
    )
    assert spmd.checkpoint.Checkpointer(tmp_path).steps() == [7]


def test_a_signal_behind_a_save_is_seen_by_the_next(tmp_path):
    """So that nobody stops without having saved."""
    with spmd.checkpoint.Checkpointer(tmp_path, every=100) as checkpoints:
        assert not checkpoints.save(1, {"step": 1})
        os.kill(os.getpid(), signal.SIGTERM)
        assert not checkpoints.stopping
        assert checkpoints.save(2, {"step": 2}) and checkpoints.stopping
        assert checkpoints.steps() == [2]


def test_the_signal_is_given_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with spmd.checkpoint.Checkpointer(tmp_path):
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_save_outlives_the_end_of_the_program(tmp_path):
    run_script(
        f"""
        import torch, torch_spmd as spmd
        spmd.save({str(tmp_path)!r}, {{"w": torch.ones(1000, 1000, device="spmd")}}, wait=False)
        """
    )
    assert spmd.load(tmp_path, {"w": torch.zeros(1000, 1000)})["w"].all()


def test_fsspec_paths(tmp_path):
    pytest.importorskip("fsspec")
    checkpoints = spmd.checkpoint.Checkpointer("memory://run", keep=1)
    for step in (1, 2):
        checkpoints.save(step, {"w": torch.full((3,), float(step)).to("spmd")}, wait=True)
    assert checkpoints.steps() == [2]
    target = {"w": torch.zeros(3)}
    assert checkpoints.load(target) == 2 and target["w"].tolist() == [2, 2, 2]
    spmd.save(f"file://{tmp_path}", {"a": 1})
    assert spmd.load(tmp_path, {"a": 0}) == {"a": 1}
