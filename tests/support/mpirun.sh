#!/bin/sh
# SPDX-License-Identifier: MIT
#
# mpirun.sh RANKS SECONDS PROGRAM [ARGUMENT...]
#
# Runs ranks on one machine, more than it has cores if need be, and never longer than SECONDS; up to
# three times that where others keep the machine busy.
# Single-copy shared memory is off: containers commonly forbid the system calls it needs.
# The job has a TMPDIR of its own: of two jobs of Open MPI that share one the first to end may remove
# the folder in which the other is about to begin ("orte_session_dir failed").
set -eu

ranks=$1
seconds=$2
shift 2

read -r load _ </proc/loadavg
busy=$((1 + ${load%.*} / $(getconf _NPROCESSORS_ONLN)))
[ $busy -le 3 ] || busy=3
seconds=$((seconds * busy))

export OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_btl_vader_single_copy_mechanism="${OMPI_MCA_btl_vader_single_copy_mechanism:-none}"

# MPICH's launcher has none of these options, and needs none. Not asked of mpirun itself: until it had
# answered, a signal would end this script.
options=
if [ -z "${TEST_MPICH:-}" ]; then
    options="--oversubscribe --bind-to none"
    [ "$(id -u)" -ne 0 ] || options="$options --allow-run-as-root"
fi
TMPDIR=$(mktemp -d)
export TMPDIR
timeout -k 5 "$seconds" \
    mpirun $options -np "$ranks" "$@" </dev/null &
trap 'kill -TERM $! 2>/dev/null || :' INT TERM HUP
status=0
wait $! || status=$?
! kill -0 $! 2>/dev/null || { status=0; wait $! || status=$?; } # a signal came first
rm -rf "$TMPDIR"
exit $status
