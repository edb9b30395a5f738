# SPDX-License-Identifier: GPL-3.0-or-later
"""The Emacs side: the EPC connection and what goes over it."""
