/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE
#include "bench/train/memory.h"

#include <cblas.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

/* A thread takes 32 MiB for a buffer of OpenBLAS, 8 for its stack, and what malloc reserves for it;
 * the rest is for the program, MPI and its data. Runs of 1 and 4 ranks on 1 and 2 threads hung with
 * up to 60 MiB a thread. */
enum { MIB = 1 << 20, THREAD_MIB = 80, REST_MIB = 192 };

/* Bytes of address space in use; 0: unknown. */
static uint64_t used_bytes(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file)
        return 0;
    int found = fscanf(file, "%lu", &pages);
    fclose(file);
    return found == 1 ? pages * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

void memory_check(uint32_t ranks) {
    struct rlimit limit;
    uint32_t threads = (uint32_t)openblas_get_num_threads() + (ranks ? ranks : 1);
    uint64_t needed = used_bytes() + (REST_MIB + THREAD_MIB * (uint64_t)threads) * MIB;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        limit.rlim_cur >= needed)
        return;
    fprintf(stderr,
            "tamis_train: the limit of address space, %llu KiB, is too low for %u threads of "
            "OpenBLAS and of this program, which need about %llu KiB: raise it (ulimit -v), or set "
            "OPENBLAS_NUM_THREADS=1\n",
            (unsigned long long)limit.rlim_cur / 1024, threads, (unsigned long long)needed / 1024);
    _exit(1); /* OpenBLAS would wait for its threads, which wait for memory */
}
