# SPDX-License-Identifier: Apache-2.0
"""Checks that private symbols of PyTorch have one door: python tools/check_private.py [root]

torch_spmd/_compat.py names them, each with what for, what would replace it, and what happens when
it is missing. No other module of the package has any of these:

    import torch._subclasses                  a module, or a name in it, that begins with _
    from torch.utils import _pytree
    torch._C._dispatch_keys(t)                an attribute of what was imported from torch
    module._parameters                        an attribute that tensors, modules and others have

Ops (`torch.ops.aten._softmax`) are public whatever they are called, and so are names that begin
with two underscores. Prints one line per violation and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

DOOR = "_compat.py"

# Attributes of objects of PyTorch whose types a reader of the syntax does not know.
ATTRIBUTES = {
    "_backward_hooks",
    "_base",
    "_buffers",
    "_cdata",
    "_dataset_kind",
    "_device_mesh",
    "_flat_weights",
    "_flat_weights_names",
    "_forward_hooks",
    "_forward_pre_hooks",
    "_is_view",
    "_local_tensor",
    "_modules",
    "_next_index",
    "_non_persistent_buffers_set",
    "_parameters",
    "_split_tensor",
    "_validate_device",
    "_version",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def has_private(parts: list[str]) -> bool:
    return parts[:2] != ["torch", "ops"] and any(map(is_private, parts))


def imported(tree: ast.Module) -> tuple[dict[str, list[str]], list[tuple[int, str]]]:
    """What names of the module stand for, by name, and private imports with their lines."""
    known: dict[str, list[str]] = {}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "torch":
                    known[alias.asname or "torch"] = parts if alias.asname else ["torch"]
                    if has_private(parts):
                        found.append((node.lineno, alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            base = (node.module or "").split(".")
            for alias in node.names:
                parts = [*base, alias.name]
                if base[0] == "torch":
                    known[alias.asname or alias.name] = parts
                    if has_private(parts):
                        found.append((node.lineno, ".".join(parts)))
    return known, found


def chain(node: ast.Attribute) -> list[str] | None:
    """`a.b.c` as a list; None if it does not begin with a name."""
    parts: list[str] = []
    at: ast.expr = node
    while isinstance(at, ast.Attribute):
        parts.append(at.attr)
        at = at.value
    return [at.id, *reversed(parts)] if isinstance(at, ast.Name) else None


def violations(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text())
    known, found = imported(tree)
    yield from found
    inner: set[int] = set()
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {node.attr for node in attributes if of_self(node)}
    for node in attributes:
        if node.attr in ATTRIBUTES and node.attr not in own:
            yield node.lineno, f"….{node.attr}"
        if id(node) in inner:
            continue
        inner.update(id(part) for part in ast.walk(node) if isinstance(part, ast.Attribute))
        parts = chain(node)
        if parts is not None and parts[0] in known:
            begin = known[parts[0]]
            # What was imported has been judged with its import.
            if has_private([*begin, *parts[1:]]) and any(map(is_private, parts[1:])):
                yield node.lineno, ".".join([*begin, *parts[1:]])


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def main(root: Path) -> int:
    package = root / "torch_spmd"
    count = 0
    for path in sorted(package.rglob("*.py")):
        if path == package / DOOR:
            continue
        for line, name in sorted(set(violations(path))):
            count += 1
            place = f"{path.relative_to(root)}:{line}"
            print(f"{place}: {name} is private to PyTorch; torch_spmd/{DOOR} may name it")
    return 1 if count else 0


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else here))
