# SPDX-License-Identifier: MIT
#
# How every script of tests ends: the line "N passed, N failed[, N skipped]". To be sourced; counts
# are in passed, failed and skipped.

passed=0 failed=0 skipped=0

# The last line, and the status that goes with it.
finish() {
    if [ $skipped -gt 0 ]; then
        echo "$passed passed, $failed failed, $skipped skipped"
    else
        echo "$passed passed, $failed failed"
    fi
    [ $failed -eq 0 ]
    exit
}

# part NAME COMMAND...: run a script that ends with such a line, and add its counts. One that ends
# without it, or badly with no failure in it, has failed.
part() {
    local name=$1 status last begin=$SECONDS out
    shift
    out=$(mktemp) || exit 1
    echo "== $name"
    "$@" 2>&1 | tee "$out"
    status=${PIPESTATUS[0]}
    last=$(tail -n 1 "$out")
    rm -f "$out"
    echo "== $name: $((SECONDS - begin)) s"
    if [[ $last =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)?$ ]]; then
        passed=$((passed + BASH_REMATCH[1]))
        failed=$((failed + BASH_REMATCH[2]))
        skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
        [ "$status" -eq 0 ] || [ "${BASH_REMATCH[2]}" -gt 0 ] || failed=$((failed + 1))
    else
        echo "$name ended with status $status and without its counts."
        failed=$((failed + 1))
    fi
}
