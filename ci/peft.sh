#!/bin/sh
# ltx2c.peft beside the real PEFT; with a number, also its speed and memory in so many rounds.
set -eu
cd "$(dirname "$0")/.."
ci/with_packages.sh "peft==0.21.2" python -m pytest -q -p no:cacheprovider "$PWD/tests/test_peft.py"
[ -z "${1:-}" ] || ci/with_packages.sh "peft==0.21.2" python "$PWD/ci/peft_merge.py" "$1"
