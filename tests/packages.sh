#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# What is given to others: each part is a script of tests/packages, which ends with 0, or 77 and a reason
# where it cannot work. The last line is "N passed, N failed[, N skipped]".
#
#     bash tests/packages.sh [PART...]
#
#     debian   Debian packages, built, checked by lintian, and used in a bare Debian
#     abi      may programs that were built with the last release use this library (abidiff)
#     site     the documents as a site, without a warning
set -u

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1
exec </dev/null
. tests/support/counts.sh

parts=("$@")
[ $# -gt 0 ] || parts=(debian abi site)
for name in "${parts[@]}"; do
    [ -e "tests/packages/$name.sh" ] || { echo "usage: bash tests/packages.sh [debian] [abi] [site]" >&2; exit 2; }
    begin=$SECONDS
    bash "tests/packages/$name.sh"
    case $? in
        0) word=PASS passed=$((passed + 1)) ;;
        77) word=SKIP skipped=$((skipped + 1)) ;;
        *) word=FAIL failed=$((failed + 1)) ;;
    esac
    echo "$word  $name, $((SECONDS - begin)) s"
done
finish
