#!/usr/bin/env bash
# What is published must work on its own: a wheel built from the source archive, installed far from the source tree,
# does the main job. PYTHON names an interpreter that has the `build` package.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

mkdir "$folder/source"
git archive HEAD | tar -x -C "$folder/source"
"$python" -m build --outdir "$folder/dist" "$folder/source" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; exit 1; }
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "$folder"/dist/*.whl
cd "$folder"
basename dist/*.whl
venv/bin/ltx2c info
venv/bin/ltx2c demo --blocks 1
