#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# debian.sh: builds the Debian packages of the working tree (packaging/debian.sh), installs them in a bare
# Debian, and uses them there: ten lines of C found by pkg-config, the Python module, a program and its
# page for man. Exit 77, with the reason, where no such root can be made. The root is build/fresh/base, as
# tests/fresh.sh makes it, and the log build/packages/debian/used.log.
set -u

cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
exec </dev/null
. tests/support/packages.sh
. tests/support/root.sh

root_base "${FRESH:-$PWD/build/fresh}" || { echo "skipped: $root_missing"; exit 77; }
bash packaging/debian.sh || exit 1

log=$PWD/build/packages/debian/used.log
root_copy debian || exit 1
mkdir "$root$HOME_IN/packages" || exit 1
for name in libtamis0 libtamis-dev tamis-tools python3-tamis; do
    cp build/packages/debian/"${name}"_*.deb "$root$HOME_IN/packages" || exit 1
done
cp tests/packages/ten.c "$root$HOME_IN" || exit 1

in_root 900 "$log" bash -euxc '
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends ./packages/*.deb gcc libc6-dev pkg-config >/dev/null
    cc -Wall -Werror ten.c -o ten $(pkg-config --cflags --libs tamis)
    ./ten
    python3 -c "import tamis; print(tamis.__version__, tamis.comm().rank)"
    tamis_info | head -n 3
    test -s /usr/share/man/man1/tamis_train.1.gz || grep -q path-exclude /etc/dpkg/dpkg.cfg.d/*
    for name in libtamis0 libtamis-dev tamis-tools python3-tamis; do dpkg -V $name; done
    ldd /usr/lib/*/libtamis.so.0 | grep libmpi'
status=$?
root_remove
[ $status -eq 0 ] || { tail -n 20 "$log"; exit 1; }
grep -v '^+' "$log" | tail -n 12
