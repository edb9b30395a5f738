# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that a CLI may be told of."""
