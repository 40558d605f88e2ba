#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# columns.sh refuses wide lines and nothing else: each planted line gets a file of its own, in a tree
# where every file must be named and in one where none may be.
set -u
export LC_ALL=C.UTF-8

columns=$(dirname "${BASH_SOURCE[0]}")/columns.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bad=0 planted=0
plant() { # 1: must be refused, 0: may not be; file, where % becomes a number; begin of the line; columns
    local file=$work/$1/${2/\%/$((++planted))} rest
    mkdir -p "$(dirname "$file")"
    printf -v rest '%*s' $(($4 - ${#3})) ''
    printf '%s%s\n' "$3" "${rest// /x}" >"$file"
}

plant 1 %.md 'text' 101
plant 0 %.md 'text' 100
plant 0 %.md 'ä' 100
plant 0 %.md '|a|' 300
plant 0 %.md '<https://example.org/' 300
plant 0 %.md '- https://example.org/' 300
plant 1 %.sh '#' 121
plant 0 %.sh '#' 120
plant 1 %.cmake '#' 121
plant 1 %/CMakeLists.txt '#' 121
plant 0 build/%.md 'text' 300

said=$(bash "$columns" "$work/1")
[ $? = 1 ] || { echo "wide lines are accepted" && bad=1; }
while read -r file; do
    grep -qF "${file#"$work/1/"}:1:" <<<"$said" || { echo "accepted: $file" && bad=1; }
done < <(find "$work/1" -type f)
bash "$columns" "$work/0" || { echo "^ refused, but good" && bad=1; }
exit $bad
