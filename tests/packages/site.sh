#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# site.sh: the site is made without a warning, its pages have the plots, and tamis.h is in it.
set -eu

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash docs/site.sh
for name in slurm-loopback.png tamis_8h.html; do
    [ -s "build/site/html/$name" ] || { echo "the site has no $name"; exit 1; }
done
grep -q tamis_reducer_start build/site/html/tamis_8h.html
