# SPDX-License-Identifier: Apache-2.0
"""The public names with their signatures are those of surface.txt, and old names still work.

`python tests/python/api/test_surface.py` writes surface.txt.
"""

import importlib
import inspect
import re
import types
from pathlib import Path

import pytest
import torch

import torch_spmd as spmd
from torch_spmd import P, _renamed

SNAPSHOT = Path(__file__).with_name("surface.txt")
SUBJECTS = [name for name in spmd.__all__ if isinstance(getattr(spmd, name), types.ModuleType)]


def _members(where, kind):
    for name, member in sorted(vars(kind).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield f"{where}.{name}"
        elif callable(getattr(kind, name)):
            yield f"{where}.{name}{inspect.signature(getattr(kind, name))}"


def surface():
    """One line for each public function, class, method and property."""
    lines = []
    for module in (spmd, *(getattr(spmd, name) for name in SUBJECTS)):
        where = module.__name__.replace("torch_spmd", "spmd")
        for name in module.__all__:
            thing = getattr(module, name)
            if isinstance(thing, types.ModuleType):
                lines.append(f"{where}.{name}")
            elif not isinstance(thing, type):
                signature = inspect.signature(thing) if callable(thing) else ""
                lines.append(f"{where}.{name}{signature}")
            elif thing.__module__.startswith("torch_spmd"):
                own = "__init__" in vars(thing) or "__new__" in vars(thing)
                signature = inspect.signature(thing) if own else ""
                lines += [f"class {where}.{name}{signature}", *_members(f"{where}.{name}", thing)]
            else:
                lines.append(f"class {where}.{name}")
    text = "".join(f"{line}\n" for line in lines).replace("'", "")
    return re.sub(r"ForwardRef\(([^()]*)\)", r"\1", text)


def test_the_surface_is_the_recorded_one():
    assert surface() == SNAPSHOT.read_text()


def test_most_scripts_need_few_names():
    assert len(spmd.__all__) - len(SUBJECTS) <= 32


def test_switches_are_named():
    """No public function takes a bool by position."""
    for module in (spmd, *(getattr(spmd, name) for name in SUBJECTS)):
        for name in module.__all__:
            thing = getattr(module, name)
            if not callable(thing) or isinstance(thing, type):
                continue
            for p in inspect.signature(thing).parameters.values():
                switch = isinstance(p.default, bool) or str(p.annotation).startswith("bool")
                assert not switch or p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD), (name, p.name)


@pytest.mark.parametrize("old", sorted(_renamed._MOVED))
def test_old_names_work_and_say_the_new_one(old):
    module, _, name = _renamed._MOVED[old].partition(".")
    new = getattr(importlib.import_module(f"torch_spmd.{module}"), name)
    with pytest.warns(DeprecationWarning, match=f"spmd.{old} is now spmd.{module}.{name}$"):
        assert getattr(spmd, old) is new


@pytest.mark.parametrize("old", ["set_coalescing", "set_deduplication"])
def test_old_switches_work(old):
    setting = _renamed._SWITCHES[old]
    with (
        spmd.config.update(**{setting: True}),
        pytest.warns(DeprecationWarning, match="spmd.config.update"),
    ):
        getattr(spmd, old)(False)
        assert spmd.config.current()[setting] is False


def test_a_name_that_never_was():
    with pytest.raises(AttributeError, match="module 'torch_spmd' has no attribute 'shard_mpa'"):
        spmd.shard_mpa  # noqa: B018
    assert not hasattr(spmd, "plans") and not hasattr(spmd.hf, "plans")


def test_the_old_name_in_hf():
    with pytest.warns(DeprecationWarning, match="spmd.hf.plan is now spmd.hf.shard_model"):
        assert spmd.hf.plan is spmd.hf.shard_model


def test_the_old_module_of_lightning():
    pytest.importorskip("lightning")
    with pytest.warns(DeprecationWarning, match=r"is now torch_spmd\.integrations\.lightning"):
        old = importlib.import_module("torch_spmd.lightning")
    assert old.Strategy is importlib.import_module("torch_spmd.integrations.lightning").Strategy


def test_sizes_of_a_mesh_are_properties_that_can_still_be_called():
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    assert mesh.size == 8 and mesh.shape == {"data": 2, "model": 4}
    for name in ("size", "shape"):
        with pytest.warns(DeprecationWarning, match=f"mesh.{name} is a property"):
            assert getattr(mesh, name)() == getattr(mesh, name)


@pytest.mark.parametrize("how", ["mark", "tree", "reshard", "rules", "parts", "processes"])
def test_a_shorter_spec_leaves_the_last_dimensions_whole(how):
    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    t = torch.arange(64.0).view(8, 4, 2).to("spmd")
    if how == "mark":
        spmd.mark_sharding(t, mesh, P("model"))
    elif how == "tree":
        spmd.mark_sharding([t, torch.ones(4, device="spmd")], mesh, ("model",))
    elif how == "reshard":
        t = spmd.reshard(t, mesh, ("model",))
    elif how == "rules":
        module = torch.nn.Module()
        module.weight = torch.nn.Parameter(t)
        report = spmd.shard_module(module, mesh, {"weight": ("model",)})
        assert report.sharded == {"weight": P("model", None, None)}
        t = module.weight.detach()
    elif how == "parts":
        shards = spmd.local_shards(spmd.reshard(t, mesh, ("model", None, None)))
        t = spmd.from_local_shards(shards, mesh, ("model",), (8, 4, 2))
    else:
        t = spmd.processes.from_process_local(t.cpu(), mesh, ("model",))
    assert spmd.sharding_of(t).spec == P("model", None, None)
    assert torch.equal(t.cpu(), torch.arange(64.0).view(8, 4, 2))


def test_a_traced_mark_takes_a_shorter_spec():
    from torch.fx.experimental.proxy_tensor import make_fx

    mesh = spmd.make_mesh((2, 4), ("data", "model"))
    graph = make_fx(lambda t: spmd.mark_sharding(t * 2, mesh, P("data")))
    x = torch.ones(4, 4, device="spmd")
    assert spmd.sharding_of(graph(x)(x)).spec == P("data", None)


def test_settings_of_a_block():
    before = spmd.config.current()
    with spmd.config.update(coalesce=False, memory_limit="2KiB"):
        now = spmd.config.current()
        assert (now["coalesce"], now["memory_limit"]) == (False, 2048)
    assert spmd.config.current() == before
    for wrong, error in (({"coalesce": "no"}, TypeError), ({"colaesce": True}, ValueError)):
        with pytest.raises(error, match=r"config\.update: "):
            spmd.config.update(replay=False, **wrong)
    assert spmd.config.current() == before


if __name__ == "__main__":
    SNAPSHOT.write_text(surface())
