# Files that the group may write
# SPDX-License-Identifier: GPL-3.0-or-later

umask 002
