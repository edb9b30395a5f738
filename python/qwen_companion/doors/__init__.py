# SPDX-License-Identifier: GPL-3.0-or-later
"""Channels to a CLI beside the IDE protocol: a settings layer, and the hooks that it names.

It may use `ide`, `privacy` and the modules at the top.  Begin with `layers`, and with `hook_handler`, which answers.
"""
