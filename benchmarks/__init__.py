# SPDX-License-Identifier: Apache-2.0
"""Scripts that measure; see README.md beside this."""
