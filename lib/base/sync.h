/* SPDX-License-Identifier: MIT
 *
 * Threads that wait for each other until a time.
 */
#ifndef TAM_BASE_SYNC_H
#define TAM_BASE_SYNC_H

#include "lib/base/base.h"

#include <pthread.h>

/** A lock and a condition on the clock of tam_clock_ns; false: none left. */
bool tam_lock_open(pthread_mutex_t *lock, pthread_cond_t *changed);
void tam_lock_close(pthread_mutex_t *lock, pthread_cond_t *changed);

/** Wait, with the lock held, for a change. @return false: it is later than `until_ns` */
bool tam_lock_wait(pthread_mutex_t *lock, pthread_cond_t *changed, uint64_t until_ns);

/** Begin a thread that no signal of the process interrupts; false: there is none left. */
bool tam_thread_start(pthread_t *thread, void *(*body)(void *), void *context);

#endif
