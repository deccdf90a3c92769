#!/bin/sh
# The kernels built by Clang with its own OpenMP: other pragmas, another scheduler, the same bytes.
# Installs both where CI is set and it may; says so and stops where it may not.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if ! command -v clang >/dev/null && [ -n "${CI:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update && apt-get install -y --no-install-recommends clang libomp-dev; } >"$work/apt.log" 2>&1 ||
        tail -n 3 "$work/apt.log" >&2
fi
command -v clang >/dev/null || { echo "ci/clang.sh: NOT RUN: no clang here" >&2; exit 0; }

git archive HEAD | tar -x -C "$work"
cd "$work"
CC=clang LDSHARED="clang -shared" "$python" setup.py -q build_ext --inplace >build.log 2>&1 || { cat build.log; exit 1; }
if grep "this compiler" build.log; then exit 1; fi
clang --version | head -n 1
PYTHONPATH=. "$python" -c "from ltx2c import kernels; print(*kernels.available())"
# Clang's OpenMP ends the process where it gets fewer threads than it had just been shown to get.
echo "ci/clang.sh: NOT TESTED: tests/kernels/test_thread_shortage.py, which is GCC's OpenMP"
PYTHONPATH=. "$python" -m pytest -q -p no:cacheprovider --ignore tests/kernels/test_thread_shortage.py tests/kernels \
    tests/test_fusion.py
