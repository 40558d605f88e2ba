#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: release
#
# states.sh TRAIN PYTHON: sets of states that a run writes while it goes on. Saving changes no bit of
# a run; one that goes on from a set ends with the bits of one without a stop; sets that are not
# complete or damaged are skipped; of other data they are refused; what cannot be written is said, and
# the run goes on.
set -euo pipefail

# What is mounted here is seen by nobody else: another test compares mounts.
if [ -z "${OWN_MOUNTS:-}" ] && unshare --mount true 2>/dev/null; then
    OWN_MOUNTS=1 exec unshare --mount bash "${BASH_SOURCE[0]}" "$@"
fi

train=$1 python=$2
dir=$(mktemp -d)
mounted=
trap '[ -z "$mounted" ] || umount "$mounted"; rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
. "$(dirname "${BASH_SOURCE[0]}")/train_runs.sh"

small=("$train" "${mlp[@]}" --transport local --ranks 2 --quiet)
sets() { # folder: steps of its manifests
    find "$1" -name '*.set' | sed 's/.*step0*\([0-9]*\).set/\1/' | sort -n | tr '\n' ' '
}
state_of() { # folder, step, rank
    printf '%s/step%012d.rank%d.state' "$1" "$2" "$3"
}

# -- the same bits ---------------------------------------------------------------------------------
again() { # options
    local sets="$dir/sets"
    rm -rf "$sets"
    run "$dir/once.json" "$@" --steps 12 --save "$dir/once"
    run "$dir/saving.json" "$@" --steps 12 --save "$dir/saving" --states "$dir/all" --save-every 2
    same once saving "saving changes the run: $*"
    run "$dir/part.json" "$@" --steps 12 --stop 7 --states "$sets" --load "$sets" --save-every 3
    run "$dir/then.json" "$@" --steps 12 --save "$dir/then" --states "$sets" --load "$sets"
    same once then "gone on, but elsewhere: $*"
    [ "$(tail -n 1 "$dir/then.json" | field steps)" = 5 ] || fail "not from step 7: $*"
    [ "$(tail -n 1 "$dir/then.json" | field model_hash)" = "$(tail -n 1 "$dir/once.json" | field model_hash)" ] ||
        fail "another model_hash: $*"
    rm -rf "$dir/all"
}
again "${lm[@]}" --reduce update
again "${lm[@]}" --reduce update --beta1 0 --dense-segments vectors
again "${lm[@]}" --scheme dense
again "${cnn[@]}"
again "${cnn[@]}" --reduce update --overlap on --bucket-length 1000
again "${mlp[@]}" --optimizer adamw --scheme oktopk
again "${mlp[@]}" --optimizer sgd
again "${mlp[@]}" --optimizer adamw --local-steps 3 --scheme dense
again "${mlp[@]}" --optimizer adamw --local-steps 4 --local-delay 2 --set value_codec=fp4 --outer-lr 1

