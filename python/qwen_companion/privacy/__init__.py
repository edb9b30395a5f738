# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files a CLI may hear of."""
