# SPDX-License-Identifier: GPL-3.0-or-later
"""The Emacs side: the EPC connection and its messages.

It may use `conversations`, `journal`, `doors`, `texts` and the modules at the top.  Begin with `messages`, which
defines all messages; `bridge` is the connection.
"""
