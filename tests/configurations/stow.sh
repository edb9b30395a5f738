# ~/.qwen is a link, as stow makes it
# SPDX-License-Identifier: GPL-3.0-or-later

mkdir -m 700 "$HOME/dotfiles"
mv "$HOME/.qwen" "$HOME/dotfiles/qwen"
ln -s dotfiles/qwen "$HOME/.qwen"
