#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The files of a release, from a commit: the source as a tarball, its bill of materials (SPDX) and their
# SHA-256. The same commit gives the same bytes, wherever and whenever it is made: made twice and compared.
#
#     bash packaging/release.sh [COMMIT] [FOLDER]      HEAD and build/packages, if not given
set -eu

cd "$(dirname "${BASH_SOURCE[0]}")/.."
commit=$(git rev-parse --verify "${1:-HEAD}^{commit}")
folder=${2:-build/packages}
version=$(git show "$commit:include/tamis/tamis.h" | bash packaging/version.sh -)
name=tamis-$version
mkdir -p "$folder"

# gzip -n: no name and no time; the times inside are those of the commit. Neither the user's umask and
# settings of git must show nor where on Earth it is.
tarball() {
    git -c tar.umask=0022 -c core.autocrlf=false archive --format=tar --prefix="$name/" "$commit" |
        gzip -n
}
tarball >"$folder/$name.tar.gz"
(umask 0077 && TZ=Asia/Tokyo tarball) | cmp - "$folder/$name.tar.gz" ||
    { echo "Two tarballs of $commit differ." >&2; exit 1; }

python3 packaging/sbom.py "$folder/$name.tar.gz" "$version" "$(git log -1 --format=%ct "$commit")" \
    >"$folder/$name.spdx.json"

cd "$folder"
sha256sum "$name.tar.gz" "$name.spdx.json" | tee "$name.sha256"
