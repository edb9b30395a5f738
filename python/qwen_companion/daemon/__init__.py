# SPDX-License-Identifier: GPL-3.0-or-later
"""The client of `qwen serve` (spec A1-A10).  Nothing of it but `ids` is imported while it is off."""
