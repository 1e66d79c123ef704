# SPDX-License-Identifier: Apache-2.0
"""`import torch_spmd` replaces the functions of PyTorch that docs/other-packages.md lists, and no
others."""

import json
import re

from processes import run_python

MOST = 10
# torch.utils.rename_privateuse1_backend changes how these are shown.
OF_THE_NAME = ("torch._C._autograd.DeviceType.", "torch._C._profiler.ProfilerActivity.")

LOOK = '''
import importlib, inspect, json, sys, types

def modules():
    return {n for n in sys.modules if n == "torch" or n.startswith("torch.")}

def is_function(value):
    kinds = types.FunctionType, types.BuiltinFunctionType, type, property, classmethod, staticmethod
    return isinstance(value, kinds) or hasattr(type(value), "__get__") or callable(value)

def entries(owner):
    for name, value in list(vars(owner).items()):
        if not isinstance(value, types.ModuleType) and is_function(value):
            yield name, value

def seen(names):
    """What modules and their classes hold, and the code of functions."""
    found = {}
    for name in sorted(names):
        module = sys.modules[name]
        if not isinstance(module, types.ModuleType):
            continue
        for attribute, value in entries(module):
            found[f"{name}.{attribute}"] = value, getattr(value, "__code__", None)
            if isinstance(value, type) and value.__module__.startswith("torch"):
                for inner, held in entries(value):
                    key = f"{value.__module__}.{value.__qualname__}.{inner}"
                    found[key] = held, getattr(held, "__code__", None)
    return found

import torch
for name in json.loads(sys.argv[1]):
    try:
        importlib.import_module(name)
    except ImportError:
        pass
names, finders, hooks = modules(), list(sys.meta_path), list(sys.path_hooks)
before, again = seen(names), seen(names)
before = {n: held for n, held in before.items() if n in again and again[n][0] is held[0]}
import torch_spmd
after = seen(names)
changed = [
    name for name, (value, code) in before.items()
    if name not in after or after[name][0] is not value or after[name][1] is not code
]
print(json.dumps({
    "modules": sorted(modules()),
    "replaced": changed,
    "added": sorted(after.keys() - before.keys()),
    "told": torch_spmd._replace.replaced,
    "imports": sys.meta_path == finders and sys.path_hooks == hooks,
}))
'''


def look():
    """Twice: once to know the modules that are imported, which are then there before."""
    names = ["torch"]
    for _ in range(2):
        done = run_python("-W", "ignore", "-c", LOOK, json.dumps(names), fresh=True)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout.splitlines()[-1])
        names = found["modules"]
    return found


def test_what_the_import_replaces_is_on_the_page(root):
    found = look()
    page = (root / "docs" / "other-packages.md").read_text()
    section = page[page.index("## What the import replaces") :].split("\n## ")[0]
    listed = re.findall(r"^\| `(torch[\w.]+)` \|", section, re.MULTILINE)
    # torch.utils.backend_registration makes functions of the device's name for every such device.
    added = [n for n in found["added"] if not n.rpartition(".")[2].endswith("spmd")]
    changed = [name for name in found["replaced"] if not name.startswith(OF_THE_NAME)]
    assert sorted(changed + added) == sorted(listed)
    assert sorted(found["told"]) == sorted(listed)
    assert len(listed) <= MOST
    assert found["imports"]
