#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: release
#
# bytes.sh PERF PYTHON: what a rank sends in a step is what the formulas of docs/exchange.md say, to 5 %,
# from the first step on and later.
set -euo pipefail

perf=$1 python=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"

compare() { # a record
    "$python" - "$1" <<'END'
import json, sys
record = json.loads(open(sys.argv[1]).read())
sent, model = record["wire_bytes"], record["wire_bytes_model"]
print("%s: %d bytes, model %d" % (record["scheme"], sent, model))
sys.exit(abs(sent / model - 1) > 0.05)
END
}

for scheme in tamis topk cltk deft oktopk all+global+exact+balanced-pairs; do
    for warmup in 0 60; do
        rm -f "$dir/record"
        "$perf" --ranks 4 --elements 200000 --density 0.02 -n 20 -w $warmup -c 0 --scheme $scheme \
            --json "$dir/record" >"$dir/out" 2>&1 || fail "$scheme: $(tail -n 2 "$dir/out")"
        compare "$dir/record" || fail "$scheme after $warmup steps: more than 5 % off"
    done
done
