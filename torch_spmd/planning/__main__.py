# SPDX-License-Identifier: Apache-2.0
"""The command of spmd.plan.

    python -m torch_spmd.planning module:build --on v5e-256 v5p-128 --mesh data=32,model=8

`module:build` names a function as `spmd.plan` takes it. What else the plan needs is read from the
same module if it is there, under the names of the arguments of `spmd.plan`: `batch`, `specs`,
`batch_spec`, `loss`, `optimizer`, `mesh`, `autocast`. Options of the command come first.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

NAMED = ("batch", "specs", "batch_spec", "loss", "optimizer", "mesh", "autocast")


def mesh_of(text: str) -> dict[str, int] | str:
    """`data=32,model=8` as sizes by axis, or `auto`."""
    if text == "auto":
        return text
    try:
        pairs = [part.split("=") for part in text.split(",")]
        return {axis: int(size) for axis, size in pairs}
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a mesh, such as data=32,model=8 or auto"
        ) from None


def named(text: str) -> Any:
    """What `module:name` names.

    Errors: ArgumentTypeError.
    """
    module, colon, name = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{text!r} is not module:name, such as train:build")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    from torch_spmd.planning.planner import plan

    sys.path.insert(0, os.getcwd())
    parser = argparse.ArgumentParser(
        prog="python -m torch_spmd.planning",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("build", help="module:function")
    parser.add_argument("--on", nargs="+", required=True, help="machines: v5e-256, 8xh100, …")
    parser.add_argument("--mesh", type=mesh_of, help="data=32,model=8, or auto (the default)")
    parser.add_argument("--specs", type=named, help="module:name of the rules")
    parser.add_argument("--optimizer", help="adamw, adam, adafactor, sgd, momentum")
    parser.add_argument("--autocast", choices=["bf16", "f16"])
    parser.add_argument("--plot", metavar="PATH", help="writes the best candidate's picture")
    args = parser.parse_args(arguments)
    try:
        build = named(args.build)
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    module = sys.modules[args.build.partition(":")[0]]
    given = {name: getattr(module, name) for name in NAMED if hasattr(module, name)}
    options = {name: getattr(args, name, None) for name in NAMED}
    given |= {name: value for name, value in options.items() if value is not None}
    if "batch" not in given:
        parser.error(f"{module.__name__} has no `batch`: a tensor, a tuple or a dict of them")
    table = plan(build, given.pop("batch"), on=args.on, **given)
    try:
        import rich

        rich.print(table)
    except ImportError:
        print(table)
    if args.plot:
        table.plot(args.plot)
    return 0 if table.best.row.fits else 1


if __name__ == "__main__":
    raise SystemExit(main())
