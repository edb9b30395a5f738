# SPDX-License-Identifier: GPL-3.0-or-later
"""An MCP server of tools by which a model asks Emacs, and diagnostics that come by themselves."""
