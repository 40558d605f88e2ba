#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# version.sh TREE: what must name the version beside tamis.h, the one place from which CMake and Python
# read it, names the same.
set -u
cd "$1" || exit 1

version=$(bash packaging/version.sh include/tamis/tamis.h) || { echo "tamis.h names no version"; exit 1; }
bad=0
names() { # what, text it must hold, line
    grep -qF -- "$2" <<<"$3" || { echo "$1: no \"$2\" in \"$3\""; bad=1; }
}
names CHANGELOG.md " $version " "$(grep -m 1 '^## ' CHANGELOG.md) "
names cmake/tamis.map "TAMIS_${version%%.*} {" "$(grep '^TAMIS_' cmake/tamis.map)"
names tests/install/CMakeLists.txt "tamis ${version%.*} " "$(grep 'find_package(tamis' tests/install/CMakeLists.txt)"
names debian/changelog "($version)" "$(head -n 1 debian/changelog)"
names packaging/spack/package.py "\"$version\"" "$(grep ' version(' packaging/spack/package.py)"
exit $bad
