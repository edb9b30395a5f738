# No directories of the XDG
# SPDX-License-Identifier: GPL-3.0-or-later

unset XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_RUNTIME_DIR
mkdir -p "$HOME/.local/state/qwen-companion"
