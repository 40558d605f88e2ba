#!/bin/sh
# SPDX-License-Identifier: MIT
#
# survive.sh RANKS SECONDS PROGRAM TEST threaded|funneled|stopped: run test_shrink where MPI tolerates
# faults. Two of RANKS die, or one of two, or one that has stopped before; all others end well. The
# launcher's status says only that some were killed.
set -u

here=$(dirname "$0")
dead=2
[ "$1" -gt 2 ] && [ "$5" != stopped ] || dead=1
out=$("$here/../support/mpirun.sh" "$1" "$2" --with-ft ulfm "$3" "$4" "$5" 2>&1)
left=$(printf '%s\n' "$out" | grep -c ' is left as rank [0-9]*: passed$')
[ "$left" -eq $(($1 - dead)) ] && ! printf '%s\n' "$out" | grep -q ': FAILED$' && exit 0
printf '%s\n' "$out" "$left of $1 ranks ended well, not $(($1 - dead))"
exit 1
