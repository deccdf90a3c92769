#!/bin/sh
# The sweeps of the C kernels and codecs under AddressSanitizer and UndefinedBehaviorSanitizer; the kernels', which have
# threads of their own, under ThreadSanitizer too.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sweep() {
    echo "ci/sanitize.sh: $1 $2"
    ${CC:-cc} -std=gnu11 -O1 -g -ffp-contract=off -fno-omit-frame-pointer -fsanitize="$1" -fno-sanitize-recover=all \
        -pthread -Iltx2c/include -Iltx2c/kernels "ci/$2" -o "$work/sweep" -lm
    "$work/sweep" "$3"
}

sweep address,undefined sweep.c 300
sweep address,undefined codecs.c 1000
# Spinning threads are slow under this one.
sweep thread sweep.c 60
