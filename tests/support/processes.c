/* SPDX-License-Identifier: MIT */
#include "tests/support/processes.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 4096 };

struct processes {
    pthread_barrier_t barrier;
    unsigned char pieces[PROCESSES_MOST][PIECE];
};

typedef struct place {
    processes *all;
    uint32_t rank, nranks;
} place;

static tamis_status gather(void *context, const void *send, void *recv, size_t bytes) {
    place *p = context;
    for (size_t at = 0; at < bytes; at += PIECE) {
        size_t length = bytes - at < PIECE ? bytes - at : PIECE;
        memcpy(p->all->pieces[p->rank], (const char *)send + at, length);
        pthread_barrier_wait(&p->all->barrier);
        for (uint32_t r = 0; r < p->nranks; r++)
            memcpy((char *)recv + r * bytes + at, p->all->pieces[r], length);
        pthread_barrier_wait(&p->all->barrier);
    }
    return TAMIS_OK;
}

static processes *open_shared(uint32_t nranks) {
    pthread_barrierattr_t shared;
    processes *all =
        mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        abort();
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&all->barrier, &shared, nranks);
    pthread_barrierattr_destroy(&shared);
    return all;
}

static pid_t start(processes *all, uint32_t rank, uint32_t nranks, process_body body, void *arg) {
    place here = {all, rank, nranks};
    tamis_callbacks rendezvous = TAMIS_CALLBACKS_INIT;
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    rendezvous.rank = rank;
    rendezvous.nranks = nranks;
    rendezvous.allgather = gather;
    rendezvous.context = &here;
    int status = body(&rendezvous, arg);
    fflush(NULL);
    _exit(status);
}

typedef struct child {
    pid_t pid; /* 0: it has ended */
    bool stopped;
} child;

/* @return whether it has ended */
static bool look_after(child *c, int *status) {
    int raw;
    if (c->pid == 0 || waitpid(c->pid, &raw, WNOHANG | WUNTRACED) != c->pid)
        return false;
    c->stopped = WIFSTOPPED(raw);
    if (c->stopped)
        return false;
    *status = WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw);
    c->pid = 0;
    return true;
}

/* Whoever is late, or has stopped when all others have ended. */
static void end_rest(const child *children, uint32_t nranks, bool late) {
    for (uint32_t r = 0; r < nranks; r++)
        if (!late && children[r].pid != 0 && !children[r].stopped)
            return;
    for (uint32_t r = 0; r < nranks; r++)
        if (children[r].pid != 0)
            kill(children[r].pid, SIGKILL);
}

void processes_run(uint32_t nranks, unsigned seconds, process_body body, void *arg, int *statuses) {
    const struct timespec pause = {.tv_nsec = 1000000};
    child children[PROCESSES_MOST] = {{0, false}};
    processes *all = open_shared(nranks);
    uint32_t left = nranks;
    time_t until = time(NULL) + (time_t)seconds;
    for (uint32_t r = 0; r < nranks; r++)
        children[r].pid = start(all, r, nranks, body, arg);
    for (; left > 0; nanosleep(&pause, NULL)) {
        for (uint32_t r = 0; r < nranks; r++)
            left -= look_after(&children[r], &statuses[r]);
        end_rest(children, nranks, time(NULL) > until);
    }
    munmap(all, sizeof *all);
}

const char *processes_text(const int *statuses, uint32_t nranks) {
    static char text[PROCESSES_MOST * 8];
    size_t used = 0;
    for (uint32_t r = 0; r < nranks; r++)
        used += (size_t)snprintf(text + used, sizeof text - used, " %d", statuses[r]);
    return text;
}
