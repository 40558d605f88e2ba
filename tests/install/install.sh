#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# install.sh SOURCES BUILD CC CXX EXAMPLES: installs BUILD, moves the tree, and builds and runs programs
# outside the project against it, by find_package and by pkg-config. Exit 77: no C++ compiler.
set -eu

sources=$1 build=$2 cc=$3 cxx=$4 examples=$5
if [ ! -x "$cxx" ]; then
    echo "no C++ compiler was found"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"

echo "== find_package"
cmake -S "$sources" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
    -DCMAKE_C_COMPILER="$cc" -DCMAKE_CXX_COMPILER="$cxx" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
cmake --build "$work/build" >"$work/log" 2>&1 || {
    cat "$work/log"
    exit 1
}
"$work/build/consumer"
"$work/build/consumer_cpp"
[ ! -e "$work/build/consumer_nccl" ] || "$work/build/consumer_nccl"

echo "== pkg-config"
pc=$(find "$work/prefix" -name tamis.pc)
libdir=$(dirname "$(dirname "$pc")")
static=
[ -e "$libdir/libtamis.so" ] || static=--static
export PKG_CONFIG_PATH=${pc%/tamis.pc}${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}
"$cc" -std=c11 -Wall -Werror "$sources/consumer.c" -o "$work/consumer_pc" \
    $(pkg-config $static --cflags --libs tamis)
LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$work/consumer_pc"

if [ -x "$work/prefix/bin/tamis_energy" ] && command -v python3 >/dev/null; then
    echo "== tamis-energy-convert, tamis-carbon-convert"
    "$work/prefix/bin/tamis-energy-convert" --help >/dev/null
    "$work/prefix/bin/tamis-carbon-convert" --help >/dev/null
    for name in auto_bench wait_bench overlap replay schemes; do # experiments, of the build folder
        [ ! -e "$work/prefix/bin/tamis_$name" ]
    done
fi

if [ -d "$work/prefix/share/man" ]; then
    echo "== man: a page for each program, with each of its options"
    for program in "$work"/prefix/bin/*; do
        page=$work/prefix/share/man/man1/$(basename "$program").1
        sed 's/\\-/-/g; s/\\fB//g; s/\\fR//g' "$page" >"$work/page"
        for option in $("$program" --help | grep -oE -- '^ +(-[a-z], )?--[a-z-]+' | grep -oE -- '--.*'); do
            grep -qe "$option" "$work/page" || { echo "$page has no $option"; exit 1; }
        done
    done
fi

if [ -n "$(find "$work/prefix" -name mpi.h)" ] && command -v mpicc >/dev/null; then
    echo "== the C examples, by the lines that they give"
    cp "$examples"/*.[ch] "$work"
    cd "$work"
    for example in "$examples"/*.c; do
        line=$(sed -n 's/^ \* *\(mpicc .*\)/\1/p' "$example")
        [ -n "$line" ] || { echo "no line with mpicc in $example" && exit 1; }
        grep -qF "$line" "$examples/README.md" || { echo "README.md has no: $line" && exit 1; }
        eval "${line/--cflags/$static --cflags}"
    done
fi
