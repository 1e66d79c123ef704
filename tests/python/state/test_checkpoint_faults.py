# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are killed, altered, incomplete, or of something else: an error that names what
is wrong, and nothing lost."""

import errno
import json
import os
import pathlib
import pickle
import re
import resource
import shutil
import signal
import threading

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import torch_spmd as spmd
from torch_spmd.state import export, files, manifest, parts, safetensors_file

spmd.integrations.dcp()

OLD, NEW = 1.0, 2.0


def tree_of(value):
    return {"a": torch.full((300,), value), "b": torch.full((5, 7), value), "step": int(value)}


def loaded(path):
    found = spmd.load(path, tree_of(0.0))
    values = {found["step"], *found["a"].tolist(), *found["b"].flatten().tolist()}
    assert len(values) == 1  # of one checkpoint
    return values.pop()


# --- writers that stop ---


class Stop(BaseException):
    pass


def stopping_at(n, monkeypatch, stop):
    """Calls `stop` instead of the n-th step that changes the disk."""
    count = 0

    def counted(function):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == n:
                stop()
            return function(*args, **kwargs)

        return call

    for owner, name in ((files, "write_all"), (os, "fsync"), (os, "replace"), (os, "remove"),
                        (os, "makedirs"), (pathlib.Path, "open")):  # fmt: skip
        monkeypatch.setattr(owner, name, counted(getattr(owner, name)))


def test_a_killed_writer_leaves_the_last_good_checkpoint(tmp_path, monkeypatch):
    spmd.save(tmp_path, tree_of(OLD))
    found = []
    for n in range(1, 100):
        child = os.fork()
        if child == 0:
            stopping_at(n, monkeypatch, lambda: os.kill(os.getpid(), 9))
            spmd.save(tmp_path, tree_of(NEW))
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        found.append(loaded(tmp_path))
        if status == 0:
            break
        spmd.save(tmp_path, tree_of(OLD))  # which also removes what the killed one left
        assert len(list(tmp_path.iterdir())) == 2
    assert found == sorted(found) and found[0] == OLD and found[-1] == NEW and len(found) > 8


def test_a_first_save_that_is_killed_is_no_checkpoint(tmp_path, monkeypatch):
    child = os.fork()
    if child == 0:
        stopping_at(4, monkeypatch, lambda: os.kill(os.getpid(), 9))
        spmd.save(tmp_path, tree_of(NEW))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 9 and list(tmp_path.iterdir())
    with pytest.raises(
        spmd.checkpoint.CheckpointError, match=r"has no manifest.json, which is written last"
    ):
        loaded(tmp_path)


@pytest.mark.parametrize("wait", [True, False])
def test_a_full_disk(tmp_path, monkeypatch, wait):
    spmd.save(tmp_path, tree_of(OLD))
    before = sorted(path.name for path in tmp_path.iterdir())
    for n in range(1, 7):
        with monkeypatch.context() as patch:

            def full():
                raise OSError(errno.ENOSPC, "No space left on device")

            stopping_at(n, patch, full)
            if wait:
                with pytest.raises(OSError, match="No space left"):
                    spmd.save(tmp_path, tree_of(NEW))
            else:
                saving = spmd.save(tmp_path, tree_of(NEW), wait=False)
                with pytest.raises(OSError, match="No space left"):
                    saving.written.result()
                with pytest.raises(RuntimeError, match=r"the last save, to .* failed: .*No space"):
                    spmd.save(tmp_path, tree_of(NEW))  # and the next call says it, too
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        assert loaded(tmp_path) == OLD


@pytest.mark.parametrize("format", ["spmd", "safetensors"])
def test_a_step_that_fails_leaves_a_whole_checkpoint(tmp_path, monkeypatch, format):
    """The old one, or the new one if that is there already and only the step behind it fails."""
    path = tmp_path if format == "spmd" else tmp_path / "one.safetensors"

    def tree(value):
        return {"a": torch.full((300,), value), "b": torch.full((5, 7), value)}

    def fail():
        raise OSError(errno.EIO, "Input/output error")

    found = []
    for n in range(1, 100):
        spmd.save(path, tree(OLD), format=format)
        with monkeypatch.context() as patch:
            stopping_at(n, patch, fail)
            try:
                spmd.save(path, tree(NEW), format=format)
                error = None
            except OSError as raised:
                error = raised
        target = spmd.load(path, tree(0.0))
        [value] = {*target["a"].tolist(), *target["b"].flatten().tolist()}
        found.append(value)
        if error is None and value == NEW and len(list(tmp_path.iterdir())) <= 2:
            break
    assert found == sorted(found) and found[0] == OLD and found[-1] == NEW and len(found) > 4


# --- files that are not as they were ---


def the_data(path):
    [data] = path.glob("data-*.safetensors")
    return data


def test_every_altered_byte_of_data_is_noticed(tmp_path):
    spmd.save(tmp_path, tree_of(OLD))
    data = the_data(tmp_path)
    good = data.read_bytes()
    begin = 8 + int.from_bytes(good[:8], "little")
    for at in [begin, begin + 1, len(good) // 2, len(good) - 1]:
        data.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(
            spmd.checkpoint.CheckpointError, match=re.escape(f"{str(data)!r} is altered")
        ):
            loaded(tmp_path)
    data.write_bytes(good)
    assert loaded(tmp_path) == OLD


def test_every_altered_byte_of_the_manifest_is_noticed(tmp_path):
    spmd.save(tmp_path, {"a": torch.ones(2)})
    path = tmp_path / manifest.NAME
    good = path.read_bytes()
    for at in range(len(good) - 1):
        path.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        with pytest.raises(spmd.checkpoint.CheckpointError, match=re.escape(str(path))):
            spmd.load(tmp_path, {"a": torch.ones(2)})


@pytest.mark.parametrize("name", ["data", manifest.NAME])
def test_truncated_files(tmp_path, name):
    spmd.save(tmp_path, tree_of(OLD))
    path = the_data(tmp_path) if name == "data" else tmp_path / name
    good = path.read_bytes()
    for length in (0, 5, 100, len(good) // 2, len(good) - 2):
        path.write_bytes(good[:length])
        with pytest.raises(spmd.checkpoint.CheckpointError, match=re.escape(str(path))):
            loaded(tmp_path)


def test_a_missing_file(tmp_path):
    spmd.save(tmp_path, tree_of(OLD))
    data = the_data(tmp_path)
    data.unlink()
    with pytest.raises(
        spmd.checkpoint.CheckpointError, match=re.escape(f"{str(data)!r} is missing")
    ):
        loaded(tmp_path)
    with pytest.raises(spmd.checkpoint.CheckpointError, match="'/nowhere' does not exist"):
        spmd.load("/nowhere", {})


def test_an_altered_checkpoint_changes_nothing(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to("spmd")
    spmd.save(tmp_path, model)
    data = the_data(tmp_path)
    good = data.read_bytes()
    data.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3)
    with pytest.raises(spmd.checkpoint.CheckpointError):
        spmd.load(tmp_path, model)
    assert all((parameter == 3).all().item() for parameter in model.parameters())
    spmd.load(tmp_path, model, verify=False)  # for those who know
    assert not (model[0].weight == 3).any().item()


def test_a_disk_that_fails_while_tensors_are_filled(tmp_path, monkeypatch):
    """What cannot be known before: the error says what was overwritten, and no tensor is half of
    one checkpoint and half of another. A Checkpointer goes on with the one before."""
    monkeypatch.setattr(parts, "_LARGE", 256)
    monkeypatch.setattr(safetensors_file, "PIECE", 256)
    mesh = spmd.make_mesh((4,), ("x",))
    names = ("a", "b", "c", "small")

    def tree(value):
        found = {name: torch.full((40, 8), value, device=where)
                 for name, where in (("a", "spmd"), ("b", "spmd"), ("c", "cpu"))}  # fmt: skip
        spmd.mark_sharding(found["b"], mesh, ("x", None))
        found["small"], found["n"] = torch.full((3,), value), int(value)
        spmd.sync(wait=True)
        return found

    def fail_at(n, patch):
        left, read = n, files.read_into

        def failing(*arguments):
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(errno.EIO, "Input/output error")
            read(*arguments)

        patch.setattr(files, "read_into", failing)

    spmd.save(tmp_path / "one", tree(OLD))
    found = set()
    for n in range(1, 100):
        target = tree(0.0)
        with monkeypatch.context() as patch:
            fail_at(n, patch)
            try:
                spmd.load(tmp_path / "one", target, verify=False)
                break
            except spmd.checkpoint.CheckpointError as error:
                text = str(error)
        assert "Input/output error" in text and target["n"] == 0
        before, loaded, _ = text.partition(" had been loaded before")
        complete = re.findall(r"'(\w+)'", before.rpartition(". ")[2]) if loaded else []
        for name in names:
            [kind] = {str(value) for value in target[name].cpu().flatten().tolist()}
            found.add(kind)
            if kind == "nan":
                assert f"Of tensor '{name}' a part may be overwritten; it is NaN" in text
            else:
                assert (kind == "1.0") == (name in complete), text
        spmd.load(tmp_path / "one", target)
        assert all(target[name].cpu().eq(1).all() for name in names) and target["n"] == 1
    assert found == {"0.0", "1.0", "nan"} and n > 12
    with spmd.checkpoint.Checkpointer(tmp_path / "run") as checkpoints:
        checkpoints.save(1, tree(OLD), wait=True)
        checkpoints.save(2, tree(NEW), wait=True)
        target = tree(0.0)
        with monkeypatch.context() as patch:
            fail_at(20, patch)
            with pytest.warns(UserWarning, match=r"Input/output error.*the one before is tried"):
                assert checkpoints.load(target) == 1
        assert all(target[name].cpu().eq(1).all() for name in names)


# --- checkpoints of something else ---


def test_what_does_not_fit_is_named_and_nothing_is_changed(tmp_path):
    spmd.save(tmp_path, {"w": torch.ones(3), "v": torch.ones(2), "n": 1})
    w = torch.zeros(3)
    for target, said in (
        ({"w": w, "v": torch.zeros(3), "n": 0}, r"'v' has shape \(3,\), and \(2,\) was saved"),
        (
            {"w": w, "v": torch.zeros(2).double(), "n": 0},
            "'v' is of torch.float64, and torch.float",
        ),
        ({"w": w, "v": torch.zeros(2)}, "'n' was saved, and the target has no such name"),
        ({"w": w, "v": torch.zeros(2), "n": 0, "m": 0}, "'m' was not saved"),
        ({"w": w, "v": torch.zeros(2), "n": torch.zeros(1)}, "'n' is a tensor, and another value"),
        ({"w": w, "v": [], "n": 0}, "v has 0 items, and another value was saved"),
        ({"w": w, "v": {}, "n": 0}, "v is a mapping, and another value was saved"),
        (nn.Linear(2, 2), "'weight' was not saved; 'bias' was not saved"),
    ):
        with pytest.raises(ValueError, match=said):
            spmd.load(tmp_path, target)
        assert w.tolist() == [0, 0, 0]
    double = torch.zeros(2).double()
    spmd.load(tmp_path, {"w": w, "v": double}, strict=False, cast=True)
    assert double.tolist() == [1, 1] and spmd.checkpoint.last_load().left_out == ("n",)


def test_an_optimizer_of_other_parameters(tmp_path):
    model = nn.Linear(4, 4).to("spmd")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4, device="spmd")).sum().backward()
    optimizer.step()
    spmd.save(tmp_path, {"optimizer": optimizer})
    other = torch.optim.AdamW([model.weight])
    with pytest.raises(ValueError, match=r"'optimizer' was saved with \[2\] parameters"):
        spmd.load(tmp_path, {"optimizer": other})
    assert not other.state


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(
        TypeError, match=r"save: tree\['a.b'\] is .*function.*, which cannot be sav"
    ):
        spmd.save(tmp_path, {"a": {"b": lambda: 0}})
    with pytest.raises(ValueError, match=r"save: tree\['a'\] has no values: tensor .*'meta'"):
        spmd.save(tmp_path, {"a": torch.ones(2, device="meta")})
    with pytest.raises(TypeError, match=r"save: tree\['a'\] is no dense tensor"):
        spmd.save(tmp_path, {"a": torch.eye(2).to_mkldnn()})
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError, match="contains itself, or is over 100 deep"):
        spmd.save(tmp_path, loop)
    assert not list(tmp_path.iterdir())


def test_names_that_safetensors_has_for_others(tmp_path):
    """Of a part, and of what is no tensor: the file is one that others read."""
    rows = spmd.mark_sharding(torch.arange(4.0).to("spmd"), spmd.make_mesh((2,), ("x",)), ("x",))
    tree = {"w": rows, "w[0:2]": torch.full((2,), 9.0), "__metadata__": torch.full((3,), 8.0)}
    spmd.save(tmp_path, tree)
    names = {"w[0:2]", "w[2:4]", "w[0:2]#2", "__metadata__#2"}
    assert set(safetensors.torch.load_file(the_data(tmp_path))) == names
    found = spmd.load(tmp_path, None)
    assert all(torch.equal(found[key].cpu(), value.cpu()) for key, value in tree.items())
    for content, error in (
        ({"__metadata__": torch.ones(2)}, ValueError),
        ({"c": torch.ones(2, dtype=torch.complex128)}, TypeError),
    ):
        with pytest.raises(error, match=r"no tensor in a file of saf|complex128, which safe"):
            spmd.save(tmp_path / "x.safetensors", content, format="safetensors")
    assert not (tmp_path / "x.safetensors").exists()


def test_an_expanded_target_is_refused_before_anything_is_changed(tmp_path):
    spmd.save(tmp_path, {"a": torch.ones(3), "b": torch.ones(4)})
    a = torch.zeros(3)
    with pytest.raises(ValueError, match=r"'b' has one element in several places \(expand, un"):
        spmd.load(tmp_path, {"a": a, "b": torch.zeros(1).expand(4)})
    assert not a.any()


@pytest.mark.parametrize("first, second", [("spmd", "hub"), ("dcp", "hub"), ("spmd", "dcp")])
def test_another_form_in_the_same_folder(tmp_path, first, second):
    """Otherwise load would go on reading the one that was there."""
    spmd.save(tmp_path, {"a": torch.ones(3)}, format=first)
    with pytest.raises(ValueError, match="has a checkpoint of another form"):
        spmd.save(tmp_path, {"a": torch.zeros(3)}, format=second)
    assert spmd.load(tmp_path, {"a": torch.zeros(3)})["a"].all()
    spmd.save(tmp_path, {"a": torch.full((3,), 5.0)})  # which load reads first
    assert spmd.load(tmp_path, {"a": torch.zeros(3)})["a"][0] == 5


def test_threads_that_save_to_one_folder(tmp_path):
    def save(value):
        spmd.save(tmp_path, tree_of(value))

    threads = [threading.Thread(target=save, args=(float(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loaded(tmp_path) in range(4) and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("format", ["spmd", "hub", "safetensors", "dcp"])
def test_a_folder_that_cannot_be_made(tmp_path, format):
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        spmd.save(tmp_path / "file" / "x", tree_of(OLD) | {"step": torch.ones(1)}, format=format)


@pytest.mark.parametrize("format", ["hub", "safetensors"])
def test_an_export_that_is_killed_leaves_the_last_one(tmp_path, monkeypatch, format):
    path = tmp_path / "model.safetensors"

    def save(value):
        tree = {"a": torch.full((300,), value), "b": torch.full((5, 7), value)}
        spmd.save(tmp_path if format == "hub" else path, tree, format=format)

    def value():
        content = safetensors.torch.load_file(path)
        [found] = {x for t in content.values() for x in t.flatten().tolist()}
        return found

    save(OLD)
    found = []
    for n in range(1, 100):
        child = os.fork()
        if child == 0:
            stopping_at(n, monkeypatch, lambda: os.kill(os.getpid(), 9))
            save(NEW)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        found.append(value())
        if status == 0:
            break
        save(OLD)
    assert found == sorted(found) and found[0] == OLD and found[-1] == NEW and len(found) > 4
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("counts", [(2, 2), (1, 2), (2, 1), (3, 2)], ids=str)
def test_several_files_for_the_hub_are_those_of_one_export(tmp_path, monkeypatch, counts):
    """Whenever the writer is killed, the index names files of one export, or there is one file."""

    def save(value, count):
        monkeypatch.setattr(export, "_LARGEST_FILE", 1 if count > 1 else 1 << 20)
        tree = {name: torch.full((5, 7), value) for name in "abc"[:count]}
        spmd.save(tmp_path, tree | {"a": torch.full((5, 7), value)}, format="hub")

    def value(values=OLD):
        found = spmd.load(tmp_path, None)
        assert len(found) in counts
        [one] = {x for t in found.values() for x in t.flatten().tolist()}
        alone = tmp_path / "model.safetensors"  # which transformers takes, if it is there
        if alone.exists():
            [one] = set(safetensors.torch.load_file(alone)["a"].flatten().tolist())
        return one

    save(OLD, counts[0])
    found = []
    for n in range(1, 100):
        child = os.fork()
        if child == 0:
            stopping_at(n, monkeypatch, lambda: os.kill(os.getpid(), 9))
            save(NEW, counts[1])
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        found.append(value())
        if status == 0:
            break
        save(OLD, counts[0])
        assert len(list(tmp_path.iterdir())) == counts[0] + (counts[0] > 1)
    # One that is alone may be seen before or after the index.
    assert {found[0], found[-1]} == {OLD, NEW} and found[0] == OLD and len(found) > 6
    if 1 not in counts:
        assert found == sorted(found)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("by", ["us", "dcp"])
def test_the_format_of_dcp_that_is_killed_leaves_the_last_one(tmp_path, monkeypatch, by):
    """Also one that `dcp.save` has written, whose files have other names."""

    def save_old():
        if by == "us":
            spmd.save(tmp_path, tree_of(OLD), format="dcp")
        else:
            shutil.rmtree(tmp_path)
            dcp.save(tree_of(OLD), checkpoint_id=tmp_path)

    save_old()
    found = []
    for n in range(1, 100):
        child = os.fork()
        if child == 0:
            stopping_at(n, monkeypatch, lambda: os.kill(os.getpid(), 9))
            spmd.save(tmp_path, tree_of(NEW), format="dcp")
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        found.append(loaded(tmp_path))
        if status == 0:
            break
        save_old()
    assert found == sorted(found) and found[0] == OLD and found[-1] == NEW and len(found) > 5
    assert len(list(tmp_path.glob("*.distcp"))) == 1


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_full_disk_and_the_format_of_dcp(tmp_path):
    spmd.save(tmp_path, tree_of(OLD), format="dcp")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for most in (0, 500, 1500, 4000):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
            with pytest.raises(OSError, match="File too large"):
                spmd.save(tmp_path, tree_of(NEW), format="dcp")
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert loaded(tmp_path) == OLD
            assert len(list(tmp_path.glob("*.distcp"))) == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


class Touch:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (os.mkdir, (self.path,))


def test_nothing_of_a_file_is_run(tmp_path):
    trap = tmp_path / "trap"
    folder = tmp_path / "dcp"
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(Touch(trap)))
    with pytest.raises(
        spmd.checkpoint.CheckpointError, match=r"names posix\.mkdir, which is not allowed"
    ):
        spmd.load(folder, {})
    assert not trap.exists()


def test_a_later_version_is_named(tmp_path):
    spmd.save(tmp_path, {})
    path = tmp_path / manifest.NAME
    content = json.loads(path.read_text())["content"] | {"version": 99}
    text = manifest._canonical(content)
    path.write_text(f'{{"digest":"{manifest.digest(text.encode())}","content":{text}}}')
    with pytest.raises(
        spmd.checkpoint.CheckpointError, match="version 99; this version of torch_spmd reads"
    ):
        spmd.load(tmp_path, {})
