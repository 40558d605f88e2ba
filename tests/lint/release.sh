#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# release.sh TREE: the files of a release are the same twice, and the bill of materials is that of the
# tarball. Exit 77: the tree is not in git.
set -eu

cd "$1"
git rev-parse --verify -q HEAD >/dev/null || { echo "skipped: no commit here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bash packaging/release.sh HEAD "$work" >"$work/said" # makes it twice and compares
python3 - "$work"/*.spdx.json "$(awk '/tar.gz/ { print $1 }' "$work/said")" <<'END'
import json, sys
bill = json.load(open(sys.argv[1]))
named = {p["SPDXID"] for p in bill["packages"]} | {bill["SPDXID"]}
assert bill["packages"][0]["checksums"][0]["checksumValue"] == sys.argv[2]
for relation in bill["relationships"]:
    assert relation["spdxElementId"] in named and relation["relatedSpdxElement"] in named, relation
END
