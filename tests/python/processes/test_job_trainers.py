# SPDX-License-Identifier: Apache-2.0
"""Trainers in jobs of several processes: the losses of one process, and one of them writes."""

import importlib.util
import json
from pathlib import Path

import job
import pytest
import torch

FOLDER = Path(__file__).parent


def needs(package):
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package}")


@needs("accelerate")
def test_accelerate(tmp_path):
    script = FOLDER / "accelerate_train.py"
    variables = {"SPMD_NUM_DEVICES": "8", "SPMD_ONE_PLACE": "0", "SPMD_TIMEOUT": "60"}
    (alone,) = job.run(script, 1, 240, [str(tmp_path / "one")], **variables)
    assert alone.code == 0, alone.err
    shown, losses, last = alone.out.splitlines()
    assert shown == "shown by 0" and last == "main True"
    together = job.run(script, 2, 240, [str(tmp_path / "two")], SPMD_EXACT="1", **variables)
    for ended in together:
        assert ended.code == 0, ended.err
    assert together[0].out.splitlines() == ["shown by 0", losses, "main False"]
    assert together[1].out.splitlines() == ["other True"]
    assert json.loads(losses)[0] > 1.2
    # What one process has saved two go on from, and the other way round.
    for processes, saved in ((1, "two"), (2, "one")):
        folders = [str(tmp_path / "none"), str(tmp_path / saved)]
        ends = job.run(script, processes, 240, folders, SPMD_EXACT="1", **variables)
        assert all(ended.code == 0 for ended in ends), ends
        assert json.loads(ends[0].out) == json.loads(losses)[6:]
    names = {"model.safetensors", "optimizer.bin", "random_state_spmd.pth", "random_states_0.pkl"}
    for folder in ("one", "two"):
        assert {path.name for path in (tmp_path / folder / "state").iterdir()} == names
    one, two = (torch.load(tmp_path / of / "state" / "optimizer.bin") for of in ("one", "two"))
    for ours, theirs in zip(two["state"].values(), one["state"].values(), strict=True):
        assert torch.equal(ours["exp_avg"].cpu(), theirs["exp_avg"].cpu())


def alike(script, folder):
    """What a script prints in one process and in the first of two, which write the same files."""
    variables = {"SPMD_NUM_DEVICES": "8", "SPMD_ONE_PLACE": "0", "SPMD_TIMEOUT": "60"}
    (alone,) = job.run(script, 1, 240, [str(folder / "one")], **variables)
    assert alone.code == 0, alone.err
    together = job.run(script, 2, 240, [str(folder / "two")], SPMD_EXACT="1", **variables)
    for ended in together:
        assert ended.code == 0, ended.err
    one, two = (
        sorted(str(path.relative_to(folder / of)) for path in (folder / of).rglob("*"))
        for of in ("one", "two")
    )
    assert one == two
    return alone.out, [ended.out for ended in together], one


@needs("accelerate")
@needs("transformers")
def test_trainer_of_transformers(tmp_path):
    alone, together, files = alike(FOLDER / "trainer_train.py", tmp_path)
    first, second = ([line for line in out.splitlines() if "LOSSES" in line] for out in together)
    assert len(first) == 1 and first[0] in alone and second == []
    assert {"checkpoint-2/optimizer.pt", "checkpoint-4/model.safetensors"} < set(files)


@needs("lightning")
def test_lightning(tmp_path):
    alone, together, files = alike(FOLDER / "lightning_train.py", tmp_path)
    assert together == [alone, ""] and "log/version_0/metrics.csv" in files
