# A terminal without colours
# SPDX-License-Identifier: GPL-3.0-or-later

export TERM=vt100 NO_COLOR=1
