# SPDX-License-Identifier: Apache-2.0
"""The benchmarks, which CI runs in small parts only, can at least be imported."""

from processes import run_script


def test_every_module_can_be_imported(root):
    run_script(
        f"""
        import importlib, pkgutil, sys
        sys.path.insert(0, {str(root)!r})
        import benchmarks
        # Some of those that compare with other packages need a checkout of theirs.
        for module in pkgutil.walk_packages(benchmarks.__path__, "benchmarks."):
            if not module.name.startswith("benchmarks.peers") and "__main__" not in module.name:
                importlib.import_module(module.name)
        """
    )
