#!/bin/sh
# ltx2c.peft beside the real PEFT; with a number, also its speed and memory in so many rounds.
set -eu
with="$(dirname "$0")/with_packages.sh"
"$with" "peft==0.21.2" python -m pytest -q -p no:cacheprovider tests/test_peft.py
[ -z "${1:-}" ] || "$with" "peft==0.21.2" python ci/peft_merge.py "$1"