# -- which set -------------------------------------------------------------------------------------
folder=$dir/folder
run "$dir/first" "${mlp[@]}" --steps 40 --stop 30 --states "$folder" --save-every 10
read -r older newer <<<"$(sets "$folder")"
[ "$newer" = 30 ] && [ "$older" -lt 30 ] || fail "sets of $(sets "$folder"), not of step 30 and one before"
[ "$(find "$folder" -type f | wc -l)" = 6 ] || fail "other files than two sets: $(ls "$folder")"
[ -z "$(find "$folder" -type f ! -perm 600)" ] || fail "others may read states"
expect 1 "has the set of step 30 of an earlier run: go on from it" "${small[@]}" --steps 40 --states "$folder"
cp -r "$folder" "$dir/kept"
renew() {
    rm -rf "$folder"
    cp -r "$dir/kept" "$folder"
}
from() { # step, what is said of the newer set
    expect 0 "rank [01]: the set of step 30 in .* is skipped: .*$2" "${small[@]}" --steps 31 --load "$folder"
    grep -c "is skipped" "$dir/out" | grep -qx 1 || fail "more than one line: $(cat "$dir/out")"
    "${small[@]}" --steps 31 --load "$folder" --json "$dir/from" 2>/dev/null
    [ "$(tail -n 1 "$dir/from" | field steps)" = $((31 - $1)) ] || fail "not from step $1: $2"
}
printf x | dd of="$(state_of "$folder" 30 1)" bs=1 seek=5000 conv=notrunc status=none
from "$older" "rank1.state is damaged"
renew
truncate -s -1 "$(state_of "$folder" 30 0)"
from "$older" "rank0.state is truncated"
renew
rm "$(state_of "$folder" 30 1)"
from "$older" "cannot read .*rank1.state: No such file"
renew
rm "$folder"/*030.set
from "$older" "it is not complete"
renew
sed -i 's/bytes 1/bytes 2/;s/hash [0-9]/hash a/' "$folder"/*030.set
from "$older" "its manifest .* is damaged"
renew
for file in "$folder"/*.state; do
    truncate -s 100 "$file"
done
expect 1 "there is no complete set of states in" "${small[@]}" --steps 31 --load "$folder"
expect 1 "there is no complete set of states in" "${small[@]}" --steps 31 --load "$folder" --states "$folder"

# After a damaged set the run writes it anew, and removes what is older than the two newest.
renew
truncate -s 100 "$(state_of "$folder" 30 0)"
expect 0 "step 30 in .* is skipped" "${small[@]}" --steps 40 --stop 35 --load "$folder" --states "$folder"
[ "$(sets "$folder")" = "$older 30 35 " ] || fail "a set was removed too early: $(sets "$folder")"
expect 0 "" "${small[@]}" --steps 40 --load "$folder" --states "$folder"
[ "$(sets "$folder")" = "35 40 " ] || fail "sets of $(sets "$folder"), not of 35 and 40"

# Another number of ranks; other data; files of --save know theirs as well.
renew
"$train" "${mlp[@]}" --batch 8 --ranks 1 --steps 40 --quiet --json "$dir/one" --load "$folder"
[ "$(tail -n 1 "$dir/one" | field steps)" = 10 ] || fail "one rank does not go on from sets of two"
mkdir "$dir/changed"
cp "$dir"/*-ubyte "$dir/changed"
printf '\001' | dd of="$dir/changed/train-images-idx3-ubyte" bs=1 seek=1000 conv=notrunc status=none
"$train" "${mlp[@]}" --ranks 2 --steps 5 --quiet --save "$dir/files" >/dev/null
for path in "$folder" "$dir/files"; do
    expect 1 "belongs to other data: to .* with data_hash [0-9a-f]*, but --data is \"changed\" with data_hash" \
        "${small[@]}" --data "$dir/changed" --steps 40 --load "$path"
done
expect 1 "its --seed differs" "${small[@]}" --seed 2 --steps 40 --load "$folder"

# -- what cannot be written ------------------------------------------------------------------------
: >"$dir/file"
for path in "$dir/file" "$dir/none/deeper"; do
    expect 1 "^rank [01]: no sets of states can be saved in $path: No\(t a\| such file or\) directory" \
        "${small[@]}" --steps 20 --states "$path" --save-every 5
    grep -q "replicas identical" "$dir/out" || fail "the run did not go on: $(cat "$dir/out")"
    grep -q "^rank 0: .* sets of states could not be saved, nor could the last one" "$dir/out" ||
        fail "no word at the end: $(cat "$dir/out")"
done
limited() { # KiB, command...: files end there
    (
        ulimit -f "$1"
        exec "${@:2}"
    )
}
expect 1 "the set of states of step 5 is not saved: cannot write .*: File too large" \
    limited 8 "${small[@]}" --steps 20 --states "$dir/limited" --save-every 5
grep -q "replicas identical" "$dir/out" || fail "the run did not go on: $(cat "$dir/out")"
[ -z "$(ls "$dir/limited")" ] || fail "a part of a set is left: $(ls "$dir/limited")"

# A disk with room for a set and a half: the first one stays, and can be gone on from.
mkdir "$dir/disk"
bytes=$(stat -c %s "$(state_of "$dir/kept" 30 0)")
if mount -t tmpfs -o size=$((bytes * 7 / 2)) tmpfs "$dir/disk" 2>/dev/null; then
    mounted=$dir/disk
    expect 0 "" "${small[@]}" --steps 20 --stop 5 --states "$dir/disk/sets"
    expect 1 "the set of states of step [0-9]* is not saved: cannot write .*: No space left on device" \
        "${small[@]}" --steps 20 --states "$dir/disk/sets" --load "$dir/disk/sets" --save-every 5
    grep -q "the last complete set is that of step 5; resume with --load" "$dir/out" || fail "$(cat "$dir/out")"
    [ "$(sets "$dir/disk/sets")" = "5 " ] || fail "sets of $(sets "$dir/disk/sets"), not of 5"
    [ "$(find "$dir/disk/sets" -type f | wc -l)" = 3 ] || fail "a part of a set is left: $(ls "$dir/disk/sets")"
    expect 0 "" "${small[@]}" --steps 20 --load "$dir/disk/sets"
else
    echo "not tried: a full disk, as nothing can be mounted here"
fi

# -- signals ---------------------------------------------------------------------------------------
# A folder that comes to be later takes the sets that follow; SIGINT saves one more and ends the run.
await() { # seconds, command...: until it succeeds
    local end=$(($(date +%s) + $1))
    shift
    until "$@" 2>/dev/null; do
        [ "$(date +%s)" -lt $end ] || fail "timed out: $*"
        sleep 0.05 # between looks
    done
}
has_set() {
    [ -n "$(sets "$1")" ]
}
"$python" -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL) # a shell ignores it for what runs beside it
os.execv(sys.argv[1], sys.argv[1:])' "${small[@]}" --steps 1000000000 --eval-every 1000000000 \
    --states "$dir/file" --save-seconds 0.1 --json "$dir/stopped" 2>"$dir/said" &
pid=$!
await 100 grep -q "is not saved" "$dir/said"
rm "$dir/file" && mkdir "$dir/file"
await 100 has_set "$dir/file"
kill -INT $pid
status=0
wait $pid || status=$?
[ $status = 3 ] || fail "status $status after SIGINT: $(cat "$dir/said")"
grep -q "sets of states could not be saved; the last complete set" "$dir/said" || fail "$(cat "$dir/said")"
step=$(tail -n 1 "$dir/stopped" | field step)
[[ " $(sets "$dir/file")" = *" $step " ]] ||
    fail "stopped after step $step, sets of $(sets "$dir/file")"
run "$dir/on" "${mlp[@]}" --steps "$((step + 5))" --load "$dir/file" --save "$dir/on"
run "$dir/straight" "${mlp[@]}" --steps "$((step + 5))" --eval-every 1000000000 --save "$dir/straight"
same on straight "gone on after SIGINT, but elsewhere"

# -- address space ---------------------------------------------------------------------------------
if grep -q "__[at]san_init" "$train"; then
    echo "not tried: little address space, as sanitizers need more"
else
    status=0
    (
        ulimit -v 400000
        exec timeout 60 "${small[@]}" --steps 2
    ) >"$dir/out" 2>&1 || status=$?
    [ $status = 1 ] || fail "status $status with little address space"
    grep -q "^tamis_train: the limit of address space, 400000 KiB, is too low" "$dir/out" || fail "$(cat "$dir/out")"
fi

expect 2 "need --states FOLDER" "${small[@]}" --save-every 5
echo "states: ok"
