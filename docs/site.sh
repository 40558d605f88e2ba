#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The documents and the public headers as a site: build/site/html/index.html. Doxygen, without a warning.
#
#     bash docs/site.sh [--no-install]
set -eu

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/support/packages.sh
need_packages "$@" doxygen
out=build/site
rm -rf "$out"
mkdir -p "$out"

# Doxygen knows no names of headings in links: they lead to the page. It takes # of C for a link, too.
cat >"$out/links.sed" <<'END'
s/\[([^]]*)\]\(#[^)]*\)/\1/g
s/\]\(([^)#]*)#[^)]*\)/](\1)/g
s/(^|[ (])#([a-z])/\1\&#35;\2/g
END
doxygen - >"$out/log" 2>"$out/warnings" <<END || { cat "$out/warnings"; exit 1; }
PROJECT_NAME = libtamis
PROJECT_NUMBER = $(bash packaging/version.sh include/tamis/tamis.h)
PROJECT_BRIEF = "sparse gradient exchange for data-parallel training"
OUTPUT_DIRECTORY = $out
INPUT = README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs docs/measured bench/cluster bench/results examples \
    python/README.md include/tamis
FILE_PATTERNS = *.md *.h
RECURSIVE = NO
EXCLUDE_PATTERNS = */bench/*.h */examples/*.h
USE_MDFILE_AS_MAINPAGE = $PWD/README.md
FILTER_PATTERNS = *.md="sed -E -f $out/links.sed"
IMAGE_PATH = docs docs/measured
OPTIMIZE_OUTPUT_FOR_C = YES
JAVADOC_AUTOBRIEF = YES
EXTRACT_ALL = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = TAMIS_EXPERIMENTAL TAMIS_API= TAMIS_CHECKED= TAMIS_NODISCARD=
GENERATE_LATEX = NO
HAVE_DOT = NO
QUIET = YES
WARN_IF_UNDOCUMENTED = NO
WARN_IF_INCOMPLETE_DOC = NO
WARN_NO_PARAMDOC = NO
END
[ ! -s "$out/warnings" ] || { cat "$out/warnings"; exit 1; }
echo "Wrote $out/html/index.html"
