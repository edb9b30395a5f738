# Emacs as the editor of a commit, with the variables of git
# SPDX-License-Identifier: GPL-3.0-or-later

export GIT_DIR="$PWD/.git" GIT_INDEX_FILE="$PWD/.git/index" GIT_PREFIX="" GIT_EDITOR=: GIT_PAGER=cat
