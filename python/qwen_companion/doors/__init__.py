# SPDX-License-Identifier: GPL-3.0-or-later
"""What a CLI can be told and asked beside the IDE protocol: a settings layer, and the hooks that it names."""
