# SPDX-License-Identifier: GPL-3.0-or-later
"""The files by which a CLI finds this Emacs."""
