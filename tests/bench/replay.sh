#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: release
#
# replay.sh REPLAY: decisions that a log holds are repeated bit for bit, and one that is changed by
# one digit is found; windows of a meter are read as the schema says.
set -euo pipefail

replay=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"

# A run on the model makes a log; the log verifies.
"$replay" --make-trace "$dir/trace.csv" --hours 30
work=(--simulate --hours 4 --intensity "$dir/trace.csv")
for policy in "off" "budget --budget 21000 --pace-max 1 --density-min 0.002 --ramp 300" \
    "carbon-threshold --allow-cap" "carbon-proportional --allow-cap --pace-max 0.1"; do
    expect 0 "against none" "$replay" "${work[@]}" --policy $policy --json "$dir/log"
    [ "$(grep -c '"type":"decision"' "$dir/log")" -gt 200 ] || fail "$policy: too few decisions"
    verify=("$replay" --log "$dir/log" --devices 64 --policy $policy)
    expect 0 "every decision of the log is the same, bit for bit" "${verify[@]}"
done

# One of the last digits of a number (the 16th: the 17th may not matter), a reason, a setting.
line=$(grep -n '"reason":"carbon".*"cap_w":[0-9]*\.[0-9]*,"watts"' "$dir/log" | tail -n 1 | cut -d: -f1)
digit=$(sed -nE "${line}s/.*\"cap_w\":[0-9]+\.[0-9]*([0-9])[0-9],\"watts\".*/\1/p" "$dir/log")
sed -E "${line}s/(\"cap_w\":[0-9]+\.[0-9]*)[0-9]([0-9],\"watts\")/\1$(((digit + 1) % 10))\2/" \
    "$dir/log" >"$dir/digit"
cmp -s "$dir/log" "$dir/digit" && fail "nothing was changed"
expect 1 "line $line has a different decision" "${verify[@]/"$dir/log"/"$dir/digit"}"
sed "${line}s/\"reason\":\"carbon\"/\"reason\":\"hold\"/" "$dir/log" >"$dir/reason"
expect 1 "line $line has a different decision" "${verify[@]/"$dir/log"/"$dir/reason"}"
expect 1 "FAILED" "${verify[@]}" --slowdown 0.021
expect 0 "nothing to verify" "${verify[@]}" --slowdown 0.021 --what-if

# What the meter writes: core is not counted, for it lies within package; gpu 1 could not be read in
# the first window, the last line was cut off by a kill. 8 J in 2 s, then 12 J in 2 s.
cat >"$dir/windows" <<'END'
{"schema":"tamis.energy/1","type":"header","t0_unix":1718064000,"pue":1.0,"domains":[{"id":"package-0"},{"id":"core-0"},{"id":"gpu-1"}]}
{"type":"later","t":0.5}
{"type":"window","seq":0,"t0":0,"t1":2,"step0":0,"step1":10,"domains":[{"id":"package-0","counted":true,"uj":8000000},{"id":"core-0","counted":false,"uj":5000000},{"id":"gpu-1","counted":true,"uj":null}],"comm":{"density":0.01},"carbon":{"intensity_g_per_kwh":null},"later":1}
{"type":"window","seq":1,"t0":2,"t1":4,"step0":10,"step1":20,"domains":[{"id":"package-0","counted":true,"uj":8000000},{"id":"core-0","counted":false,"uj":5000000},{"id":"gpu-1","counted":true,"uj":4000000}],"comm":{"density":null}}
{"type":"window","seq":2,"t0":4,"t1":6,"step0":20,"step1":30,"domains":[{"id":"package-0","counted":true,"uj":null}]}
END
printf '{"type":"window","seq":3,"t0"' >>"$dir/windows"
expect 0 "3 windows, an incomplete last line left out" "$replay" --log "$dir/windows" --policy off
[ "$(awk '$1 ~ /^[0-9]+$/ { printf "%s ", $2 }' "$dir/out")" = "4.0 6.0 nan " ] ||
    fail "watts: $(cat "$dir/out")"
expect 0 "unknown energy" "$replay" --log "$dir/windows" --policy budget --budget 3 --pace-max 1
expect 0 "carbon" "$replay" --log "$dir/windows" --policy carbon-proportional --pace-max 1 \
    --intensity "$dir/trace.csv"
expect 0 "unknown intensity" "$replay" --log "$dir/windows" --policy carbon-proportional

# Wrong files and wrong usage.
echo 'not JSON' >"$dir/garbage"
expect 2 "neither a window nor a decision" "$replay" --log "$dir/garbage"
printf '{"type":"window","t0":0,"t1":1,"step0":5,"step1":2}\n' >"$dir/garbage"
expect 2 "step1 is less" "$replay" --log "$dir/garbage"
printf '{"type":"later"}\n' >"$dir/garbage"
expect 2 "neither a window nor a decision" "$replay" --log "$dir/garbage"
cat "$dir/log" <(sed -n 3p "$dir/windows") >"$dir/garbage"
expect 2 "give a log of one kind" "$replay" --log "$dir/garbage"
expect 2 "cannot be read" "$replay" --log "$dir/none"
expect 2 "known are: off, budget" "$replay" --simulate --policy solar
expect 2 "line 2" "$replay" --simulate --intensity <(printf 'time,g_per_kwh\nx,1\n')
expect 2 "give --log FILE or --simulate" "$replay" --policy off
echo "replay: ok"
