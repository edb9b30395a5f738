# A home directory with a space in its name
# SPDX-License-Identifier: GPL-3.0-or-later

mv "$HOME" "$HOME of mine"
export HOME="$HOME of mine"
export XDG_CONFIG_HOME="$HOME/.config" XDG_CACHE_HOME="$HOME/.cache"
export XDG_DATA_HOME="$HOME/.local/share" XDG_STATE_HOME="$HOME/.local/state"
