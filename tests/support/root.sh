# SPDX-License-Identifier: MIT
#
# Bare Debian roots for tests: folders that mmdebstrap makes, entered by chroot, in namespaces, so that
# nothing of them stays mounted. Packages come from where this machine gets them. To be sourced, after
# packages.sh.
#
# root_base FOLDER: see that there is FOLDER/base, a Debian 12 with the base system and git. Where none
# can be made or entered it returns 1, and root_missing says why.
#
# root_copy NAME: makes $root, a copy of it, FOLDER/NAME, that reaches packages. root_remove removes it.
#
# in_root SECONDS LOG COMMAND...: a command in $root, as root, in its HOME.

HOME_IN=/home/user # in the root
root_folder='' root='' root_missing='' root_running=''
trap '[ -z "$root_running" ] || kill -KILL "$root_running"' EXIT
trap 'exit 143' INT TERM HUP

root_base() {
    root_folder=$1
    mkdir -p "$root_folder" || return 1
    root_missing="a root can be made by root only"
    [ "$(id -u)" -eq 0 ] || return 1
    root_missing="no Debian, so nothing here says where packages come from"
    command -v apt-config >/dev/null || return 1
    root_missing="mmdebstrap cannot be installed"
    need_packages mmdebstrap git util-linux || return 1
    root_missing="mmdebstrap made no root (see $root_folder/base.log)"
    make_base || return 1
    root_missing="no namespaces or mounts of our own here (see $root_folder/inside.log)"
    "${root_inside[@]}" "$root_folder/base" true 2>"$root_folder/inside.log"
}

same_debian() {
    grep -qx 'VERSION_CODENAME=bookworm' /etc/os-release && grep -qx 'ID=debian' /etc/os-release
}

# An interrupted one is not taken for whole. It need not outlive a crash, so dpkg need not wait for disks.
make_base() {
    local sources=() base=$root_folder/base
    [ ! -d "$base" ] || return 0
    if same_debian; then
        mapfile -t sources < <(
            find /etc/apt/sources.list /etc/apt/sources.list.d -type f \
                \( -name '*.list' -o -name '*.sources' \) 2>/dev/null
        )
    fi
    echo "Making $base"
    rm -rf --one-file-system "$base.new"
    mmdebstrap --mode=root --variant=minbase --include=git,ca-certificates bookworm "$base.new" \
        "${sources[@]}" >"$root_folder/base.log" 2>&1 &&
        echo force-unsafe-io >"$base.new/etc/dpkg/dpkg.cfg.d/90fast" && mv "$base.new" "$base"
}

# How this machine reaches packages: names, proxies, mirrors. Its sources fit the same Debian only.
copy_network() { # root
    local root=$1 file
    for file in resolv.conf hosts; do
        [ ! -e /etc/$file ] || cp -L /etc/$file "$root/etc/$file"
    done
    apt-config dump | grep '^Acquire::.*[^:]:*[^:] ' >"$root/etc/apt/apt.conf.d/90acquire"
    same_debian || return 0
    rm -rf "$root/etc/apt/sources.list.d"
    : >"$root/etc/apt/sources.list"
    for file in sources.list sources.list.d auth.conf.d trusted.gpg.d; do
        [ ! -e /etc/apt/$file ] || cp -a /etc/apt/$file "$root/etc/apt/"
    done
}

root_copy() {
    root=$root_folder/$1
    root_remove
    cp -a --reflink=auto "$root_folder/base" "$root" && copy_network "$root" && mkdir -p -m 700 "$root$HOME_IN"
}

root_remove() {
    rm -rf --one-file-system "$root"
}

# Before a root and a command. All that was started in there ends with the first process.
root_inside=(unshare --mount --pid --fork --kill-child bash -c '
    mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" && mount -t proc proc "$0/proc" &&
        exec chroot "$0" "$@"')

in_root() {
    local seconds=$1 log=$2 status
    shift 2
    "${root_inside[@]}" "$root" env -i HOME=$HOME_IN PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb \
        LANG=C.UTF-8 PIP_NO_INDEX=1 DEBIAN_FRONTEND=noninteractive \
        timeout -k 10 "$seconds" env -C $HOME_IN "$@" >"$log" 2>&1 &
    root_running=$!
    wait $root_running
    status=$?
    root_running=
    return $status
}
