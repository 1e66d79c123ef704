# SPDX-License-Identifier: Apache-2.0
"""Importing this module makes `import torch_xla` mean `torch_spmd.torch_xla`, and the device names
"xla" and "xla:0" the device `spmd`, in this process. Where the real torch_xla is installed, it has
no effect, and a warning says so.

    import torch_spmd.torch_xla.install
    import torch_xla
"""

import warnings

from torch_spmd.torch_xla import _device, _finder

if _finder.install():
    _device.install()
else:
    warnings.warn(
        "torch_spmd.torch_xla.install: torch_xla is installed or imported already, so it stays "
        "what `import torch_xla` means; uninstall it to run the script on torch_spmd",
        stacklevel=2,
    )
