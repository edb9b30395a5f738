# SPDX-License-Identifier: GPL-3.0-or-later
"""The Emacs side: the EPC connection and what goes over it.

It may use `journal`, `doors`, `texts`, `transcripts` and the modules at the top.  Begin with `messages`, all that is
said; `bridge` is the connection.
"""
