#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# symbols.sh LIBRARY HOST VENDOR: compiled code of a build with CUDA. Only the object files
# listed in VENDOR may call cudart, the driver or NCCL, those in HOST may not; the shared library
# needs libcudart and libnccl and no other library of the vendor's, nor that of C++; calls that older
# versions of NCCL lack are weak.
set -u
library=$1 host=$2 vendor=$3
foreign='^ *U (cuda|nccl|cu[A-Z]|__cuda)'

bad=0
xargs nm -uA <"$host" | sed 's/^\([^:]*\):/\1: /' | while read -r file line; do
    grep -E "$foreign" <<<" $line" >/dev/null && echo "$file $line"
done | grep . && { echo "^ calls the vendor's library"; bad=1; }
if ! xargs nm -u <"$vendor" | grep -E "$foreign" >/dev/null; then
    echo "no call of the vendor's library at all: does this test still look for the right names?"
    bad=1
fi

# What came after NCCL 2.18 must not be needed to load the library.
for name in ncclCommRevoke ncclCommShrink; do
    nm -D "$library" | grep -E "^ *w $name" >/dev/null || { echo "$name is not weak"; bad=1; }
done

needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
for name in libcudart libnccl; do
    grep "^$name\.so" <<<"$needed" >/dev/null || { echo "$library does not need $name"; bad=1; }
done
grep -E '^lib(cu|nv|nccl|stdc\+\+|dl)' <<<"$needed" | grep -vE '^lib(cudart|nccl)\.so' &&
    { echo "^ needed, but not allowed"; bad=1; }
exit $bad
