# SPDX-License-Identifier: MIT
#
# The last line of every test script: "N passed, N failed[, N skipped]". To be sourced; counts are in
# passed, failed and skipped.

passed=0 failed=0 skipped=0

# Prints the last line and returns the matching status.
finish() {
    if [ $skipped -gt 0 ]; then
        echo "$passed passed, $failed failed, $skipped skipped"
    else
        echo "$passed passed, $failed failed"
    fi
    [ $failed -eq 0 ]
    exit
}

# count_tests REPORT STATUS: adds what a JUnit report of ctest counts. A test whose program is missing
# is reported as "notrun" too: that is a failure.
count_tests() {
    local report=$1 status=$2 away bad
    [ -f "$report" ] || : >"$report"
    away=$(grep -c '<skipped message="SKIP_' "$report")
    bad=$(($(grep -c ' status="fail"' "$report") + $(grep -c ' status="notrun"' "$report") - away))
    [ "$status" -eq 0 ] || [ $bad -gt 0 ] || bad=1
    passed=$((passed + $(grep -c ' status="run"' "$report")))
    failed=$((failed + bad))
    skipped=$((skipped + away + $(grep -c ' status="disabled"' "$report")))
}

# part NAME COMMAND...: runs a script that ends with such a line, and adds its counts. A script fails
# if it lacks the line, or if its status is bad though the line counts no failure.
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
