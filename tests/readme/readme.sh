#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# readme.sh README MPIRUN CC FLAGS...: the C snippets of the README, in the programs of this folder, are
# compiled and run as they stand there. Then they are misused: every mistake must be told in a
# sentence, and end with another status than 0.
#
# FLAGS: before "--" those of the compiler, after it those of the linker.
set -euo pipefail

readme=$1 mpirun=$2 cc=$3
here=$(dirname "${BASH_SOURCE[0]}")
shift 3
compile=()
while [ "$1" != -- ]; do
    compile+=("$1")
    shift
done
shift
link=("$@")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
. "$here/../bench/expect.sh"

# Snippet N, without fences, to $dir/N; which is which is known by a call.
awk -v dir="$dir" '/^```c$/ { n++; on = 1; next } /^```$/ { on = 0 } on { print > (dir "/" n) }' "$readme"
find_snippet() { # name, call that it makes
    local found
    found=$(grep -l "$2" "$dir"/[0-9]* || true)
    [ "$(wc -w <<<"$found")" = 1 ] || fail "$2 is in these snippets of the README: $found"
    mv "$found" "$dir/$1"
}
find_snippet overlap tamis_reducer_ready
find_snippet device tamis_reducer_join
find_snippet energy tamis_energy_create
find_snippet step tamis_reducer_start
[ -z "$(ls "$dir" | grep '^[0-9]')" ] || fail "a snippet that is not tested: $(head -n 3 "$dir"/[0-9]*)"

# Parts of a snippet, each where a program has it: lines of preprocessor and functions outside of main,
# meters before all else, fields of the configuration before the reducer is made.
awk -v dir="$dir" '/^#include/ || /^static / || inside { inside = !/^}/ && !/^#/; print > (dir "/step.head"); next }
    { print > (dir "/step.body") }' "$dir/step"
for name in overlap device energy; do
    grep '^check(tamis_energy_create\|^check(tamis_comm_create' "$dir/$name" >"$dir/$name.open" || true
    grep '^cfg\.' "$dir/$name" >"$dir/$name.cfg"
    grep -v '^check(tamis_energy_create\|^check(tamis_comm_create\|^cfg\.' "$dir/$name" >"$dir/$name.body"
done

build() { # program of this folder: with the snippets of $dir
    "$cc" -std=c11 -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-function "${compile[@]}" \
        -I"$dir" "$here/$1.c" -o "$dir/$1.program" "${link[@]}" || fail "$1 is not what compiles"
}
for name in step overlap energy; do
    build $name
    expect 0 "$name: ok" bash "$mpirun" 2 60 "$dir/$name.program"
done
"$cc" -std=c11 -fsyntax-only -Wall -Wextra -Werror "${compile[@]}" -I"$dir" "$here/device.c"

cp "$dir/step.body" "$dir/right"
misuse() { # what must be said, how the snippet becomes wrong: a script of sed
    local status=0
    sed "$2" "$dir/right" >"$dir/step.body"
    ! cmp -s "$dir/right" "$dir/step.body" || fail "nothing to misuse: $2"
    build step
    bash "$mpirun" 2 60 "$dir/step.program" >"$dir/out" 2>&1 || status=$?
    [ $status -gt 0 ] && [ $status -lt 124 ] || fail "status $status: $2: $(tail -n 3 "$dir/out")"
    grep -q -- "$1" "$dir/out" || fail "no \"$1\": $2: $(head -n 5 "$dir/out")"
    ! grep -q "step: ok" "$dir/out" || fail "it went on: $2"
    echo "$2: $(grep -m 1 -- "$1" "$dir/out")"
}
misuse "density is 10, not in (0, 1] or 0 (open)" '/^check(tamis_reducer_create/i cfg.density = 10;'
misuse "MPI is not initialised" '/^int level/d; /^MPI_Init_thread/d; /^MPI_Bcast/d'
misuse "without a wait" '/tamis_reducer_wait/d'
misuse "rank 1" '/^check(tamis_layout_create/i segments[0].length += 32 * (uint64_t)of_rank();'
misuse "tamis_comm_check_equal: .* 1 differ" 's/^MPI_Bcast.*/params[7] = (float)of_rank();/'
misuse "another call\|same calls" "s|i < steps|i < steps - of_rank()|" # fewer steps: it is in another call by then
echo "readme: ok"
