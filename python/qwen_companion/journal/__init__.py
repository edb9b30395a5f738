# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal: what was there before an agent worked, what each of its turns changed, and by which tool.

It may use `doors`, `privacy`, `texts` and the modules at the top.  Begin with `journal`, which makes the parts that
hear of agents: `roots`, `agents`, `hook_reports`, `turns`, `attribution`, `disk_watch` and `telling`.  Each `root` has
a `record`, which writes to the `store` and is read by `answers`, and for who wrote which line by `origins`.  Its `site`
is where the root lies, by default on this machine.  There it finds what has changed by its `baselines`, which look at
files by `indexes` of git's.
"""
