#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# alone.sh WORLD: a process that MPI believes to be alone says so if its launcher started several, and
# else says nothing.
set -euo pipefail

said=$(SLURM_STEP_NUM_TASKS=4 "$@" 2>&1)
grep -q "has this process alone, but its launcher started 4 (SLURM_STEP_NUM_TASKS)" <<<"$said" ||
    { echo "FAILED: not said: $said"; exit 1; }
said=$(SLURM_STEP_NUM_TASKS=1 WORLD_SIZE=4 "$@" 2>&1) # of a launcher outside
! grep "alone" <<<"$said" || { echo "FAILED: said of one process"; exit 1; }
echo "alone: ok"
