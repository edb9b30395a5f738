# SPDX-License-Identifier: GPL-3.0-or-later
"""The files below a root: which there are, and which have changed.

It may use `privacy` and `base`.  Begin with `listing`, which lists the files with git, and `table`,
which compares them with their `stamps` at the last scan.  `versions` reads files, `repository` the user's repository.
"""
