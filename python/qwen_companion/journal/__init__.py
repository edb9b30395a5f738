# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal: the files before an agent worked, and the changes of each of its turns, with the tools that made them.

It may use `doors`, `files`, `privacy`, `texts` and the modules at the top.  Begin with `journal`, which creates the
parts that receive the events of agents: `roots`, `agents`, `hook_reports`, `turns`, `attribution`, `disk_watch` and
`telling`.  Each `root` has a `record`, which writes to the `store`.  `answers` reads it, and for the author of each
line `origins`.  The `site` of a root is the machine where it lies, by default this one.  The record finds changed files
by the `baselines` of the site, with the listing and the table of `files`.
"""
