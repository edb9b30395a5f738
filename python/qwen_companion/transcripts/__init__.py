# SPDX-License-Identifier: GPL-3.0-or-later
"""Qwen Code's records of conversations: one file each, a JSON object a line.

It may use `journal`, `doors`, `privacy` and the modules at the top.  Begin with `recording`, which reads one.
"""
