# SPDX-License-Identifier: GPL-3.0-or-later
"""The client of `qwen serve` (spec A1-A10).  Until a daemon is needed, only `front` and `rewinds` are imported.

It may use `conversations`, `wire`, `texts` and the modules at the top.  Begin with `dispatcher`, which carries out
the calls of Emacs; `conversation` follows one session.
"""
