#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: release
#
# local_ranks.sh TRAIN PYTHON: ranks that are threads share a meter, whose log has the steps of the job and
# the bytes of all; the timeline names neither process nor thread 0, which viewers keep for themselves.
set -euo pipefail

train=$1 python=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
. "$(dirname "${BASH_SOURCE[0]}")/train_runs.sh"

ranks=3
run "$dir/record" "${mlp[@]}" --steps 30 --scheme topk --energy-log "$dir/log" --trace "$dir/trace"
"$python" - "$dir" <<'END_OF_CHECK' || fail "see above"
import json, sys

lines = [json.loads(line) for line in open(f"{sys.argv[1]}/log")]
record = json.loads(open(f"{sys.argv[1]}/record").read().splitlines()[-1])
windows, summary = [line for line in lines if line["type"] == "window"], lines[-1]
sent = 30 * 3 * record["wire_bytes_per_step"]  # if all sent as many as rank 0
print("steps", summary["steps"], "bytes", summary["comm"]["bytes_wire"], "of", sent)
assert summary["steps"] == 30 == windows[-1]["step1"], summary
assert abs(summary["comm"]["bytes_wire"] / sent - 1) < 0.05, (summary["comm"], sent)

events = json.load(open(f"{sys.argv[1]}/trace"))
assert {event["pid"] for event in events} == {1, 2, 3}, {event["pid"] for event in events}
assert {event["tid"] for event in events if "tid" in event} == {1, 2}
names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
assert names == {1: "rank 0", 2: "rank 1", 3: "rank 2"}, names
END_OF_CHECK
echo "local_ranks: ok"
