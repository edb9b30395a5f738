# A locale without UTF-8
# SPDX-License-Identifier: GPL-3.0-or-later

export LANG=C LC_ALL=C
