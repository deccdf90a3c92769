#!/bin/sh
# Quantised weights from and for other people's writers, which need no more than the torch that is there.
set -eu
cd "$(dirname "$0")/.."
ci/with_packages.sh "--no-deps torchao==0.18.0 comfy-kitchen==0.2.40" \
    python -m pytest -q -p no:cacheprovider "$PWD/tests/layouts/test_writers.py"
ci/with_packages.sh compressed-tensors==0.20.1 \
    python -m pytest -q -p no:cacheprovider "$PWD/tests/layouts/test_writers.py" -k compressed_tensors
