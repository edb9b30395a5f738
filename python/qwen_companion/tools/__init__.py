# SPDX-License-Identifier: GPL-3.0-or-later
"""An MCP server of tools by which a model asks Emacs, and diagnostics that are sent unasked.

It may use `wire`, `doors`, `ide`, `privacy` and the modules at the top.  Begin with `server`; `calls` asks Emacs.
"""
