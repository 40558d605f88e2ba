#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# within.sh configure|build TREE CC CXX: a project that includes the tree of libtamis gets its library and
# nothing else. `build` also builds it, as an archive, and installs that where it was asked to: for a
# program in C by pkg-config --static, and for a project without C. Exit 77: no C++ compiler.
set -eu

how=$1 tree=$2 cc=$3 cxx=$4
here=$tree/tests/install
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

quietly() {
    "$@" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
}
configure() { # folder, option...
    quietly cmake -S "$here/within" -B "$work/$1" -DTREE="$tree" -DCMAKE_C_COMPILER="$cc" "${@:2}"
}

if [ "$how" = configure ]; then
    echo "== FetchContent"
    configure fetched -DFETCH=ON -DTAMIS_MPI=OFF -DTAMIS_CUDA=OFF
    grep -q "add_test" "$work/fetched/_deps/tamis-build/CTestTestfile.cmake" 2>/dev/null && exit 1
    echo "== nothing is installed unasked"
    grep -rl 'file(INSTALL' --include=cmake_install.cmake "$work/fetched" >"$work/installs"
    [ "$(cat "$work/installs")" = "$work/fetched/cmake_install.cmake" ] || { cat "$work/installs"; exit 1; }
    exit 0
fi

[ -x "$cxx" ] || { echo "skipped: no C++ compiler was found"; exit 77; }
echo "== add_subdirectory"
configure added -DTAMIS_INSTALL=ON -DTAMIS_CUDA=OFF
quietly cmake --build "$work/added" --parallel 2
"$work/added/consumer"
quietly cmake --install "$work/added" --prefix "$work/prefix"

echo "== pkg-config --static"
pc=$(find "$work/prefix" -name tamis.pc)
export PKG_CONFIG_PATH=${pc%/tamis.pc}${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
"$cc" -std=c11 -Wall -Werror "$here/consumer.c" -o "$work/static" $(pkg-config --static --cflags --libs tamis)
! ldd "$work/static" | grep libtamis
"$work/static"

echo "== a project without C"
quietly cmake -S "$here/linked" -B "$work/linked" -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DCMAKE_CXX_COMPILER="$cxx"
quietly cmake --build "$work/linked"
"$work/linked/linked"
