# SPDX-License-Identifier: Apache-2.0
"""Pages in a real browser, which reaches no network."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "google-chrome", "chrome")
_ANSWER = re.compile(r'<pre id="measured">(.*?)</pre>', re.DOTALL)


def measure(page: Path, width: int, expression: str) -> Any:
    """The value of an expression of JavaScript in the page, in a window of `width` pixels.

    Skips the test where there is no browser; in CI there is one (tools/test).
    """
    browser = next(filter(None, map(shutil.which, NAMES)), None)
    if browser is None:
        assert "CI" not in os.environ, f"none of {NAMES} is installed"
        pytest.skip("no browser is installed")
    script = f"""<script>addEventListener("load", () => {{
        const pre = document.createElement("pre");
        pre.id = "measured";
        pre.textContent = JSON.stringify({expression});
        document.body.append(pre);
    }})</script>"""
    copy = page.with_name(f"measured-{page.name}")
    copy.write_text(page.read_text(encoding="utf-8") + script, encoding="utf-8")
    command = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={width},2000"),
        *("--dump-dom", copy.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    [answer] = _ANSWER.findall(done.stdout)
    return json.loads(html.unescape(answer))
