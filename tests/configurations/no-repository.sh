# A project without git
# SPDX-License-Identifier: GPL-3.0-or-later

rm -rf .git
touch .project
