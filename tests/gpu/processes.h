/* SPDX-License-Identifier: MIT
 *
 * Ranks as processes of one machine without a launcher: forked before anything has touched CUDA,
 * joined by an all-gather through shared memory. Where CUDA is emulated, they may be threads
 * (threads.c).
 */
#ifndef TAMIS_GPU_PROCESSES_H
#define TAMIS_GPU_PROCESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <tamis/tamis.h>

enum { PROCESSES_MOST = 8 };

typedef struct process {
    uint32_t rank, nranks;
    int device;       /* the CUDA device that it uses */
    tamis_comm *comm; /* over the all-gather */
} process;

/** What a rank does. @return 0 if all was right */
typedef int (*process_main)(process *self, void *context);

/**
 * Fork `nranks` ranks, run `body` in each, wait for all. A single rank is this process itself, so
 * that a checker sees it.
 *
 * A rank that hangs is killed after `seconds`.
 *
 * @return 0 if every rank was right
 */
int processes_run(uint32_t nranks, unsigned seconds, process_main body, void *context);

/** End this rank in the middle of its work, on purpose: it counts as right. */
_Noreturn void processes_die(process *self);

/** Ask in a process of its own, so that this one has not touched CUDA when it forks. */
bool processes_ask(bool (*question)(void));

#endif
