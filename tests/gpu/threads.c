/* SPDX-License-Identifier: MIT
 *
 * Ranks as threads, for the fake NCCL, whose ranks are in one process. Each has a device
 * of its own: on one device a rank would wait for what others do there, as processes never do.
 */
#include "tests/gpu/processes.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { TIMEOUT_MS = 20000 };

typedef struct thread {
    process self; /* first */
    process_main body;
    void *context;
    int bad;
    pthread_t thread;
} thread;

static void *run_rank(void *rank) {
    thread *t = rank;
    t->bad = t->body(&t->self, t->context);
    tamis_comm_destroy(t->self.comm);
    return NULL;
}

void processes_die(process *self) {
    ((thread *)self)->bad = 0;
    pthread_exit(NULL);
}

static int run_all(thread *threads, uint32_t nranks) {
    uint32_t started = 0;
    int bad = 0;
    for (; started < nranks; started++)
        if (pthread_create(&threads[started].thread, NULL, run_rank, &threads[started]) != 0)
            break;
    for (uint32_t r = 0; r < started; r++) {
        pthread_join(threads[r].thread, NULL);
        bad |= threads[r].bad;
    }
    return bad || started < nranks;
}

int processes_run(uint32_t nranks, unsigned seconds, process_main body, void *context) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *comms[PROCESSES_MOST];
    thread threads[PROCESSES_MOST];
    config.timeout_ms = TIMEOUT_MS;
    if (tamis_comm_create_local(nranks, &config, comms) != TAMIS_OK) {
        fprintf(stderr, "%s\n", tamis_last_error());
        return 1;
    }
    for (uint32_t r = 0; r < nranks; r++)
        threads[r] = (thread){
            .self = {.rank = r, .nranks = nranks, .device = (int)r, .comm = comms[r]},
            .body = body,
            .context = context,
            .bad = 1,
        };
    alarm(seconds);
    int bad = run_all(threads, nranks);
    alarm(0);
    return bad;
}

bool processes_ask(bool (*question)(void)) {
    return question();
}
