# SPDX-License-Identifier: Apache-2.0
"""The same workloads under other compilers, in processes of their own; see `__main__.py`."""
