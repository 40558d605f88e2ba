#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The tests of tamis.torch with the newest torch, mypy and the Trainers of others, of the Python
# package index; tests/run.sh has Debian's. Tests the package in build/release, which it builds. The
# last line is "N passed, N failed[, N skipped]".
#
#     bash tests/newest.sh [NAME...]     # of tests/python/test_NAME.py; default: those that use torch
#
# torch's wheels for CPUs where their index can be reached, else those with CUDA, of several GB. They
# lie in build/newest, or NEWEST=FOLDER, until their folder is removed. Without an index all is
# skipped.
set -u

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
exec </dev/null
. tests/support/packages.sh
. tests/support/counts.sh

FOR_CPUS=https://download.pytorch.org/whl/cpu
OTHERS="numpy pytest mypy transformers accelerate lightning"
python=${NEWEST:-$top/build/newest}/bin/python

need_packages cmake ninja-build gcc g++ libc6-dev pkg-config libopenmpi-dev openmpi-bin \
    libxxhash-dev python3-dev python3-venv python3-pip || exit 1

install_newest() { # folder
    [ ! -e "$1/complete" ] || return 0
    { python3 -m venv "$1" &&
        { timeout 300 "$1/bin/python" -m pip install -q --retries 0 --index-url $FOR_CPUS torch ||
          timeout 1200 "$1/bin/python" -m pip install -q torch; } &&
        timeout 600 "$1/bin/python" -m pip install -q $OTHERS &&
        touch "$1/complete"; } >/dev/null 2>&1
}

if ! install_newest "${python%/bin/python}"; then
    echo "no package index: the newest torch is not tested"
    skipped=1
    finish
fi
"$python" -c 'import torch; print("torch", torch.__version__)'

log=$(mktemp -d) || exit 1
trap 'rm -rf "$log"' EXIT
if ! { cmake --preset release -DTAMIS_PYTHON=ON && cmake --build --preset release --target python/all
     } >"$log/build" 2>&1; then
    cat "$log/build"
    failed=1
    finish
fi

names=("$@")
if [ $# -eq 0 ]; then
    names=(core_torch examples types $(cd tests/python && ls test_torch_*.py |
        sed 's/^test_//; s/[.]py$//'))
fi

export PYTHONPATH=$top/build/release/python PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export OPENBLAS_NUM_THREADS=1 TAMIS_TEST_FRAMEWORKS=$python log python
printf '%s\n' "${names[@]}" | xargs -P "$((2 * $(nproc)))" -I NAME bash -c '
    timeout 1200 bash tests/python/pytest.sh "$python" "tests/python/test_NAME.py" >"$log/NAME" 2>&1
    echo $? >"$log/NAME.status"'

for name in "${names[@]}"; do
    case $(cat "$log/$name.status") in
        0) passed=$((passed + 1)) ;;
        77) skipped=$((skipped + 1)); echo "$name: $(tail -n 1 "$log/$name")" ;;
        *) failed=$((failed + 1)); echo "== $name failed"; tail -n 60 "$log/$name" ;;
    esac
done
finish
