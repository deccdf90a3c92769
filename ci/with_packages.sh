#!/bin/sh
# ci/with_packages.sh "PIP ARGUMENTS" COMMAND...: runs COMMAND with the `python` of an environment of its own, over this
# one's packages (its torch stays), in which pip has installed what the arguments name. The command runs in a folder of
# its own, where `ltx2c` is the installed package and not the source tree. Says NOT RUN where it cannot.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
packages=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
"$python" -c "import sys; print(*(path for path in sys.path if path.endswith('site-packages')), sep='\n')" >"$work/packages.pth"
cp "$work/packages.pth" "$("$work/venv/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")"
# Without a torch that pip can see, it would bring one with gigabytes of GPU libraries.
"$work/venv/bin/python" -c "import torch" 2>/dev/null || { echo "NOT RUN: $*: no torch here" >&2; exit 0; }
# shellcheck disable=SC2086  # several arguments
"$work/venv/bin/pip" install --quiet $packages >"$work/pip.log" 2>&1 || {
    tail -n 3 "$work/pip.log" >&2
    echo "NOT RUN: $*: $packages does not install here" >&2
    exit 0
}
PYTHONPATH=$("$python" -I -c "import pathlib, ltx2c; print(pathlib.Path(ltx2c.__file__).parents[1])")
PATH=$work/venv/bin:$PATH
export PYTHONPATH PATH
cd "$work"
"$@"
