# SPDX-License-Identifier: GPL-3.0-or-later
"""The CLI side: an MCP server that speaks the IDE companion interface."""
