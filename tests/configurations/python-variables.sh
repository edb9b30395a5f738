# Variables of Python
# SPDX-License-Identifier: GPL-3.0-or-later

mkdir "$HOME/python"
echo 'raise SystemExit("not this one")' | tee "$HOME/python/anyio.py" >"$HOME/python/sitecustomize.py"
export PYTHONPATH="$HOME/python" PYTHONWARNINGS=error PYTHONSTARTUP=/nowhere PYTHONUTF8=0 VIRTUAL_ENV=/nowhere
