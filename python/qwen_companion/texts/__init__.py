# SPDX-License-Identifier: GPL-3.0-or-later
"""Comparing and merging texts, for Emacs to show and to apply.

It may use the modules at the top.  Begin with `hunks`, on which all else rests.
"""
