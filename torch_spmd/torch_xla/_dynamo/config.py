# SPDX-License-Identifier: Apache-2.0
"""Settings of compiled functions."""

# Without effect: an input that is pending is never refused.
skip_input_data_check = False
