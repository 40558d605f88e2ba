#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: release
#
# auto.sh AUTO_BENCH: over a given link a small bucket is dense and a large one union, in the table and in
# the records; a case ends when its time is over; what is no link is refused.
set -euo pipefail

choice=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"

# A message takes as long as 12,500 bytes of it.
link=(--latency 100 --gbit 1)
expect 0 "of 2 cases" "$choice" --ranks 2 -n 100,1e6 -d 0.001 -r 5 -s 0.2 "${link[@]}" --json "$dir/json"
[ "$(grep -c '"record": *"auto"' "$dir/json")" = 2 ] || fail "not a record for each case"
grep '"elements": *100,' "$dir/json" | grep -q '"exchange": *"dense"' || fail "100 elements are not dense"
grep '"elements": *1000000,' "$dir/json" | grep -q '"exchange": *"union"' || fail "10^6 are not union"
grep -q '"predicted_us": *0\.0' "$dir/json" && fail "nothing was predicted"

# As many rounds as are asked for would take minutes.
SECONDS=0
expect 0 "of 1 cases" "$choice" --ranks 2 -n 1e5 -d 1 -r 4096 -s 0.2 "${link[@]}"
[ "$SECONDS" -lt 30 ] || fail "a case of 0.2 s took $SECONDS s"

# Measured, without a link.
expect 0 "of 1 cases" "$choice" --ranks 2 -n 1000 -d 0.1 -r 5 -s 0.1
expect 2 "gbit" "$choice" --ranks 2 --gbit -1
