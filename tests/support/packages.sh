# SPDX-License-Identifier: MIT
#
# need_packages [--no-install] NAME...: see that Debian packages are there, installing the missing
# ones as root or with sudo. To be sourced.

missing_packages() {
    local name
    for name in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] ||
            printf ' %s' "$name"
    done
}

need_packages() {
    local install=yes missing as_root=
    if [ "$1" = --no-install ]; then
        install=no
        shift
    fi
    if ! command -v dpkg-query >/dev/null; then
        echo "Not a Debian system: taking for granted what these packages hold: $*"
        return 0
    fi
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        as_root="sudo -n"
        sudo -n true 2>/dev/null || install=no
    fi
    if [ $install = no ]; then
        echo "Missing Debian packages:$missing"
        echo "Install them with: apt-get install$missing"
        return 1
    fi
    echo "Installing Debian packages:$missing"
    $as_root apt-get update -qq </dev/null &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
            --no-install-recommends $missing </dev/null >/dev/null
}
