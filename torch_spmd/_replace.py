# SPDX-License-Identifier: Apache-2.0
"""Functions of other packages that this one replaces, and why.

docs/other-packages.md lists those that `import torch_spmd` replaces, and
tests/python/api/test_replaced.py compares. The others are replaced by a line of the user's
(torch_spmd/integrations). `python -m torch_spmd.info` prints all.
"""

from __future__ import annotations

import types
from typing import Any

replaced: dict[str, str] = {}
"""Why, by name."""


def replace(owner: Any, name: str, new: Any, why: str) -> None:
    """Replaces, or adds, an attribute of a module or class."""
    setattr(owner, name, new)
    replaced[f"{_name_of(owner)}.{name}"] = why


def _name_of(owner: Any) -> str:
    if isinstance(owner, types.ModuleType):
        return owner.__name__
    return f"{owner.__module__}.{owner.__qualname__}"
