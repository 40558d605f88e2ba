#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# cleans_up.sh CLUSTER_SH: hosts are what is promised, and leave no trace however they end. Exit 77:
# not permitted here.
set -u

cluster=$1
. "$(dirname "${BASH_SOURCE[0]}")/traces.sh"

"$cluster" check || exit

expect() { # what was done, expected, found
    [ "$2" = "$3" ] || fail "$1" "gives \"$3\", not \"$2\""
}

# -- what hosts are -------------------------------------------------------------------------------

"${marked[@]}" "$cluster" with 2 100mbit bash -c 'exit 5'
expect "the command's status" 5 $?
expect "the command's stdin" word "$(echo word | "${marked[@]}" "$cluster" with 1 none cat)"

"${marked[@]}" "$cluster" with 3 100mbit bash -c '
    "$0" status
    "$0" rate none
    "$0" status
    "$0" rate 2.5gbit
    "$0" exec 1 hostname
    "$0" exec 2 pwd
    "$0" exec 0 touch /dev/shm/mine
    "$0" exec 1 test -e /dev/shm/mine || echo own
    "$0" exec 3 true 2>/dev/null || echo $?
    "$0" status' "$cluster" >"$work/found"
for rate in 100Mbit none 2500Mbit; do
    [ $rate != 2500Mbit ] || printf 'node1\n%s\nown\n2\n' "$PWD"
    printf 'node%d 10.77.0.%d rate %s\n' 0 1 $rate 1 2 $rate 2 3 $rate
done >"$work/expected"
sed 's/CPUs [^ ]* //' "$work/found" | diff "$work/expected" - || fail "hosts" "see above"
check_gone "the end of the command"

two=$(for rate in 100mbit 200mbit; do
    "${marked[@]}" "$cluster" with 2 $rate bash -c 'sleep 1; "$0" status' "$cluster" &
done | sed 's/.*rate //' | sort | xargs)
expect "two at a time" "100Mbit 100Mbit 200Mbit 200Mbit" "$two"
check_gone "two at a time"

# -- how they end ---------------------------------------------------------------------------------

whom=(cluster.sh "the process around" "the first process") # each a child of the one before

# The command waits for a child, and neither ends by itself.
interrupted() { # status, signal, whom to send it
    local pid target i status=0 what="SIG$2 to ${whom[$3]}"
    "${marked[@]}" "$cluster" with 2 100mbit bash -c '
        trap "echo ended >$0/ended; exit" TERM
        sleep 1000 & echo up >$0/up; wait' "$work" &
    pid=$! target=$!
    while [ ! -e "$work/up" ]; do
        kill -0 $pid || exit 1
        sleep 0.1
    done
    [ -n "$(processes)" ] || fail "$what" "no process is found while there are some"
    for ((i = 0; i < $3; i++)); do
        read -r target _ <"/proc/$target/task/$target/children"
    done
    kill -"$2" "$target"
    wait $pid || status=$?
    check_gone "$what"
    if [ "$1" != any ]; then
        expect "$what" "$1" $status
        [ -e "$work/ended" ] || fail "$what" "the command could not end by itself"
    fi
    rm -f "$work/up" "$work/ended"
} 2>/dev/null # bash tells of processes that were killed

interrupted 143 TERM 0
interrupted 130 INT 0
interrupted 143 HUP 0
interrupted 137 KILL 0
interrupted 137 KILL 1
interrupted any KILL 2

"${marked[@]}" "$cluster" with 2 100mbit bash -c '
    kill -KILL "${CLUSTER_HOSTS%% *}"
    while "$0" exec 0 true 2>/dev/null; do sleep 0.1; done
    "$0" exec 1 sh -c "exit 6"' "$cluster"
expect "a host that died" 6 $?
check_gone "a host that died"

# A command that does not listen is given five seconds.
"${marked[@]}" "$cluster" with 2 100mbit \
    bash -c 'trap "" TERM; echo up; exec sleep 1000' >"$work/up" &
until [ -s "$work/up" ]; do sleep 0.1; done
kill -TERM $!
wait $!
expect "SIGTERM to a deaf command" 143 $?
check_gone "SIGTERM to a deaf command"

# At any moment of the beginning.
for delay in 0 0.005 0.01 0.02 0.04 0.08 0.16; do
    for signal in TERM KILL; do
        "${marked[@]}" "$cluster" with 4 100mbit sleep 1000 &
        sleep $delay
        kill -$signal $!
        wait $!
        check_gone "SIG$signal after $delay s"
    done
done 2>/dev/null

exit $bad
