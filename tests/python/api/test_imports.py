# SPDX-License-Identifier: Apache-2.0
"""The import of the package loads little."""

import json
import subprocess
import sys

HEAVY = ("torch._dynamo", "torch._inductor", "torch.fx.experimental", "sympy", "numpy", "rich")


def test_importing_the_package_imports_little():
    text = "import json, sys, torch; before = set(sys.modules); import torch_spmd; "
    text += "print(json.dumps(sorted(set(sys.modules) - before)))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not [name for name in json.loads(done.stdout) if name.startswith(HEAVY)]
