# SPDX-License-Identifier: Apache-2.0
"""Scripts that measure; see README.md beside this."""

import os

# What is compiled is measured, not what an earlier run has left on disk.
os.environ.setdefault("SPMD_CACHE_DIR", "0")
