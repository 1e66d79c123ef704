# SPDX-License-Identifier: Apache-2.0
"""Runs a notebook as Jupyter would, without Jupyter, and writes what its cells show into it.

    python tests/python/support/notebook.py docs/notebooks/sharding.ipynb [--check]

With --check nothing is written: the exit status is 1 if a cell shows something of another kind
than the file has (text, a table, a picture), or another picture. Only what the notebooks of this
project need is there: printed text, and values with `_repr_html_`.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import sys
import types
from pathlib import Path
from typing import Any


class Cells:
    """The cells of a notebook share a namespace; `shown` has the outputs of the one that runs."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"__name__": "__main__"}
        self.shown: list[dict[str, Any]] = []
        shell, displays = types.ModuleType("IPython"), types.ModuleType("IPython.display")
        shell.get_ipython = lambda: types.SimpleNamespace(kernel=self)
        displays.HTML = lambda text: types.SimpleNamespace(_repr_html_=lambda: text)
        displays.display = lambda value: self.show(value, "display_data")
        sys.modules |= {"IPython": shell, "IPython.display": displays}

    def show(self, value: Any, kind: str) -> None:
        if hasattr(value, "_ipython_display_"):
            value._ipython_display_()
            return
        data = {"text/plain": lines(repr(value))} if kind == "execute_result" else {}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = lines(value._repr_html_())
        self.shown.append({"output_type": kind, "metadata": {}, "data": data})

    def run(self, source: str, number: int) -> list[dict[str, Any]]:
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        self.shown, printed = [], io.StringIO()
        name = f"cell {number}"
        with contextlib.redirect_stdout(printed):
            exec(compile(tree, name, "exec"), self.namespace)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), name, "eval"), self.namespace)
                if value is not None:
                    self.show(value, "execute_result")
        for output in self.shown:
            if output["output_type"] == "execute_result":
                output["execution_count"] = number
        if printed.getvalue():
            text = lines(printed.getvalue())
            self.shown.insert(0, {"output_type": "stream", "name": "stdout", "text": text})
        return self.shown


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with the outputs of its cells. Raises what a cell raises."""
    cells, number, result = Cells(), 0, []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            outputs = cells.run("".join(cell["source"]), number)
            cell = cell | {"execution_count": number, "outputs": outputs}
        result.append(cell)
    return notebook | {"cells": result}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    before = options.path.read_text()
    after = json.dumps(executed(json.loads(before)), indent=1, ensure_ascii=False) + "\n"
    if not options.check:
        options.path.write_text(after)
        return 0
    stale = [
        f"cell {new['execution_count']} shows {kinds(new)}, and the file has {kinds(old)}"
        for old, new in zip(json.loads(before)["cells"], json.loads(after)["cells"])
        if kinds(old) != kinds(new)
    ]
    print("\n".join(stale))
    return int(bool(stale))


def kinds(cell: dict[str, Any]) -> list[Any]:
    """What a cell shows: numbers in tables may be those of an earlier version, pictures not."""
    return [
        (output["output_type"], sorted(output.get("data", ())))
        if output["output_type"] != "display_data"
        else output["data"]
        for output in cell.get("outputs", ())
    ]


if __name__ == "__main__":
    sys.exit(main())
