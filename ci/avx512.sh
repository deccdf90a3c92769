#!/bin/sh
# The skylake and genoa kernels on any x86-64 CPU, their instructions emulated in C (ci/emulated/immintrin.h): the sweep
# must give the serial kernel's bytes. Slow, and says nothing about speed.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cases=${1:-300}

[ "$(uname -m)" = x86_64 ] || { echo "ci/avx512.sh: NOT RUN: not an x86-64 machine" >&2; exit 0; }
${CC:-cc} -dM -E - </dev/null | grep -q __clang__ &&
    { echo "ci/avx512.sh: NOT RUN: the emulation needs GCC's vectors" >&2; exit 0; }

# No instruction set is asked of the compiler, and every one is said to be there.
mkdir "$work/kernels" "$work/include"
cp ltx2c/include/ltx2c.h "$work/include"
for header in ltx2c/kernels/*.h ltx2c/kernels/kernels.def; do
    sed -e '/^#pragma GCC/d' -e 's/"+v"/"+m"/g' "$header" >"$work/kernels/$(basename "$header")"
done
${CC:-cc} -std=gnu11 -O1 -ffp-contract=off -Wall -Wextra -Werror -Wno-psabi -pthread \
    '-D__builtin_cpu_supports(what)=1' -DLTX2C_WITHOUT_HASWELL -Ici/emulated -I"$work/include" ci/sweep.c -lm \
    -o "$work/sweep"
"$work/sweep" "$cases" 2>"$work/kernels.txt" || { cat "$work/kernels.txt" >&2; exit 1; }
grep -q '^skylake: checked' "$work/kernels.txt"
grep -q '^genoa: checked' "$work/kernels.txt"
cat "$work/kernels.txt"
