#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Do the two commands of the README work on a new machine? Each runs in a Debian 12 of its own that
# has the base system and git, and nothing that the other has installed (tests/support/root.sh). A
# program that is built only where tests have run before is found here. The last line is
# "N passed, N failed[, N skipped]".
#
#     bash tests/fresh.sh [demo] [quick]
#     bash tests/fresh.sh --passed      whether both have passed with what such a machine needs as it is now
#
# What it needs is the list `needed` below; its hash stands in tests/fresh.passed, which a run of both
# commands writes when they pass, to be committed.
#
# Python's package index is out of reach in there: without CUDA, and so without the gigabytes of its
# compiler. What is tested is the working tree.
#
# Needs root and Debian's package mirror; where there is neither, everything is skipped, with the
# reason. Logs are in build/fresh, or FRESH=FOLDER.
set -u

LIMIT_S=3600 # of one command; others may keep the machine busy

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
exec </dev/null
. tests/support/packages.sh
. tests/support/root.sh
. tests/support/counts.sh

folder=${FRESH:-$top/build/fresh}
mkdir -p "$folder" || exit 1

needed=(CMakeLists.txt CMakePresets.json cmake bench/demo.sh bench/build.sh bench/CMakeLists.txt
    tests/run.sh tests/fresh.sh tests/support/packages.sh tests/support/root.sh tests/CMakeLists.txt
    python/CMakeLists.txt collectives/CMakeLists.txt kernels/CMakeLists.txt lib/CMakeLists.txt)
hash_needed() {
    git ls-files -z -- "${needed[@]}" | xargs -0 sha256sum | sha256sum | cut -d ' ' -f 1
}
if [ "${1:-}" = --passed ]; then
    [ "$(hash_needed)" = "$(cat tests/fresh.passed 2>/dev/null)" ]
    exit
fi

commands=("$@")
[ $# -gt 0 ] || commands=(demo quick)
for name in "${commands[@]}"; do
    case $name in
        demo | quick) ;;
        *) echo "usage: bash tests/fresh.sh [demo] [quick]" >&2; exit 2 ;;
    esac
done

# As somebody who has cloned the project into a home that nobody else may read.
copy_tree() {
    local home=$root$HOME_IN
    git clone -q "$top" "$home/tamis" 2>/dev/null || mkdir -p "$home/tamis"
    git ls-files -z --cached --others --exclude-standard |
        tar --null --ignore-failed-read -T - -cf - 2>/dev/null | tar -C "$home/tamis" -xf -
}

# All that a failed test printed, then how the command ended.
tell_why() { # log
    awk '/^ *(Start +[0-9]+:|[0-9]+\/[0-9]+ Test)/ { on = /\*\*\*/ } on' "$1" | tail -n 100
    tail -n 40 "$1"
}

# fresh NAME WHAT_IT_LEAVES COMMAND...: the command in a copy of the base; passes if it ends with 0 and
# leaves that file, where one is named.
fresh() {
    local name=$1 leaves=$2 log=$folder/$1.log begin=$SECONDS status
    shift 2
    root_copy "$name" && copy_tree || exit 1
    echo "$name: $* ($log)"
    in_root $LIMIT_S "$log" env -C tamis "$@"
    status=$?
    if [ $status -eq 0 ] && [ -n "$leaves" ] && [ ! -s "$root$HOME_IN/tamis/$leaves" ]; then
        echo "It left no $leaves." >>"$log"
        status=1
    fi
    if [ $status -eq 0 ]; then
        tail -n 1 "$log" | sed 's/^/    /'
        echo "PASS  $name, $((SECONDS - begin)) s"
        passed=$((passed + 1))
    else
        tell_why "$log" | sed 's/^/    /'
        echo "FAIL  $name, status $status, $((SECONDS - begin)) s"
        failed=$((failed + 1))
    fi
    root_remove
}

if ! root_base "$folder"; then
    echo "skipped: $root_missing"
    skipped=${#commands[@]}
    finish
fi

for name in "${commands[@]}"; do
    case $name in
        demo) fresh demo build/demo/demo.jsonl env EPOCHS=1 SEEDS=1 bash bench/demo.sh ;;
        quick) fresh quick "" bash tests/run.sh ;;
    esac
done
[ $# -gt 0 ] || [ $failed -gt 0 ] || hash_needed >tests/fresh.passed
finish
