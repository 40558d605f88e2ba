#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# docs_fresh.sh TAMIS_INFO DOCS: the generated pages equal what the program says today.
set -u

info=$1 docs=$2 stale=0
for page in errors environment options; do
    if ! "$info" --markdown $page | diff -u "$docs/$page.md" -; then
        echo "stale: make it anew with: tamis_info --markdown $page > docs/$page.md"
        stale=1
    fi
done
exit $stale
