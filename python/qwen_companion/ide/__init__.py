# SPDX-License-Identifier: GPL-3.0-or-later
"""The CLI side: an MCP server that implements the IDE companion interface.

It may use `privacy` and the modules at the top.  Begin with `server`; `models` has all names of the protocol, and
`context_distributor` sends CLIs the user's context, for which `local_context` finds the files of this machine.
"""
