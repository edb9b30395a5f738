# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python half of qwen-companion: EPC towards Emacs, MCP towards the Qwen Code CLI."""

__version__ = "0.1.0"
