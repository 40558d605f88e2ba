#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# What a cluster would leave behind: processes, known by a word in their environment, network
# interfaces and mounts. To be sourced.

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Before a command: marks what it starts. Bash has SIGINT ignored by what runs in the background.
marked=(env --default-signal=INT CLUSTER_TEST="$work")

bad=0
fail() { # what was done, what is wrong
    echo "$1: $2"
    bad=1
}

processes() {
    grep -als "^CLUSTER_TEST=$work\$" --null-data /proc/[0-9]*/environ
}

traces() {
    ls /sys/class/net
    cat /proc/self/mounts
}

before=$(traces)

# Processes die a moment after what held them.
check_gone() { # what was done
    local i
    for ((i = 0; i < 100; i++)); do
        [ -n "$(processes)" ] || break
        sleep 0.1
    done
    [ -z "$(processes)" ] || fail "$1" "processes are left: $(processes | xargs)"
    [ "$(traces)" = "$before" ] || fail "$1" "left: $(diff <(echo "$before") <(traces))"
}
