#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# columns.sh TREE: no line is wider than its kind of file may be. Both tracked and new files; where there
# is no git, all files outside of build folders.
set -u

declare -A most=([markdown]=100 [c]=100 [shell]=120)
kinds="markdown c shell"
exempt=(               # until they are rewritten
    bench/CMakeLists.txt tests/bench/replay.sh
)

cd "$1" || exit 1

files() { # kind
    case $1 in
        markdown) set -- '*.md' ;;
        c) set -- '*.[ch]' '*.[ch]pp' '*.cu' '*.cuh' ;;
        shell) set -- '*.sh' 'CMakeLists.txt' '*/CMakeLists.txt' '*.cmake' ;;
    esac
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files --cached --others --exclude-standard -- "$@"
    else
        local names=()
        for pattern; do names+=(-o -name "${pattern##*/}"); done
        find . -path ./build -prune -o \( "${names[@]:1}" \) -type f -print | sed 's|^\./||'
    fi | sort -u | grep -vxF "$(printf '%s\n' "${exempt[@]}")"
}

# Table rows and lines that are one URL cannot be wrapped.
unwrappable() { # kind
    if [ "$1" = markdown ]; then
        grep -vE '^[^:]*:[0-9]+:[ \t]*(\||[-*]? *<?https?://[^ ]*$)'
    else
        cat
    fi
}

bad=0
for kind in $kinds; do
    # -s: a file that is removed, but not yet from the index.
    wide=$(files "$kind" | LC_ALL=C.UTF-8 xargs -r -d '\n' grep -sHnE "^.{$((most[$kind] + 1)),}" |
        unwrappable "$kind")
    [ -n "$wide" ] || continue
    printf '%s\n  ^ more than %d columns\n' "$wide" "${most[$kind]}"
    bad=1
done
exit $bad
