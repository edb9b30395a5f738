# SPDX-License-Identifier: GPL-3.0-or-later
"""What Emacs knows, for the model: an MCP server of tools that read, and diagnostics that come by themselves."""
