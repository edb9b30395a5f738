# A temporary directory with a name of 85 characters
# SPDX-License-Identifier: GPL-3.0-or-later

while [ ${#TMPDIR} -lt 74 ]; do TMPDIR=$TMPDIR/long-names; done
while [ ${#TMPDIR} -lt 85 ]; do TMPDIR=${TMPDIR}x; done
mkdir -p "$TMPDIR"
export TMPDIR
