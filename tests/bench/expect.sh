# SPDX-License-Identifier: MIT
#
# test: release
#
# What the tests of programs share. To be sourced; $dir is a folder of the test's own.

fail() {
    echo "FAILED: $*"
    exit 1
}

expect() { # status, what must be printed, command...
    local status=0 wanted=$1 text=$2
    shift 2
    "$@" >"$dir/out" 2>&1 || status=$?
    [ "$status" = "$wanted" ] || fail "status $status, not $wanted: $*: $(tail -n 2 "$dir/out")"
    grep -q -- "$text" "$dir/out" || fail "no \"$text\": $*: $(tail -n 3 "$dir/out")"
}
