#!/usr/bin/env bash
# Source distribution and wheel, in dist/: the wheel is built from the source distribution, and both are
# checked. Needs build, setuptools and twine where PYTHON finds them.
#     ci/dist.sh [PYTHON]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${1:-python3}
rm -rf dist
"$python" -m build --no-isolation
"$python" -m twine check --strict dist/*
