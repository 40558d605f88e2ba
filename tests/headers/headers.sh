#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# headers.sh INCLUDE CC CXX [FLAG...]: every public header compiles alone, as C11 and as C++17.
# FLAG... say where vendors' headers are (mpi.h, cuda_runtime_api.h); a header of ours whose vendor
# is not found is left out, and named. A call whose status nobody looks at is warned of in both
# languages. Exit 77: no C++ compiler.
set -eu

include=$1 cc=$2 cxx=$3
shift 3
strict="-fsyntax-only -Wall -Wextra -Wpedantic -Werror -pedantic-errors"

# A header, and a variable for every _INIT macro of it, which both languages must take.
program() { # header
    echo "#include <tamis/$1>"
    sed -e ':join' -e '/\\$/{N;s/\\\n//;b join' -e '}' "$include/tamis/$1" |
        sed -nE 's/^#define (TAMIS_[A-Z_]+_INIT) +TAMIS_INIT\((tamis_[a-z_]+),.*/const \2 made_by_\1 = \1;/p'
}

check() { # header, flags for what it includes...
    local header=$1
    shift
    program "$header" |
        "$cc" -std=c11 $strict -Wstrict-prototypes -I"$include" "$@" -x c -
    echo "tamis/$header: C11"
    if [ -x "$cxx" ]; then
        program "$header" |
            "$cxx" -std=c++17 $strict -I"$include" "$@" -DOMPI_SKIP_MPICXX -x c++ -
        echo "tamis/$header: C++17"
    fi
}

check_with() { # header, the vendor's header that it includes, flags...
    if echo "#include <$2>" | "$cc" -fsyntax-only -w "${@:3}" -x c - 2>/dev/null; then
        check "$1" "${@:3}"
    else
        echo "tamis/$1: left out, there is no $2"
    fi
}

refuse_unchecked() { # compiler, language...
    local begin='#include <tamis/tamis.h>' use='int f(tamis_reducer *); int f(tamis_reducer *r)'
    local flags="-S -o /dev/null -Werror -I$include" # gcc warns of it only when it makes code
    if echo "$begin
        $use { tamis_reducer_wait(r); return 0; }" | "$1" $flags "${@:2}" - 2>/dev/null; then
        echo "$*: a status that nobody looks at is not warned of"
        exit 1
    fi
    echo "$begin
        $use { return (int)tamis_reducer_wait(r); }" | "$1" $flags "${@:2}" -
}

check tamis.h
refuse_unchecked "$cc" -std=c11 -x c
if [ -x "$cxx" ]; then
    refuse_unchecked "$cxx" -std=c++17 -x c++
fi
for header in callback.h elastic.h energy.h lists.h overlap.h state.h stats.h; do
    check $header
done
for header in governor.h local.h pipeline.h; do # which are experimental
    if echo "#include <tamis/$header>" | "$cc" -std=c11 -w -fsyntax-only -I"$include" -x c - 2>/dev/null; then
        echo "tamis/$header does not ask for TAMIS_EXPERIMENTAL"
        exit 1
    fi
    check $header -DTAMIS_EXPERIMENTAL
done
check tamis.h -DTAMIS_EXPERIMENTAL
check nccl.h
check_with mpi.h mpi.h "$@"
check_with cuda.h cuda_runtime_api.h "$@"
if [ ! -x "$cxx" ]; then
    echo "no C++ compiler was found: C++17 was not checked"
    exit 77
fi
