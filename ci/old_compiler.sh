#!/bin/sh
# A compiler without OpenMP and without AVX512_BF16: the build must warn, leave both out, and still be right.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/cc" <<'END'
#!/bin/sh
for argument; do
    case $argument in
    -fopenmp) echo "cc: unknown option -fopenmp" >&2; exit 1 ;;
    *probe.c) grep -q 'genoa' "$argument" && { echo "cc: unknown target avx512bf16" >&2; exit 1; } ;;
    esac
done
exec cc "$@"
END
chmod +x "$work/cc"

git archive HEAD | tar -x -C "$work"
cd "$work"
CC="$work/cc" LDSHARED="$work/cc -shared" "$python" setup.py -q build_ext --inplace >build.log 2>&1 || { cat build.log; exit 1; }
grep -o "this compiler has no OpenMP.*" build.log
grep -o "this compiler cannot build the genoa kernel.*" build.log
PYTHONPATH=. "$python" -c "from ltx2c import kernels; print(kernels.available()); assert 'genoa' not in kernels.available()"
PYTHONPATH=. "$python" -m pytest -q -p no:cacheprovider tests/kernels/test_exactness.py tests/kernels/test_processes.py
