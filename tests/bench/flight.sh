#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: release
#
# flight.sh INFO: what tamis_info --flight says of files that ranks left: who is behind, missing, waited
# for, or in another collective; of damaged files and of those that do not belong together.
set -euo pipefail

info=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"

header_of() { # rank, ranks
    printf '{"record":"flight","version":100,"communicator":0,"rank":%d,"ranks":%d,"transport":"mpi",' "$1" "$2"
    echo '"plan":"4","clock_ns":9000000000,"unix_ns":1700000009000000000,"events":9}'
}
event() { # kind, collective, call, bytes, step
    printf '{"record":"event","at_ns":%d,"event":"%s","step":%d,' $((1000000000 + $2 * 1000)) "$1" "$5"
    printf '"collective":%d,"call":"%s","bucket":0,"bytes":%d,"status":"TAMIS_OK"}\n' "$2" "$3" "$4"
}
rank() { # rank, collectives that ended, one more that began or 0
    header_of "$1" 3
    for ((c = 1; c <= $2; c++)); do
        event begin $c sum 400 $((c / 2))
        event end $c sum 400 $((c / 2))
    done
    [ "$3" = 0 ] || event begin $(($2 + 1)) sum 400 $((($2 + 1) / 2))
}
ranks() { # arguments of rank, but the first, of three
    rm -f "$dir"/*.jsonl
    for r in 0 1 2; do
        local own=$((r + 1))
        # shellcheck disable=SC2086
        rank $r ${!own} >"$dir/flight-0-$r-1.jsonl"
    done
}
says() { # what
    expect 0 "^=> $1" "$info" --flight "$dir"
}

ranks "4 0" "4 0" "4 0"
says "all ranks have ended collective 4, sum of 400 bytes in step 2, bucket 0: they are outside"
ranks "4 1" "4 0" "4 1"
says "rank(s) 1 are behind: the others have begun collective 5, sum of 400 bytes in step 2"
ranks "4 1" "4 1" "4 1"
says "all are in collective 5"
rm "$dir/flight-0-2-1.jsonl"
says "rank(s) 2 left no file: dead, or not given the folder; all are in collective 5"
echo '{"record":"event","at_ns":8000000000,"event":"late","step":2,"collective":5,"waits_for":2,"waited_ns":3}' \
    >>"$dir/flight-0-0-1.jsonl"
says "rank(s) 2 left no file: dead, or not given the folder; 1 rank(s) waited for rank 2 in collective 5"

ranks "4 0" "3 0" "4 0"
event begin 4 all-gather 28 1 >>"$dir/flight-0-1-1.jsonl"
says "collective 4 differs: rank 0 makes sum of 400 bytes in step 2, bucket 0, rank 1 all-gather of 28 bytes in step 1"

# Rings that have moved on share their later part alone.
ranks "4 0" "4 0" "4 0"
sed -i 2,5d "$dir/flight-0-1-1.jsonl"
says "all ranks have ended collective 4"

cp "$dir/flight-0-1-1.jsonl" "$dir/flight-0-1-77.jsonl"
says "flight-0-1-1.jsonl and flight-0-1-77.jsonl do not belong together"
rm "$dir/flight-0-1-77.jsonl"

# Some have the end of the last collective, and others never will.
ranks "4 1" "5 0" "5 0"
says "rank(s) 0 are in collective 5, sum of 400 bytes in step 2, bucket 0, which the others have ended"

# A rank that was late once, in a collective that ended well, is not what the others wait for.
late() { # collective, rank
    printf '{"record":"event","at_ns":8000000000,"event":"late","collective":%d,"waits_for":%d}\n' "$1" "$2"
}
ranks "4 0" "4 0" "4 0"
rank 0 3 1 >"$dir/flight-0-0-1.jsonl"
late 4 1 >>"$dir/flight-0-0-1.jsonl"
event end 4 sum 400 2 >>"$dir/flight-0-0-1.jsonl"
says "all ranks have ended collective 4"

# Damaged files: what they say is not relied on, and their ranks are not dead.
ranks "4 1" "4 0" "4 1"
damaged="the file(s) of rank(s) 0 are damaged; rank(s) 1 are behind: the others have begun collective 5"
echo 'not json' >>"$dir/flight-0-0-1.jsonl"
expect 0 "flight-0-0-1.jsonl, line 11 is no record of kind event, and is ignored" "$info" --flight "$dir"
says "$damaged"
for bytes in 400 700 1200; do
    whole=$(rank 0 4 1)
    printf %s "${whole:0:bytes}" >"$dir/flight-0-0-1.jsonl"
    says "$damaged"
done
rank 0 4 1 | sed 's/"collective":3,/"collective":7,/' >"$dir/flight-0-0-1.jsonl"
says "$damaged"
rank 0 4 1 | tr '\n' '\0' | sed 's/\x0/\n/' >"$dir/flight-0-0-1.jsonl" # lines that end with a zero byte
says "$damaged"
rank 0 4 1 | sed '1 s/"rank":0/"rank":8/' >"$dir/flight-0-0-1.jsonl"
expect 0 "flight-0-0-1.jsonl is ignored: its header says rank 8 of 3 ranks" "$info" --flight "$dir"
: >"$dir/flight-0-0-1.jsonl"
expect 0 "flight-0-0-1.jsonl is empty, and is ignored" "$info" --flight "$dir"
echo 'not json' >"$dir/flight-0-1-1.jsonl"
says "rank(s) 0 1 left no file"
ranks "4 1" "4 1" "4 1"
for r in 0 1 2; do echo 'not json' >>"$dir/flight-0-$r-1.jsonl"; done
says "the file(s) of rank(s) 0 1 2 are damaged; nothing is known"
long=$(printf 'x%.0s' {1..3000})
for r in 0 1 2; do { header_of $r 3; event begin 1 "$long" 4 1; } >"$dir/flight-0-$r-1.jsonl"; done
says "all are in collective 1, x* of 4 bytes in step 1"

# If there are very many ranks, not all are named, and it is said how many are not.
rm "$dir"/*.jsonl
for r in 0 1; do { header_of $r 3000000000; event begin 1 sum 4 1; } >"$dir/flight-0-$r-1.jsonl"; done
says "rank(s) 2 3 4 [0-9 ]* and 29999998[0-9]* more left no file"
rm "$dir"/*.jsonl
for r in {0..199}; do { header_of $r 200; [ $r -gt 2 ] || event begin 1 sum 4 1; } >"$dir/flight-0-$r-1.jsonl"; done
says "rank(s) 3 4 5 [0-9 ]* and [0-9]* more are behind"
rm "$dir"/*.jsonl
expect 1 "no flight-\*.jsonl in $dir can be read" "$info" --flight "$dir"
expect 1 "cannot read the folder $dir/none" "$info" --flight "$dir/none"
expect 2 "there is nothing to show without --flight" "$info" --trace "$dir/trace"
ranks "4 0" "4 0" "4 0"
expect 1 "cannot write $dir/none/trace" "$info" --flight "$dir" --trace "$dir/none/trace"
expect 0 "" "$info" --flight "$dir" --trace "$dir/trace" # viewers keep process and thread 0
grep -q '"pid":1,"tid":3,"args":{"name":"rank 2"}' "$dir/trace" || fail "rank 2 has no name: $(cat "$dir/trace")"
! grep -qE '"(pid|tid)":0[,}]' "$dir/trace" || fail "a process or thread is 0"
echo "flight: ok"
