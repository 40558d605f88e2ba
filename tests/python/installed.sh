#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# installed.sh BUILD PYTHON FOLDER: `cmake --install` puts the package into FOLDER below the prefix,
# from where it works when the tree has been moved.
set -eu

build=$1 python=$2 folder=$3
case $folder in
    /*) echo "skipped: TAMIS_PYTHON_DIR is absolute"; exit 77 ;;
esac
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --component python --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"
if readelf -d "$work/prefix/$folder"/tamis/*.so | grep -E '\((RPATH|RUNPATH)\)' | grep -F "$build"; then
    echo "^ leads into the build tree"
    exit 1
fi
PYTHONPATH=$work/prefix/$folder "$python" -c '
import sys, tamis
assert tamis.__file__.startswith(sys.argv[1]), tamis.__file__
comm, = tamis.Comm.local(1)
print(tamis.__file__, tamis.__version__, comm.nranks)' "$work/prefix"
