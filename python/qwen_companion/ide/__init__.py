# SPDX-License-Identifier: GPL-3.0-or-later
"""The CLI side: an MCP server that implements the IDE companion interface.

It may use `privacy` and the modules at the top.  Begin with `server`; `models` has all names of the protocol, and
<<<<<<< HEAD
`context_distributor` tells CLIs what the user looks at, `local_context` those of this machine.
=======
`context_distributor` sends CLIs the user's context.
>>>>>>> 0c24ca44 (Reword the docstrings of emacs, ide, tools, transcripts and the top modules)
"""
