/* SPDX-License-Identifier: MIT */
#include "lib/base/sync.h"
#include "lib/base/fenv.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

bool tam_lock_open(pthread_mutex_t *lock, pthread_cond_t *changed) {
    pthread_condattr_t monotonic;
    if (pthread_mutex_init(lock, NULL) != 0)
        return false;
    if (pthread_condattr_init(&monotonic) != 0)
        goto err_mutex;
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    int failed = pthread_cond_init(changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (!failed)
        return true;
err_mutex:
    pthread_mutex_destroy(lock);
    return false;
}

void tam_lock_close(pthread_mutex_t *lock, pthread_cond_t *changed) {
    pthread_cond_destroy(changed);
    pthread_mutex_destroy(lock);
}

bool tam_lock_wait(pthread_mutex_t *lock, pthread_cond_t *changed, uint64_t until_ns) {
    struct timespec until = {(time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u)};
    return pthread_cond_timedwait(changed, lock, &until) != ETIMEDOUT;
}

/* Signals of the process go to the caller's threads: the new thread blocks them all. */
bool tam_thread_start(pthread_t *thread, void *(*body)(void *), void *context) {
    TAM_FENV_HELD();
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, body, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed == 0;
}

/* -- forks ------------------------------------------------------------------------------------ */

static atomic_uint forks;

static void count_fork(void) {
    atomic_fetch_add(&forks, 1);
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, count_fork);
}

/* Not the process's number: getpid is a system call, and every step would make some. */
unsigned tam_forks(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    return atomic_load(&forks);
}
