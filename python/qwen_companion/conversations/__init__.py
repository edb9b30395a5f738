# SPDX-License-Identifier: GPL-3.0-or-later
"""Conversations of Qwen Code: what it records of them, and the CLIs of this user that have one, with prompts to those.

It may use `base`, `discovery`, `doors`, `domain`, `journal` and `privacy`.  Begin with `registry` and `recording`.
"""
