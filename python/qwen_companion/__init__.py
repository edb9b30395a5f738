# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python half of qwen-companion: EPC towards Emacs, MCP towards the Qwen Code CLI.

Begin with `companion`, which makes the parts, connects them, and passes each call of Emacs to one of them.  The
modules at the top belong to all packages.  Imports point downward only, see `tests/python/test_layers.py`.
"""

__version__ = "0.1.0"
