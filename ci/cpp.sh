#!/usr/bin/env bash
# C and C++ against the installed package: the kernels under each compiler and standard without a warning, the pool of
# threads' bytes, the same under sanitizers, and the examples through CMake and pkg-config, beside the loop that they
# replace. A compiler that is missing is named.
set -euo pipefail
cd "$(dirname "$0")/.."
python=$(realpath -s "$(command -v "${PYTHON:-python3}")")
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
include=$("$python" -m ltx2c.config --includedir)
echo "ci/cpp.sh: $include"

# test_api NAME COMPILER FLAG...: the tests of the C++ API, built by that compiler.
test_api() {
    local name=$1 compiler=$2
    shift 2
    if ! command -v "$compiler" >/dev/null; then
        echo "ci/cpp.sh: $name: NOT RUN: no $compiler here" >&2
        return 0
    fi
    CXX=$compiler CXXFLAGS="$*" "$python" -m pytest -q -p no:cacheprovider --basetemp="$work/$name" \
        "$source/tests/kernels/test_cpp_face.py" -k "pool or nothing_written" >"$name.log" 2>&1 ||
        { cat "$name.log"; echo "ci/cpp.sh: $name failed"; return 1; }
    echo "$name: $(tail -n 1 "$name.log")"
}

c11="-std=c11 -O2 -Wall -Wextra -Werror"
test_clang_c() {
    command -v clang >/dev/null || { echo "ci/cpp.sh: clang-c11: NOT RUN: no clang here" >&2; return 0; }
    clang $c11 "-I$include" "$source/examples/cpp/ltx2c.c" "$source/tests/kernels/refusals.c" -o refusals
    ./refusals
    echo "clang-c11: built, refusals hold"
}

every=-ULTX2C_WITHOUT_SKYLAKE
most="$every -DLTX2C_WITHOUT_GENOA" # genoa is the longest to compile
jobs=()
in_turn() { # two at a time, or as many as there are cores
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do sleep 0.1; done
    "$@" &
    jobs+=($!)
}
in_turn test_api g++-17 g++ -std=c++17 $every
in_turn test_api g++-20 g++ -std=c++20 $most
in_turn test_api clang++-17 clang++ -std=c++17 $every
in_turn test_api clang++-20 clang++ -std=c++20 $most
in_turn test_api addresses "${CXX:-c++}" -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all
in_turn test_api threads "${CXX:-c++}" -O1 -g -fsanitize=thread
in_turn test_clang_c
for job in "${jobs[@]}"; do wait "$job"; done

if command -v cmake >/dev/null; then
    CFLAGS=$c11 cmake -S "$source/examples/cpp" -B build -DCMAKE_BUILD_TYPE=Release \
        -Dltx2c_DIR="$("$python" -m ltx2c.config --cmakedir)" >cmake.log
    cmake --build build --parallel >>cmake.log
    build/compare 301 33 777
    build/compare
else
    echo "ci/cpp.sh: CMake: NOT RUN: no cmake here" >&2
fi

if command -v pkg-config >/dev/null; then
    PKG_CONFIG_PATH=$("$python" -m ltx2c.config --pkgconfigdir)
    export PKG_CONFIG_PATH
    "${CXX:-c++}" -std=c++17 -fsyntax-only $(pkg-config --cflags 'ltx2c >= 0.1') -x c++ "$source/examples/cpp/dit_lora.cpp"
    echo "pkg-config: ltx2c $(pkg-config --modversion ltx2c)"
else
    echo "ci/cpp.sh: pkg-config: NOT RUN: no pkg-config here" >&2
fi
