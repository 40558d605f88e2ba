#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Debian packages of the working tree, in build/packages/debian: libtamis0, libtamis-dev, tamis-tools and
# python3-tamis, checked by lintian. Without CUDA and NCCL (debian/rules).
#
#     bash packaging/debian.sh [--no-install]      installs what the build needs, or names it
set -eu

cd "$(dirname "${BASH_SOURCE[0]}")/.."
. tests/support/packages.sh
exec </dev/null

folder=$PWD/build/packages/debian
needed=$(awk '/^Build-Depends:/ { on = 1; sub(/^[^:]*:/, "") } on && /^[^ ]/ { exit }
    on { sub(/^debhelper-compat/, "debhelper", $1); sub(/,/, "", $1); print $1 }' debian/control)
# shellcheck disable=SC2086
need_packages "$@" build-essential dpkg-dev fakeroot lintian $needed

rm -rf "$folder"
mkdir -p "$folder/tamis"
git ls-files -z --cached --others --exclude-standard |
    tar --null --ignore-failed-read -T - -cf - 2>/dev/null | tar -C "$folder/tamis" -xf -
# Compilers of the environment are not those of Debian's builds; a cache of theirs would do no harm.
(cd "$folder/tamis" && env -u CC -u CXX -u CFLAGS PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    DEB_BUILD_OPTIONS="parallel=$(nproc)" dpkg-buildpackage -b -us -uc) >"$folder/build.log" 2>&1 ||
    { tail -n 20 "$folder/build.log" | cut -c 1-300; exit 1; }
rm -rf "$folder/tamis"
cd "$folder"
lintian --fail-on error --info --display-info ./*.changes >lintian.txt 2>&1 || { cat lintian.txt; exit 1; }
grep -E '^[EW]:' lintian.txt || echo "lintian: no error and no warning"
ls ./*.deb
