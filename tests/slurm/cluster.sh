#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# cluster.sh NODES CPUS COMMAND...: a Slurm of this machine alone while COMMAND runs: munged, slurmctld and
# NODES slurmds on the loopback, node0, node1, ..., which pretend to have CPUS processors each. Debian's
# packages munge and slurm-wlm. Everything is in namespaces of its own, with tmpfs where Slurm writes, so
# nothing of the machine's changes, no port is taken and all ends with COMMAND. Exit 77, with the reason,
# where it cannot work. LOGS: a folder in which the daemons' logs are left.
set -u

refuse() {
    echo "skipped: $1"
    exit 77
}

settings() { # nodes, cpus
    cat <<END
ClusterName=loopback
SlurmctldHost=localhost(10.78.0.1)
SlurmUser=root
AuthType=auth/munge
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/%n.pid
SlurmdSpoolDir=/run/slurm/%n
TmpFS=/run/slurm/%n
StateSaveLocation=/run/slurm/state
SlurmctldLogFile=$logs/slurmctld.log
SlurmdLogFile=$logs/%n.log
SlurmdTimeout=300
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
END
    for ((i = 0; i < $1; i++)); do
        echo "NodeName=node$i NodeAddr=10.78.0.1 NodeHostname=localhost Port=$((17000 + i)) CPUs=$2 RealMemory=100"
    done
    echo "PartitionName=all Nodes=node[0-$(($1 - 1))] Default=YES MaxTime=INFINITE State=UP"
}

# Until all nodes are idle.
await_nodes() { # nodes
    local end=$((SECONDS + 60))
    while [ $SECONDS -lt $end ]; do
        [ "$(timeout 10 sinfo -h -t idle -o %D 2>/dev/null)" = "$1" ] && return
        sleep 0.2
    done
    for log in "$logs"/*.log; do tail -n 5 "$log"; done
    return 1
}

# The first process in the namespaces.
inside() { # nodes, cpus, command...
    local nodes=$1 cpus=$2
    shift 2
    mount -t proc proc /proc && mount -t tmpfs tmpfs /run && mount -t tmpfs tmpfs /etc/slurm &&
        mount -t tmpfs tmpfs /etc/munge && ip link set dev lo up || exit 77
    # An address beside 127.0.0.1, without which neither Slurm nor Open MPI sees a network.
    ip link add net0 type veth peer name net1 && ip addr add 10.78.0.1/24 dev net0 &&
        ip link set dev net0 up && ip link set dev net1 up || exit 77
    mkdir -p /run/slurm/{state,node{0..63}} /run/munge "$logs"
    chmod 755 /run/munge
    settings "$nodes" "$cpus" >/etc/slurm/slurm.conf
    head -c 64 /dev/urandom >/etc/munge/munge.key
    chmod 400 /etc/munge/munge.key
    munged --force --key-file=/etc/munge/munge.key --log-file=/run/munge/munged.log \
        --pid-file=/run/munge/munged.pid --seed-file=/run/munge/seed || exit 1
    slurmctld || exit 1
    for ((i = 0; i < nodes; i++)); do
        slurmd -N "node$i" || exit 1
    done
    await_nodes "$nodes" || exit 1
    "$@"
}

if [ "$1" = --inside ]; then
    shift
    logs=$LOGS
    inside "$@"
    exit
fi

PATH=$PATH:/usr/sbin:/sbin
[ "$(id -u)" -eq 0 ] || refuse "Slurm's daemons need root"
for program in munged slurmctld slurmd srun unshare ip; do
    command -v $program >/dev/null || refuse "no $program (Debian: apt-get install munge slurm-wlm iproute2)"
done
[ -d /etc/slurm ] && [ -d /etc/munge ] || refuse "no /etc/slurm or /etc/munge"
unshare --net --mount --pid --fork --kill-child mount -t tmpfs tmpfs /run 2>/dev/null ||
    refuse "namespaces are not permitted here"
export LOGS=${LOGS:-$(mktemp -d)}
exec unshare --net --mount --pid --fork --kill-child bash "${BASH_SOURCE[0]}" --inside "$@"
