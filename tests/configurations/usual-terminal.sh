# A terminal of 80 columns and 24 lines
# SPDX-License-Identifier: GPL-3.0-or-later
# Terminal: 80x24

# Its size is in the head.
