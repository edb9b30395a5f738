# SPDX-License-Identifier: GPL-3.0-or-later
"""Each Qwen Code of this user on this machine: the records of those that run, and prompts to any of them.

It may use `emacs`, `discovery`, `doors`, `journal`, `transcripts` and the modules at the top.  Begin with `front`.
"""
