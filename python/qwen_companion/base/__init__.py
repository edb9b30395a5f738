# SPDX-License-Identifier: GPL-3.0-or-later
"""What all packages use: errors, tasks and threads, processes and sockets, and names that may be anything."""
