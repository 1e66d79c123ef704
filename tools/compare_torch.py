# SPDX-License-Identifier: Apache-2.0
"""What changed between two installed PyTorch versions in what this project touches.

    tools/compare_torch .venv .venv-2.15.0             # environments, or their interpreters
    tools/compare_torch --headers .venv .venv-2.15.0   # with the differences of the headers

prints the schemas of `aten` ops that came, went or changed, the headers that csrc includes and that
differ, the private names of csrc/trace/compat that only one version's headers have, the names of
PyTorch in Python sources that only one version has, and the functions among them whose signatures
differ. A line that begins with `!` is of an op with a row in a rule table, or
of a name that is gone. The status is 1 if there is such a line.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import inspect
import json
import os
import re
import runpy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_MISSING = "is missing"


def included() -> set[str]:
    """The headers of PyTorch that csrc and its tests include."""
    sources = [f for folder in ("csrc", "tests/cpp") for f in (ROOT / folder).rglob("*.[hc]*")]
    found = re.compile(r'^#include [<"]((?:torch|ATen|c10)/[^>"]+)', re.MULTILINE)
    return {name for f in sources for name in found.findall(f.read_text())}


def named_in_cpp() -> set[str]:
    """The private names in csrc/trace/compat, without their namespaces."""
    private_in_cpp = runpy.run_path(str(ROOT / "tools/check_private.py"))["private_in_cpp"]
    doors = (ROOT / "csrc/trace/compat").glob("*.h")
    found = {name for door in doors for _, name in private_in_cpp(door) if "/" not in name}
    return {name.split("::")[-1] for name in found}


def of_headers(include: Path, names: set[str]) -> dict[str, str]:
    """Whether a header of PyTorch has the name; those of single ops are not read."""
    left = set(names)
    for folder in ("c10", "torch", "ATen"):
        for header in (include / folder).rglob("*.h"):
            if left and header.parent.name != "ops":
                left -= set(re.findall(rf"\b(?:{'|'.join(left)})\b", header.read_text()))
    return {name: _MISSING if name in left else "there" for name in names}


def named() -> set[str]:
    """The dotted names below `torch` that the package uses, without what it puts there itself."""
    files = [ROOT / "torch_spmd_autoload.py", *(ROOT / "torch_spmd").rglob("*.py")]
    names = {name for f in files for name in names_of(ast.parse(f.read_text()))}
    return {name for name in names if not re.match(r"torch\.(ops\.)?spmd\b", name)}


def names_of(tree: ast.AST) -> Iterator[str]:
    """What a module imports from torch, and the attributes it takes of that; the symbols of the
    rooms of torch_spmd/_compat.py."""
    meaning = {"torch": "torch"}  # what a name stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    yield alias.name
                    if alias.asname:
                        meaning[alias.asname] = alias.name
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        match node:
            case ast.Call(args=[ast.Constant(value=str(room)), ast.Dict(keys=symbols)]):
                if room.startswith("torch."):
                    yield from (
                        f"{room}.{k.value!s}" for k in symbols if isinstance(k, ast.Constant)
                    )
        chain: list[str] = []
        value = node
        while isinstance(value, ast.Attribute):
            chain, value = [value.attr, *chain], value.value
        if chain and isinstance(value, ast.Name) and value.id in meaning:
            yield ".".join([meaning[value.id], *chain])


def describe(name: str) -> str:
    """A signature, a kind if there is none, or `_MISSING`."""
    parts = name.split(".")
    found: Any = None
    for k in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:k]))
        except ImportError:
            continue
        for attribute in parts[k:]:
            # An instance may lack what its class will give it, but not a module or a class.
            if not hasattr(found, attribute):
                certain = inspect.ismodule(found) or inspect.isclass(found)
                return _MISSING if certain else "unknown"
            found = getattr(found, attribute)
        break
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return "there"
    empty = inspect.Parameter.empty  # annotations change more often than what they say
    parameters = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return re.sub(r" at 0x\w+", "", str(inspect.Signature(parameters)))


def facts() -> dict[str, Any]:
    """Of the PyTorch of this interpreter, on which the tool runs itself."""
    import torch

    warnings.simplefilter("ignore")
    include = Path(torch.__file__).parent / "include"
    schemas = {
        schema.name + ("." + schema.overload_name if schema.overload_name else ""): str(schema)
        for schema in torch._C._jit_get_all_schemas()
    }
    headers = {}
    for name in included():
        places = (include / name, include / "torch/csrc/api/include" / name)
        text = next((p.read_text() for p in places if p.exists()), None)
        if text is not None:
            headers[name] = text
    return {
        "version": torch.__version__,
        "schemas": {op: text for op, text in schemas.items() if op.startswith("aten::")},
        "headers": headers,
        "names in C++": of_headers(include, named_in_cpp()),
        "names": {name: describe(name) for name in named()},
    }


def facts_of(environment: str) -> dict[str, Any]:
    place = Path(environment)
    python = place / "bin" / "python" if place.is_dir() else place
    done = subprocess.run(
        [python, __file__, "--facts"],
        capture_output=True,
        text=True,
        env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},  # without this project
    )
    if done.returncode != 0:
        raise SystemExit(f"{python}: {done.stderr.strip() or done.returncode}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def changes(old: dict[str, str], new: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """By key: the lines that tell what it was and is."""
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            sides = (("-", old), ("+", new))
            yield key, [f"{sign} {side[key]}" for sign, side in sides if key in side]


def report(old: dict[str, Any], new: dict[str, Any], with_headers: bool) -> Iterator[str]:
    yield f"PyTorch {old['version']} → {new['version']}"
    table = (ROOT / "csrc/rules/signatures.inc").read_text()
    ruled = set(re.findall(r'{Family::\w+, "([^(]+)', table))
    found = list(changes(old["schemas"], new["schemas"]))
    yield f"\nOp schemas: {len(found)} differ"
    for op, lines in found:
        mark = "!" if op in ruled else " "
        yield from (f"{mark} {line}" for line in lines)
    mine, theirs = old["headers"], new["headers"]
    found = list(changes(mine, theirs))
    yield f"\nHeaders: {len(found)} of {len(included())} differ"
    for name, _ in found:
        before, after = (side.get(name, "").splitlines() for side in (mine, theirs))
        lines = list(difflib.unified_diff(before, after, lineterm="", n=1))[2:]
        counts = [sum(line.startswith(sign) for line in lines) for sign in "-+"]
        gone = "!" if name not in theirs else " "
        yield f"{gone} {name}: {counts[0]} lines less, {counts[1]} more"
        if with_headers:
            yield from (f"      {line}" for line in lines)
    for title, side in (("Private names in C++", "names in C++"), ("Names in Python", "names")):
        found = list(changes(old[side], new[side]))
        yield f"\n{title}: {len(found)} of {len(new[side])} differ"
        for name, lines in found:
            gone = "!" if new[side][name] == _MISSING else " "
            yield f"{gone} {name}"
            yield from (f"      {line}" for line in lines)


def main() -> int:
    assert __doc__ is not None
    if sys.argv[1:] == ["--facts"]:
        print(json.dumps(facts()))
        return 0
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--headers", action="store_true")
    given = parser.parse_args()
    lines = list(report(facts_of(given.old), facts_of(given.new), given.headers))
    print("\n".join(lines))
    return int(any(line.startswith("!") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
