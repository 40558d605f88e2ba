#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# test: release
#
# train.sh TRAIN PYTHON: every workload trains on two ranks with replicas that stay identical; a text
# is learned; micro-batches and layers handed over one by one change nothing but rounding; what cannot
# be is refused.
set -euo pipefail

train=$1 python=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

. "$(dirname "${BASH_SOURCE[0]}")/expect.sh"
. "$(dirname "${BASH_SOURCE[0]}")/train_runs.sh"

# A letter of 15 at random costs 2.7 nats; within words the next one is nearly certain. Seeds 1 to 6
# came to 0.41 to 0.49 dense, 0.80 to 0.90 sparse and 0.37 to 0.44 with updates in place of gradients.
for way in "dense 1 0.7 gradient" "tamis 0.1 1.2 gradient" "tamis 0.1 0.7 update"; do
    read -r scheme density most reduce <<<"$way"
    run "$dir/lm" "${lm[@]}" --steps 200 --eval-every 50 --scheme "$scheme" --density "$density" \
        --warm-up 10 --lr-decay cosine --lr-floor 0.1 --reduce "$reduce"
    [ "$(grep -c '"record":"step".*"wire_bytes":[1-9]' "$dir/lm")" = 4 ] || fail "no record each 50 steps"
    last=$(tail -n 1 "$dir/lm")
    loss=$(field metric_value <<<"$last")
    awk -v loss="$loss" -v most="$most" 'BEGIN { exit !(loss != "" && loss > 0.2 && loss < most) }' ||
        fail "$way: the text is not learned: $loss nats"
    [ "$(field metric <<<"$last")" = validation_loss ] || fail "another metric: $last"
    [ "$(field validation_loss <<<"$last")" = "$loss" ] || fail "the metric is not the loss: $last"
done

# Ten classes; by chance a tenth of the images is right.
run "$dir/cnn" "${cnn[@]}" --steps 60 --scheme tamis --density 0.1
awk -v share="$(tail -n 1 "$dir/cnn" | field metric_value)" 'BEGIN { exit !(share > 0.5) }' ||
    fail "the images are not learned: $(tail -n 1 "$dir/cnn")"

# Other ways to the same gradient. The loss of 100 steps; rounding is all that may differ.
near() { # way, loss, loss
    awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; exit !(a > 0 && d < 1e-3 * a && -d < 1e-3 * a) }' ||
        fail "$1: train loss $3, not $2"
}
for name in lm cnn; do
    declare -n options=$name
    run "$dir/plain" "${options[@]}" --steps 20 --scheme dense --lr 0.001
    plain=$(tail -n 1 "$dir/plain" | field train_loss)
    for way in "--micro-batches 2" "--overlap on --bucket-length 1000" "--scheme tamis --density 1"; do
        run "$dir/way" "${options[@]}" --steps 20 --scheme dense --lr 0.001 $way
        near "$name $way" "$plain" "$(tail -n 1 "$dir/way" | field train_loss)"
    done
done

# Densities that move: down in the warm-up, up towards the end, with the exact count of each step.
densities() { # record file: of the steps
    grep '"record":"step"' "$1" | field density | tr '\n' ' '
}
run "$dir/moving" "${lm[@]}" --reduce update --steps 30 --eval-every 5 --density 0.01 \
    --density-warm-up 11 --density-end 0.1
awk '{ exit !(NF == 6 && $1 > $2 && $2 > $3 && $3 < $4 && $4 < $5 && $5 < $6 && $3 < 0.02 && $6 > 0.08) }' \
    <<<"$(densities "$dir/moving")" || fail "densities of the steps: $(densities "$dir/moving")"
for part in '"count_exact":true' '"density_warm_up":11' '"density_end":0.1' \
    '"density_max":0.25,'; do
    tail -n 1 "$dir/moving" | grep -q "$part" || fail "no $part: $(tail -n 1 "$dir/moving")"
