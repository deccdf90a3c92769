#!/bin/sh
# ltx2c.peft beside the real PEFT, in an environment of its own over this one's packages (its torch stays).
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
"$python" -c "import sys; print(*(path for path in sys.path if path.endswith('site-packages')), sep='\n')" >"$work/packages.pth"
cp "$work/packages.pth" "$("$work/venv/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")"
# Without a torch that pip can see, it would bring one with gigabytes of GPU libraries.
"$work/venv/bin/python" -c "import torch" 2>/dev/null || { echo "ci/peft.sh: NOT RUN: no torch here" >&2; exit 0; }
"$work/venv/bin/pip" install --quiet peft==0.21.2 >"$work/pip.log" 2>&1 || {
    tail -n 3 "$work/pip.log" >&2
    echo "ci/peft.sh: NOT RUN: PEFT 0.21.2 does not install here" >&2
    exit 0
}
export PYTHONPATH=$("$python" -c "import pathlib, ltx2c; print(pathlib.Path(ltx2c.__file__).parents[1])")
"$work/venv/bin/python" -m pytest -q -p no:cacheprovider tests/test_peft.py
[ -z "${1:-}" ] || "$work/venv/bin/python" ci/peft_merge.py "$1"
