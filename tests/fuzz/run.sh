#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# run.sh FUZZER REPLAY SECONDS: searches for inputs that break the index decoders, beginning with the
# good ones that REPLAY writes. Fails if it finds one, or if the fuzzer finds no paths beyond those.
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/corpus"
"$2" "$folder/corpus" || exit 1
cd "$folder" || exit 1 # the fuzzer writes failing inputs here
if ! "$1" -max_total_time="$3" -timeout=10 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    corpus >log 2>&1; then
    tail -40 log
    for found in crash-* timeout-* oom-*; do
        [ -f "$found" ] && base64 "$found"
    done
    exit 1
fi
grep -E 'INITED|DONE|number_of_executed_units' log
