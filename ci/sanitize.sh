#!/bin/sh
# The C kernels' sweep under AddressSanitizer and UndefinedBehaviorSanitizer, then under ThreadSanitizer.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sweep() {
    echo "ci/sanitize.sh: $1"
    ${CC:-cc} -std=gnu11 -O1 -g -ffp-contract=off -fno-omit-frame-pointer -fsanitize="$1" -fno-sanitize-recover=all \
        -pthread -Iltx2c/include ci/sweep.c -o "$work/sweep"
    "$work/sweep" "$2"
}

sweep address,undefined 300
# Spinning threads are slow under this one.
sweep thread 60
