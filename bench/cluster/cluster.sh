#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Emulates several hosts on this machine, joined by cables of a given rate, while a command runs.
#
#     cluster.sh check                          can it work here? If not: why, and status 77
#     cluster.sh with HOSTS RATE COMMAND...     RATE: 500mbit, 2.5gbit, ...; none: no limit
#
# What COMMAND and its children may call:
#
#     cluster.sh run RANKS SECONDS PROGRAM...   MPI over the hosts; mpirun's options may come first
#     cluster.sh exec HOST COMMAND...           on host 0, 1, ...
#     cluster.sh rate RATE                      of every cable from now on
#     cluster.sh cables PROGRAM CONTROL         frames pass through PROGRAM (cable.c), until it ends
#     cluster.sh status                         name, address, CPUs and rate of each host
#
#     COMMAND            node0        node1        node2        own network, name, IPC, /dev/shm
#        |               | eth0       | eth0       | eth0
#        |               | tbf        | tbf        | tbf        what the host sends
#        |               |            |            |
#        |               | tbf        | tbf        | tbf        what the host receives
#     === switch ======= port0 ====== port1 ====== port2 ===
#
# Everything is in unnamed namespaces, which the kernel removes with the process that they were made
# for. However a cluster ends, nothing of it stays, and two clusters cannot interfere.
set -eu

self=$(readlink -f "${BASH_SOURCE[0]}")
PATH=$PATH:/usr/sbin:/sbin # iproute2, for users too

NET=10.77.0
BUCKET_US=200 # a cable may send this much at once after a pause
QUEUE=1mb     # a longer queue drops a packet, which costs 200 ms

usage() {
    [ $# -eq 0 ] || echo "cluster.sh: $1" >&2
    sed -n 's/^#     cluster.sh/usage: cluster.sh/p' "$self" >&2
    exit 2
}

refuse() {
    echo "cluster.sh: $1" >&2
    exit 77
}

need() { # what for, command...
    local what=$1 said
    shift
    said=$("$@" 2>&1) || refuse "this system gives no $what (\"$*\" said: ${said##*$'\n'})"
}

is_number() { # text, least, most
    [[ $1 =~ ^(0|[1-9][0-9]{0,5})$ ]] && [ "$1" -ge "$2" ] && [ "$1" -le "$3" ]
}

is_rate() {
    [ "$1" = none ] || [[ $1 =~ ^[0-9]{1,5}(\.[0-9]{1,3})?[kmg]bit$ && ! $1 =~ ^[0.]+[kmg] ]]
}

# -- inside a cluster -----------------------------------------------------------------------------

# Sets hosts: for each host the process that holds it.
find_hosts() {
    [ -n "${CLUSTER_HOSTS:-}" ] || usage "only commands run by \"cluster.sh with\" can call this"
    read -ra hosts <<<"$CLUSTER_HOSTS"
}

cpus_of() { # process
    sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' "/proc/$1/status"
}

on() { # process that holds a host, command...
    nsenter -t "$1" --net --uts --ipc --mount -- \
        taskset -c "$(cpus_of "$1")" env -C "$PWD" "${@:2}"
}

# The largest packet, in bytes. A token bucket must hold it, or the kernel splits each packet, which
# costs CPU. 64 KiB is the kernel's own limit; below two frames it would be too slow again.
packet_of() { # rate
    awk -v rate="$1" -v us=$BUCKET_US 'BEGIN {
        bit = rate ~ /k/ ? 1e3 : rate ~ /m/ ? 1e6 : 1e9
        bytes = rate == "none" ? 65536 : rate * bit / 8 * us * 1e-6
        print int(bytes < 3200 ? 3200 : bytes > 65536 ? 65536 : bytes)
    }'
}

limit() { # rate, device, what runs a command where the device is...
    local rate=$1 device=$2 packet
    shift 2
    packet=$(packet_of "$rate")
    need "limit of packet sizes" "$@" ip link set dev "$device" gso_max_size "$packet"
    if [ "$rate" = none ]; then
        "$@" tc qdisc del dev "$device" root 2>/dev/null || true
    else
        # A quarter more, for the headers of the frames that carry the packet.
        need "token buckets (kernel option NET_SCH_TBF)" \
            "$@" tc qdisc replace dev "$device" root \
            tbf rate "$rate" burst $((packet * 5 / 4)) limit $QUEUE
    fi
}

