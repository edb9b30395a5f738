# SPDX-License-Identifier: GPL-3.0-or-later
"""Qwen Code's records of conversations: one file each, with a JSON object on each line.

It may use `journal`, `doors`, `privacy` and the modules at the top.  Begin with `recording`, which reads one.
"""
