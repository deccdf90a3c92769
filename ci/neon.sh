#!/bin/sh
# The neon kernel and the codecs under qemu-user, built by a cross compiler: sweeps must give the bytes that they give here.
# Where CI is set it installs the compiler and the emulator; elsewhere it says what is missing and stops.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

have() {
    command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null
}

if ! have; then
    if [ -n "${CI:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        { apt-get update && apt-get install -y --no-install-recommends gcc-aarch64-linux-gnu libc6-dev-arm64-cross \
            qemu-user; } >"$work/apt.log" 2>&1 || tail -n 3 "$work/apt.log" >&2
    fi
    have || { echo "ci/neon.sh: NOT RUN: no aarch64-linux-gnu-gcc or no qemu-aarch64 here" >&2; exit 0; }
fi

# In the kernels nothing forbids the compiler to contract but the header itself.
flags="-std=gnu11 -O2 -Wall -Wextra -Werror -pthread -Iltx2c/include"

sweep() {
    ${CC:-cc} $flags $3 "ci/$1" -o "$work/here" -lm
    aarch64-linux-gnu-gcc $flags $3 -static "ci/$1" -o "$work/there" -lm
    "$work/here" "$2" >"$work/here.txt"
    qemu-aarch64 "$work/there" "$2" >"$work/there.txt"
    diff "$work/here.txt" "$work/there.txt"
    cat "$work/here.txt"
}

sweep sweep.c 200 ""
sweep codecs.c 1000 "-ffp-contract=off -Iltx2c/kernels"
