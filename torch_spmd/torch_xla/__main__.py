# SPDX-License-Identifier: Apache-2.0
"""`python -m torch_spmd.torch_xla script.py arguments…` runs a PyTorch/XLA script, unchanged.

`-m module arguments…` runs a module.
"""

import os
import runpy
import sys


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        sys.exit("usage: python -m torch_spmd.torch_xla (script.py | -m module) [arguments …]")
    import torch_spmd.torch_xla.install  # noqa: F401

    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


main()
