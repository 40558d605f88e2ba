/* SPDX-License-Identifier: MIT
 *
 * Ranks as processes without a launcher: forked, and rendezvous in shared memory.
 */
#ifndef TEST_PROCESSES_H
#define TEST_PROCESSES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <tamis/callback.h>
#include <unistd.h>

/** In a body. */
#define DEMAND(condition, ...)                                                                     \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d, pid %d: ", __LINE__, (int)getpid());                         \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fprintf(stderr, "\n");                                                                 \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

#define DEMAND_OK(call) DEMAND((call) == TAMIS_OK, "%s: %s", #call, tamis_last_error())

enum { PROCESSES_MOST = 32 };

typedef struct processes processes;

/** What a rank of `processes_run` does. @return its exit status, 0 if all is well */
typedef int (*process_body)(const tamis_callbacks *rendezvous, void *arg);

/** Run a body in so many processes, each with an all-gather of all of them. They are killed after
 * `seconds`, and those that have stopped when all others have ended.
 * @param  statuses  [out]  [nranks] exit statuses; 128 + the signal that ended a process */
void processes_run(uint32_t nranks, unsigned seconds, process_body body, void *arg, int *statuses);

/** As text, " 0 0 137". */
const char *processes_text(const int *statuses, uint32_t nranks);

#endif
