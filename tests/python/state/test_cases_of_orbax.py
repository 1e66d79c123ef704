# SPDX-License-Identifier: Apache-2.0
"""Cases of orbax's own tests, by kind, that no other test has (docs/checkpoints.md: Cases)."""

import collections
import dataclasses
import json
import re
import threading

import pytest
import torch

import torch_spmd as spmd

Pair = collections.namedtuple("Pair", ["w", "n"])


@pytest.fixture
def mesh():
    return spmd.make_mesh((4,), ("x",))


def rows(mesh, value):
    return spmd.mark_sharding(torch.full((8, 4), value).to("spmd"), mesh, ("x", None))


def test_a_tree_without_a_target(tmp_path, mesh):
    """It comes as it was saved: tensors of the device with their marks, empty containers, None."""
    spmd.save(tmp_path, {"b": rows(mesh, 1.0), "a": [1, None, ()], "c": {}, "d": torch.ones(2)})
    found = spmd.load(tmp_path, None)
    assert list(found) == ["b", "a", "c", "d"]
    assert found["a"] == [1, None, ()] and found["c"] == {}
    assert found["b"].device.type == "spmd" and found["d"].device.type == "cpu"
    assert spmd.sharding_of(found["b"]).spec == spmd.P("x", None)


def test_named_tuples_keep_their_class(tmp_path, mesh):
    spmd.save(tmp_path, {"pair": Pair(rows(mesh, 3.0), 5)})
    target = {"pair": Pair(rows(mesh, 0.0), 0)}
    found = spmd.load(tmp_path, target)["pair"]
    assert type(found) is Pair and found.n == 5 and float(found.w.min()) == 3.0


@dataclasses.dataclass
class Data:
    n: int


def test_other_classes_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"tree\['d'\] is Data\(n=1\) \(Data\), which cannot be"):
        spmd.save(tmp_path, {"d": Data(1)})
    assert not list(tmp_path.iterdir())


def test_nothing_is_padded_cut_or_made_of_another_kind(tmp_path, mesh):
    spmd.save(tmp_path, {"w": torch.ones(4), "n": 3, "none": None})
    for target, problem in (
        ({"w": torch.zeros(6)}, "'w' has shape (6,), and (4,) was saved"),
        ({"w": torch.zeros(2)}, "'w' has shape (2,), and (4,) was saved"),
        ({"n": torch.zeros(())}, "'n' is a tensor, and another value was saved"),
        ({"none": torch.zeros(2)}, "'none' is a tensor, and another value was saved"),
        ({"n": [1, 2]}, "n has 2 items, and another value was saved"),
    ):
        with pytest.raises(ValueError, match=re.escape(problem)):
            spmd.load(tmp_path, target, strict=False)


def test_names_with_dots_and_numbers(tmp_path, mesh):
    def tree(*values):
        a, b, c = (rows(mesh, value) for value in values)
        return {"a.b": a, "a": {"b": b}, 0: {1: c}}

    spmd.save(tmp_path, tree(1.0, 2.0, 3.0))
    found = spmd.load(tmp_path, tree(0.0, 0.0, 0.0))
    assert [float(t.max()) for t in (found["a.b"], found["a"]["b"], found[0][1])] == [1, 2, 3]


def test_saving_another_tree_over_one_that_is_there(tmp_path, mesh):
    spmd.save(tmp_path, {"a": rows(mesh, 1.0), "only here": 1})
    spmd.save(tmp_path, {"b": rows(mesh, 2.0)})
    assert list(spmd.load(tmp_path, None)) == ["b"] and len(list(tmp_path.iterdir())) == 2


def test_steps(tmp_path, mesh):
    """One by its number, one that is not there, one that is saved again, and folders that are no
    checkpoints."""
    for name in ("step-0000000007", "step-0000000008.tmp", "notes", "step-9"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-0000000011").write_text("")
    with spmd.checkpoint.Checkpointer(tmp_path) as checkpoints:
        for step, value in ((5, 1.0), (6, 2.0), (6, 3.0)):
            checkpoints.save(step, {"w": rows(mesh, value)})
    assert checkpoints.steps() == [5, 6]
    target = {"w": rows(mesh, 0.0)}
    assert checkpoints.load(target) == 6 and float(target["w"].min()) == 3.0
    assert checkpoints.load(target, step=5) == 5 and float(target["w"].min()) == 1.0
    with pytest.raises(
        spmd.checkpoint.CheckpointError, match=r"step-0000000007' has no manifest\.json"
    ):
        checkpoints.load(target, step=7)
    with pytest.raises(spmd.checkpoint.CheckpointError, match=r"step-0000000004' does not exist"):
        checkpoints.load(target, step=4)


def test_several_read_at_once(tmp_path, mesh):
    spmd.save(tmp_path, {"w": rows(mesh, 3.0)})
    targets = [{"w": rows(mesh, 0.0)} for _ in range(4)]
    threads = [threading.Thread(target=spmd.load, args=(tmp_path, t)) for t in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(float(target["w"].min()) == 3.0 for target in targets)


def test_names_and_shapes_are_read_without_tensors(tmp_path, mesh):
    spmd.save(tmp_path, {"w": rows(mesh, 3.0)})
    [data] = tmp_path.glob("data-*")
    data.unlink()
    saved = json.loads((tmp_path / "manifest.json").read_text())["content"]["tensors"]
    assert saved["w"]["shape"] == [8, 4] and saved["w"]["dtype"] == "float32"


def test_files_of_orbax_itself(tmp_path, mesh):
    (tmp_path / "ocdbt.process_0").mkdir()
    (tmp_path / "_METADATA").write_text("{}")
    with pytest.raises(spmd.checkpoint.CheckpointError, match=r"has no manifest\.json"):
        spmd.load(tmp_path, {"w": rows(mesh, 0.0)})
