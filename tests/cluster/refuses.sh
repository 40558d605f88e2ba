#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# refuses.sh CLUSTER_SH: wrong arguments give status 2 and the usage; a system that forbids or lacks
# something gives status 77, one sentence and no trace.
set -u

cluster=$1
. "$(dirname "${BASH_SOURCE[0]}")/traces.sh"

wrong() { # arguments...
    local status=0
    "$cluster" "$@" >"$work/out" 2>"$work/err" || status=$?
    [ $status -eq 2 ] || fail "cluster.sh $*" "status $status, not 2"
    [ ! -s "$work/out" ] || fail "cluster.sh $*" "writes to stdout"
    grep -q '^usage: cluster.sh with' "$work/err" || fail "cluster.sh $*" "shows no usage"
}

wrong
wrong up
wrong check 2
wrong with
wrong with 2
wrong with 2 1gbit
for hosts in 0 65 -1 two 2.0 01 '' 99999999999999999999 '1 2'; do
    wrong with "$hosts" 1gbit true
done
for rate in 0mbit 0.000gbit 1gb 1Gbit 1000 -1mbit fast '' '1 gbit' 1000000gbit .gbit 1.gbit; do
    wrong with 2 "$rate" true
done
wrong run 2 10 true
wrong exec 0 true
wrong rate 1gbit
wrong cables
wrong cables true /dev/null
wrong status

refused() { # words of the sentence, command before cluster.sh...
    local words=$1 status=0
    shift
    "$@" "${marked[@]}" "$cluster" with 2 1gbit touch "$work/ran" >"$work/out" 2>"$work/err" ||
        status=$?
    [ $status -eq 77 ] || fail "$words" "status $status, not 77"
    [ "$(wc -l <"$work/err")" -eq 1 ] || fail "$words" "not one line: $(cat "$work/err")"
    grep -q "^cluster.sh: .*$words" "$work/err" || fail "$words" "not said: $(cat "$work/err")"
    [ ! -s "$work/out" ] || fail "$words" "writes to stdout"
    [ ! -e "$work/ran" ] || fail "$words" "the command ran"
    check_gone "$words"
}

# As one who is permitted nothing: where users may have namespaces, in one that may have no more; else
# as the owner of the tree without any rights but his, for nobody else may be able to read it.
powerless() {
    local owner=(setpriv --reuid "$(stat -c %u "$cluster")" --clear-groups --bounding-set -all)
    if unshare --user --map-root-user true 2>/dev/null; then
        unshare --user --map-root-user \
            sh -c 'echo 0 >/proc/sys/user/max_net_namespaces; exec "$@"' sh "$@"
    elif "${owner[@]}" true 2>/dev/null; then
        "${owner[@]}" "$@"
    else
        "$@"
    fi
}
refused "not permitted" powerless

# A path without the tools, but for those that the script itself is made of.
mkdir "$work/bare"
for tool in bash env readlink sed sh; do
    ln -s "$(command -v $tool)" "$work/bare"
done
if [ ! -e /usr/sbin/unshare ] && [ ! -e /sbin/unshare ]; then
    refused "unshare.*apt-get install.*util-linux" env PATH="$work/bare"
fi

if ! "$cluster" check >/dev/null 2>&1; then
    echo "no hosts here: a kernel that lacks something was not tested"
    exit $bad
fi

# A kernel that lacks something: the tool that would learn it says so.
lacking() { # tool, what it is asked for, words of the sentence
    mkdir "$work/$2"
    cat >"$work/$2/$1" <<END
#!/bin/sh
case "\$*" in *" $2"*) echo "RTNETLINK answers: Operation not supported" >&2; exit 2 ;; esac
PATH=\${PATH#*:} exec $1 "\$@"
END
    chmod 755 "$work/$2/$1"
    refused "$3" env PATH="$work/$2:$PATH"
}
lacking mount proc "not permitted"
lacking ip bridge "switch.*BRIDGE.*not supported"
lacking ip veth "cables.*VETH.*not supported"
lacking ip cubic "congestion control.*not supported"
lacking tc tbf "token buckets.*NET_SCH_TBF.*not supported"

exit $bad