done
run "$dir/still" "${lm[@]}" --steps 3 --eval-every 1
tail -n 1 "$dir/still" | grep -q '"density_warm_up":0.*"density_end":null' || fail "a density that moves"

# A run that diverges says so, and no zeros.
run "$dir/diverged" "${mlp[@]}" --steps 2 --hidden 64 --depth 3 --lr 1e6
tail -n 1 "$dir/diverged" | grep -q '"steps":2,.*"validation_loss":null,.*"replicas_identical":true' ||
    fail "diverged: $(tail -n 1 "$dir/diverged")"

# Wrong usage.
lm_of() { # options
    "$train" --workload lm --data "$dir/text" --quiet --steps 1 "$@"
}
expect 1 "none: No such file" lm_of --data "$dir/none"
expect 1 "Is a directory" lm_of --data "$dir"
head -c 600 "$dir/text" >"$dir/short"
expect 1 "short: 600 bytes .*needs 650 bytes" lm_of --data "$dir/short"
expect 1 "need more than the .* samples available" lm_of --batch 60000
expect 2 "context 0 is out of range" lm_of --context 0
expect 2 "heads 3 must divide --width 64" lm_of --heads 3
expect 2 "layers 256 --width 65536 make up to" lm_of --layers 256 --width 65536
expect 2 "stages needs --workload mlp: the layers of lm" lm_of --stages 2
expect 2 "workload gpt is not known" lm_of --workload gpt
expect 2 "must be less than 1" lm_of --optimizer adamw --beta2 1
expect 2 "update needs --optimizer adamw or momentum" lm_of --reduce update
expect 2 "needs a scheme with residuals" lm_of --reduce update --optimizer adamw --scheme dense
expect 2 "a step has one gradient" lm_of --reduce update --optimizer adamw --micro-batches 2
expect 2 "there is no update in this run" lm_of --set update.scale=2
expect 2 "need a scheme that has a density" lm_of --density-end 0.3 --scheme dense
run "$dir/beside" --workload lm --data "$dir/text" --steps 9 --local-steps 2 --local-delay 2 --scheme topk \
    --density 0.25
tail -n 1 "$dir/beside" | field density_min | grep -q '^0\.[2-9]' || fail "no density is told beside an exchange"
expect 2 "need --local-steps" lm_of --outer-lr 1
expect 2 "low-rank needs --scheme dense" lm_of --low-rank 1
expect 2 "low-rank needs --stages 1" lm_of --scheme dense --low-rank 1 --overlap on
expect 2 "low-rank has no --save" lm_of --scheme dense --low-rank 1 --save "$dir/never"
expect 1 "no matrix would shrink" lm_of --scheme dense --low-rank 1000
expect 2 "need --local-steps" lm_of --local-delay 1
expect 2 "local-delay is more than --local-steps" lm_of --local-steps 2 --local-delay 3
expect 2 "outer-momentum must be less than 1" lm_of --local-steps 2 --outer-momentum 1
expect 2 "outer-lr must be over 0" lm_of --local-steps 2 --outer-lr 0
expect 2 "has an optimizer of its own" lm_of --local-steps 2 --reduce update --optimizer adamw
expect 2 "local-steps needs --stages 1" lm_of --local-steps 2 --overlap on
expect 2 "local-steps needs one density" lm_of --local-steps 2 --density-end 0.3
expect 1 "No such file" "$train" --workload cnn --data "$dir/none"
expect 0 "workload mlp|cnn|lm" "$train" --help

# Little address space.
if grep -q "__[at]san_init" "$train"; then
    echo "not tried: little address space, as sanitizers need more"
else
    status=0
    (
        ulimit -v 400000
        exec timeout 60 "$train" "${mlp[@]}" --ranks 2 --steps 2 --quiet
    ) >"$dir/out" 2>&1 || status=$?
    [ $status = 1 ] || fail "status $status with little address space"
    grep -q "^tamis_train: the limit of address space, 400000 KiB, is too low" "$dir/out" || fail "$(cat "$dir/out")"
fi
echo "train: ok"
