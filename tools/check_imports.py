# SPDX-License-Identifier: Apache-2.0
"""Checks that torch_spmd keeps its order: python tools/check_imports.py [root]

    1. A package imports only itself, the packages that ORDER names before it, and the modules of
       BASE. Imports inside of functions count, those for type checkers alone do not.
    2. No modules import each other in a circle. torch_spmd.torch_xla counts as one module: it has
       the modules of PyTorch/XLA.
    3. No module has more than 500 lines.

Prints one line per violation and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "torch_spmd"
BASE = {"_C", "_arguments", "_compat", "_loading", "_renamed", "_replace", "_versions"}
# The public modules of one file are named among the packages.
ORDER = (
    "device",
    "sharding",
    "processes",
    "regions",
    "nn",
    "debug",
    "state",
    "data",
    "planning",
    "checkpoint",
    "config",
    "dtensor",
    "hf",
    "lax",
    "testing",
    "integrations",
    "lightning",
    PACKAGE,
    "info",
    "torch_xla",
)
MOST_LINES = 500
LONG = {"regions/manual.py", "regions/collectives.py"}  # to be divided
# Known exceptions, each with its reason.
ALLOWED = {
    ("torch_spmd", "torch_spmd.torch_xla"): "SPMD_TORCH_XLA=1 asks for the layer",
    ("torch_spmd.regions.manual", "torch_spmd.regions.functional_collectives"): "to be divided",
}


def modules(root: Path) -> dict[str, Path]:
    """The package's modules by name."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """(line, module, name) of each import of the package; the name is "" for `import module`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == PACKAGE:
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == PACKAGE:
                    yield node.lineno, alias.name, ""
        yield from imported(node)


def _target(module: str, name: str, known: dict[str, Path]) -> str:
    whole = f"{module}.{name}"
    return whole if whole in known or whole == f"{PACKAGE}._C" else module


def _merged(module: str) -> str:
    """torch_spmd.torch_xla for each of its modules."""
    return ".".join(module.split(".")[:2]) if ".torch_xla" in module else module


def _part(module: str) -> str:
    """The package of the module, or the module itself if it is not in one."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else PACKAGE


def violations(root: Path) -> list[str]:
    known = modules(root)
    found = []
    graph: dict[str, set[str]] = {}
    for module, path in known.items():
        where, text = path.relative_to(root), path.read_text()
        inside = path.relative_to(root / PACKAGE).as_posix()
        if text.count("\n") > MOST_LINES and inside not in LONG:
            found.append(f"{where}: has more than {MOST_LINES} lines")
        for line, name, attribute in imported(ast.parse(text)):
            target = _target(name, attribute, known)
            edge = (_merged(module), _merged(target))
            if edge[0] == edge[1] or edge in ALLOWED:
                continue
            graph.setdefault(edge[0], set()).add(edge[1])
            here, there = _part(module), _part(target)
            if there in BASE or here == there:
                continue
            if here in BASE or there not in ORDER or here not in ORDER:
                found.append(f"{where}:{line}: {here} may not import {there}")
            elif ORDER.index(there) > ORDER.index(here):
                found.append(f"{where}:{line}: imports {target}, which is not above {here!r}")
    return found + [f"circle: {' -> '.join(circle)}" for circle in circles(graph)]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """A circle for each edge that closes one in a walk from module to module."""
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> None:
        if module in path:
            found.append([*path[path.index(module) :], module])
        elif module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, [*path, module])
            done.add(module)

    for module in sorted(graph):
        visit(module, [])
    return found


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    found = violations(root)
    print("\n".join(found) if found else "imports: in order")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
