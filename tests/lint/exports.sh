#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# exports.sh LIBRARY: libtamis.so shows tamis_* and nothing else, is called libtamis.so.<major>, and
# needs only what it is said to need (and the runtime of a sanitizer it was built with). Debian's list of
# symbols names all of them.
set -u

library=$1 bad=0

shown=$(nm -D --defined-only "$library" | awk '$2 != "A" { print $3 }' | sed 's/@.*//')
if ! grep -q '^tamis_' <<<"$shown"; then
    echo "no tamis_* symbol is shown"
    bad=1
fi
if grep -v '^tamis_' <<<"$shown"; then
    echo "^ shown, but not tamis_*"
    bad=1
fi

dynamic=$(readelf -d "$library")
if ! grep -q 'SONAME.*\[libtamis\.so\.[0-9]*\]' <<<"$dynamic"; then
    echo "no SONAME libtamis.so.<major>"
    bad=1
fi
allowed='^(libc|libm|libpthread|libxxhash|libmpi|libcudart|libnccl|libgomp|libomp|lib[a-z]*san'
allowed+='|ld-linux[-a-z0-9_]*)\.so'
if sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' <<<"$dynamic" | grep -vE "$allowed"; then
    echo "^ needed, but not allowed"
    bad=1
fi

# Debian's list has them all, but for those of vendors that its packages lack.
listed=$(sed -n 's/^ \(tamis_[a-z0-9_]*\)@.*/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../../debian/libtamis0.symbols")
if comm -13 <(sort <<<"$listed") <(grep -v '_nccl$' <<<"$shown" | sort) | grep .; then
    echo "^ not in debian/libtamis0.symbols: add \"NAME@TAMIS_<major> <this version>\""
    bad=1
fi
exit $bad
