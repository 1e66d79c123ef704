# SPDX-License-Identifier: Apache-2.0
"""Reads this package's docstrings as Google's, for mkdocstrings (an extension of griffe).

`Example:` with a doctest is an example, and `Errors:` over indented lines are exceptions.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class Sections(griffe.Extension):
    """Gives the sections the names that Google's style has."""

    def on_object(self, *, obj: griffe.Object, **options: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring is not None:
            text = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
            obj.docstring.value = re.sub(r"^Errors:$", "Raises:", text, flags=re.MULTILINE)
