#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# pytest.sh PYTHON FILE: runs the tests of FILE. A file of which nothing ran has failed, also when
# pytest calls all of it skipped. Exit 77: a Python package that it needs is not installed.
set -u

python=$1 file=$2
needed="pytest numpy"
! grep -qE '^ *(import|from) (torch|tamis\.torch)|importorskip\("torch"\)' "$file" ||
    needed+=" torch"
! grep -q 'importorskip("mypy' "$file" || needed+=" mypy"
for name in $needed; do
    if ! "$python" -c "import $name" 2>/dev/null; then
        echo "skipped: $python has no $name (Debian: apt-get install python3-$name)"
        exit 77
    fi
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m pytest -q -rs -p no:cacheprovider --basetemp="$work/tmp" \
    --junit-xml="$work/report.xml" "$file" </dev/null
status=$?
if [ $status -eq 5 ] && grep -q 'skipped="1"' "$work/report.xml"; then
    exit 77 # the file as a whole: this torch lacks what it tests
fi
[ $status -eq 0 ] || exit $status
"$python" - "$work/report.xml" <<'END'
import sys
import xml.etree.ElementTree as tree

suite = tree.parse(sys.argv[1]).getroot().find("testsuite")
if int(suite.get("tests")) - int(suite.get("skipped")) < 1:
    sys.exit("failed: nothing of this file ran")
END
