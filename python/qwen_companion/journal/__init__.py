# SPDX-License-Identifier: GPL-3.0-or-later
"""The journal: what was there before an agent worked, what each of its turns changed, and by which tool."""
