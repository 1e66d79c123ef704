# SPDX-License-Identifier: Apache-2.0
"""`test_utils`: what training scripts of torch_xla print their progress with."""

import sys

from torch_spmd.torch_xla.test import _progress as test_utils

# A file of this name would be taken for a test by pytest, which then loads it a second time.
sys.modules[f"{__name__}.test_utils"] = test_utils

__all__ = ["test_utils"]