set_rate() {
    local i
    for i in "${!hosts[@]}"; do
        limit "$1" eth0 on "${hosts[i]}"
        limit "$1" "port$i" env
    done
}

# Cables with a program in the middle, which gets the names of both their ends.
#
#     eth0 - port0 [PROGRAM] near0 - join0 - switch
#
# Neither end of PROGRAM's may answer for an address of this machine.
relay_cables() { # program, control
    local i ends=()
    for i in "${!hosts[@]}"; do
        ip link add "near$i" arp off type veth peer name "join$i"
        ip link set dev "port$i" nomaster arp off
        ip link set dev "near$i" up
        ip link set dev "join$i" master switch up
        ends+=("port$i" "near$i")
    done
    exec "$1" "$2" "${ends[@]}"
}

show_hosts() {
    local i rate
    for i in "${!hosts[@]}"; do
        rate=$(tc qdisc show dev "port$i" root | sed -n 's/.* rate \([^ ]*\).*/\1/p')
        echo "node$i $NET.$((i + 1)) CPUs $(cpus_of "${hosts[i]}") rate ${rate:-none}"
    done
}

run_mpi() { # ranks, seconds, program...
    local i list='' each=$((($1 + ${#hosts[@]} - 1) / ${#hosts[@]}))
    command -v mpirun >/dev/null || refuse "not found: mpirun (Debian: apt-get install openmpi-bin)"
    for i in "${!hosts[@]}"; do
        list+=${list:+,}node$i:$each
    done
    export OMPI_MCA_plm_rsh_agent="/dev/shm/cluster.sh _rsh" OMPI_MCA_plm_rsh_no_tree_spawn=1
    export OMPI_MCA_orte_tmpdir_base=/dev/shm OMPI_MCA_oob_tcp_if_include=$NET.0/24
    export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp OMPI_MCA_btl_tcp_if_include=$NET.0/24
    # In one session: a kernel that shares CPUs by session (autogroup) would not schedule a rank's
    # thread, however short its work, before the computing of a rank on another host.
    exec "$(dirname "$self")/../../tests/support/mpirun.sh" "$1" "$2" --leave-session-attached \
        --host "$list" "${@:3}"
}

# -- making a cluster -----------------------------------------------------------------------------

# The CPUs that host I of N may use, shared with no other host if there are enough. Ranks that wait
# for a message keep a CPU busy; if they may migrate, no figure is reproducible.
share_of() { # I, N
    local range all=() own='' parts i
    for range in $(cpus_of self | tr , ' '); do
        mapfile -t -O ${#all[@]} all < <(seq "${range%-*}" "${range#*-}")
    done
    parts=$(($2 < ${#all[@]} ? $2 : ${#all[@]}))
    for ((i = $1 % parts; i < ${#all[@]} / parts * parts; i += parts)); do
        own+=${own:+,}${all[i]}
    done
    echo "$own"
}

# Provides /dev/shm: programs need it for shared memory, and launchers find this script there, by a
# path without blanks.
furnish() {
    need "file systems of our own" mount -t tmpfs tmpfs /dev/shm
    ln -s "$self" /dev/shm/cluster.sh
    ip link set dev lo up
}

hold_host() { # number: prints its process id and stays
    furnish
    hostname "node$1"
    echo $$
    exec sleep infinity >/dev/null
}

plug_host() { # number
    local host=${hosts[$1]} address=$NET.$(($1 + 1))
    need "cables (kernel option VETH)" \
        ip link add "port$1" type veth peer name eth0 netns "$host"
    ip link set dev "port$1" master switch up
    on "$host" ip addr add "$address/24" dev eth0
    on "$host" ip link set dev eth0 up
    # Per route: the machine's default may be another, and is not ours to change.
    need "congestion control cubic" \
        on "$host" ip route replace $NET.0/24 dev eth0 src "$address" congctl cubic
}

make_switch() {
    need "processes of our own" mount -t proc proc /proc
    furnish
    need "switch (kernel option BRIDGE)" ip link add name switch type bridge
    ip addr add $NET.254/24 dev switch
    ip link set dev switch up
}

# The first process in the namespaces: when it ends, all others do.
keep_cluster() { # hosts, rate, command...
    local i command
    trap 'exit 143' TERM
    watch_pipe <&3 &
    exec 3<&-
    make_switch
    hosts=()
    for ((i = 0; i < $1; i++)); do
        read -r "hosts[i]" < <(
            exec taskset -c "$(share_of $i "$1")" unshare --net --uts --ipc --mount "$self" _host $i
        ) || exit 77
        plug_host $i
    done
    set_rate "$2"
    export CLUSTER_HOSTS="${hosts[*]}"
    # In the background, for bash handles signals only between commands or in `wait`.
    env --default-signal=INT,QUIT "${@:3}" <&0 &
    command=$!
    trap 'trap "" TERM; kill -TERM $command 2>/dev/null; wait $command' TERM
    wait $command
}

# The pipe closes when the process that the user called ends, whatever the cause.
watch_pipe() {
    read -r || kill -TERM 1
    sleep 5
    kill -KILL -1
}

# -- around it ------------------------------------------------------------------------------------

find_tools() {
    local tool absent=''
    for tool in hostname ip mount nsenter taskset tc unshare; do
        command -v $tool >/dev/null || absent+=" $tool"
    done
    [ -z "$absent" ] ||
        refuse "not found:$absent (Debian: apt-get install hostname iproute2 mount util-linux)"
}

may_isolate() { # options of unshare...
    unshare "$@" --net --mount --pid --fork --kill-child sh -c \
        'mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && ip link set dev lo up' \
        >/dev/null 2>&1
}

# Sets user: the options of unshare for a caller who is not root.
find_right() {
    user=()
    may_isolate && return
    user=(--user --map-root-user)
    may_isolate "${user[@]}" || refuse "namespaces are not permitted here: call it as root, in a \
container with the capabilities SYS_ADMIN and NET_ADMIN"
}

# When asked to end, it closes the pipe that keeps the cluster; the command then has five seconds.
with_cluster() { # hosts, rate, command...
    local input pipe='' status=0
    find_tools
    find_right
    trap 'end_cluster "$pipe" 130' INT
    trap 'end_cluster "$pipe" 143' TERM HUP
    exec {input}<&0
    exec {pipe}> >(
        exec unshare "${user[@]}" --net --mount --pid --fork "$self" _keep "$@" 3<&0 <&"$input"
    )
    wait $! || status=$?
    return $status
}

end_cluster() { # pipe if there is a cluster, status
    trap '' INT TERM HUP
    if [ -n "$1" ]; then
        eval "exec $1>&-"
        wait $! || true
    fi
    exit "$2"
}

command=${1:-}
shift $(($# > 0))
case $command in
    check)
        [ $# -eq 0 ] || usage
        with_cluster 2 1gbit true
        echo "cluster.sh: works here"
        ;;
    with)
        [ $# -ge 3 ] || usage
        is_number "$1" 1 64 || usage "HOSTS is a number from 1 to 64, not \"$1\""
        is_rate "$2" || usage "RATE is a number and kbit, mbit or gbit, or none; not \"$2\""
        with_cluster "$@"
        ;;
    run)
        [ $# -ge 3 ] || usage
        is_number "$1" 1 9999 || usage "RANKS is a number from 1 to 9999, not \"$1\""
        is_number "$2" 1 99999 || usage "SECONDS is a number from 1 to 99999, not \"$2\""
        find_hosts
        run_mpi "$@"
        ;;
    exec)
        [ $# -ge 2 ] || usage
        find_hosts
        is_number "$1" 0 $((${#hosts[@]} - 1)) ||
            usage "HOST is a number from 0 to $((${#hosts[@]} - 1)), not \"$1\""
        on "${hosts[$1]}" "${@:2}"
        ;;
    rate)
        [ $# -eq 1 ] || usage
        is_rate "$1" || usage "RATE is a number and kbit, mbit or gbit, or none; not \"$1\""
        find_hosts
        set_rate "$1"
        ;;
    cables)
        [ $# -eq 2 ] || usage
        find_hosts
        relay_cables "$@"
        ;;
    status)
        [ $# -eq 0 ] || usage
        find_hosts
        show_hosts
        ;;
    _keep) keep_cluster "$@" ;;
    _host) hold_host "$1" ;;
    _rsh) # mpirun calls this instead of ssh: name of a host, parts of a line for its shell
        find_hosts
        on "${hosts[${1#node}]}" sh -c "${*:2}"
        ;;
    *) usage ;;
esac
