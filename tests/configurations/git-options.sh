# Unusual options of git
# SPDX-License-Identifier: GPL-3.0-or-later

cat >"$HOME/.gitconfig" <<END
[diff]
	noprefix = true
	external = false
	mnemonicPrefix = true
[color]
	ui = always
[core]
	autocrlf = true
	quotePath = false
	pager = cat
[status]
	showUntrackedFiles = no
	short = true
[commit]
	gpgSign = true
[safe]
	bareRepository = explicit
END
