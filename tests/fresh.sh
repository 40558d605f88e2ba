#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Do the two commands of the README work on a new machine? Each runs in a Debian 12 of its own that
# has the base system and git, and nothing that the other has installed. A program that is built only
# where tests have run before is found here. The last line is "N passed, N failed[, N skipped]".
#
#     bash tests/fresh.sh [demo] [quick]
#
# The roots are folders (mmdebstrap makes the first, kept in build/fresh/base; a copy of it is taken
# for each command) and are entered by chroot, in namespaces, so that nothing of them stays mounted.
# Packages come from where this machine gets them. Python's package index is out of reach in there:
# without CUDA, and so without the gigabytes of its compiler. What is tested is the working tree.
#
# Needs root and Debian's package mirror; where there is neither, everything is skipped, with the
# reason. Logs are in build/fresh, or FRESH=FOLDER.
set -u

LIMIT_S=3600       # of one command; others may keep the machine busy
HOME_IN=/home/user # in the root

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$top" || exit 1
exec </dev/null
. tests/support/packages.sh
. tests/support/counts.sh

folder=${FRESH:-$top/build/fresh}
base=$folder/base
mkdir -p "$folder" || exit 1

commands=("$@")
[ $# -gt 0 ] || commands=(demo quick)
for name in "${commands[@]}"; do
    case $name in
        demo | quick) ;;
        *) echo "usage: bash tests/fresh.sh [demo] [quick]" >&2; exit 2 ;;
    esac
done

skip_all() { # reason
    echo "skipped: $1"
    skipped=${#commands[@]}
    finish
}

# -- the root ------------------------------------------------------------------------------------

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

same_debian() {
    grep -qx 'VERSION_CODENAME=bookworm' /etc/os-release && grep -qx 'ID=debian' /etc/os-release
}

# An interrupted one is not taken for whole. It need not outlive a crash, so dpkg need not wait for disks.
make_base() {
    local sources=()
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
        "${sources[@]}" >"$folder/base.log" 2>&1 &&
        echo force-unsafe-io >"$base.new/etc/dpkg/dpkg.cfg.d/90fast" && mv "$base.new" "$base"
}

# Before a root and a command. All that was started in there ends with the first process.
inside=(unshare --mount --pid --fork --kill-child bash -c '
    mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" && mount -t proc proc "$0/proc" &&
        exec chroot "$0" "$@"')
running=
trap '[ -z "$running" ] || kill -KILL "$running"' EXIT
trap 'exit 143' INT TERM HUP

# -- a command in it -----------------------------------------------------------------------------

# As somebody who has cloned the project into a home that nobody else may read.
copy_tree() { # root
    local home=$1$HOME_IN
    mkdir -p -m 700 "$home"
    git clone -q "$top" "$home/tamis" 2>/dev/null || mkdir -p "$home/tamis"
    git ls-files -z --cached --others --exclude-standard |
        tar --null --ignore-failed-read -T - -cf - 2>/dev/null | tar -C "$home/tamis" -xf -
}

# Of a test that failed all it printed, then how the command ended.
tell_why() { # log
    awk '/^ *(Start +[0-9]+:|[0-9]+\/[0-9]+ Test)/ { on = /\*\*\*/ } on' "$1" | tail -n 100
    tail -n 40 "$1"
}

# fresh NAME WHAT_IT_LEAVES COMMAND...: the command in a copy of the base; passes if it ends with 0 and
# leaves that file, where one is named.
fresh() {
    local name=$1 leaves=$2 root=$folder/$1 log=$folder/$1.log begin=$SECONDS status
    shift 2
    rm -rf --one-file-system "$root"
    cp -a --reflink=auto "$base" "$root" && copy_network "$root" && copy_tree "$root" || exit 1
    echo "$name: $* ($log)"
    "${inside[@]}" "$root" env -i HOME=$HOME_IN PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LANG=C.UTF-8 \
        PIP_NO_INDEX=1 timeout -k 10 $LIMIT_S env -C $HOME_IN/tamis "$@" >"$log" 2>&1 &
    running=$!
    wait $running
    status=$?
    running=
    if [ $status -eq 0 ] && [ -n "$leaves" ] && [ ! -s "$root$HOME_IN/tamis/$leaves" ]; then
        echo "It left no $leaves." >>"$log"
        status=1
    fi
    if [ $status -eq 0 ]; then
        tail -n 1 "$log" | sed 's/^/    /'
        echo "PASS  $name, $((SECONDS - begin)) s"
        passed=$((passed + 1))
    else
        tell_why "$log" | sed 's/^/    /'
        echo "FAIL  $name, status $status, $((SECONDS - begin)) s"
        failed=$((failed + 1))
    fi
    rm -rf --one-file-system "$root"
}

[ "$(id -u)" -eq 0 ] || skip_all "a root can be made by root only"
command -v apt-config >/dev/null || skip_all "no Debian, so nothing here says where packages come from"
need_packages mmdebstrap git util-linux || skip_all "mmdebstrap cannot be installed"
make_base || skip_all "mmdebstrap made no root ($(tail -n 1 "$folder/base.log"); see $folder/base.log)"
"${inside[@]}" "$base" true 2>"$folder/inside.log" ||
    skip_all "no namespaces or mounts of our own here ($(tail -n 1 "$folder/inside.log"))"

for name in "${commands[@]}"; do
    case $name in
        demo) fresh demo build/demo/demo.jsonl env EPOCHS=1 SEEDS=1 bash bench/demo.sh ;;
        quick) fresh quick "" bash tests/run.sh --quick ;;
    esac
done
finish
