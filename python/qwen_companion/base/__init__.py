# SPDX-License-Identifier: GPL-3.0-or-later
"""What all packages use: errors, tasks and threads, programs and git, processes and sockets, odd names."""
