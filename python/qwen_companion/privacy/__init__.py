# SPDX-License-Identifier: GPL-3.0-or-later
"""The files that a CLI may be sent.

It may use the modules at the top.  Begin with `exclusions`, all rules together; `rules` is data.
"""
