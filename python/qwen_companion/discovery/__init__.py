# SPDX-License-Identifier: GPL-3.0-or-later
"""The files through which a CLI finds this Emacs.

It may use `base`.  Begin with `files`; what each generation of a CLI looks for is data, in `dialects`.
"""
