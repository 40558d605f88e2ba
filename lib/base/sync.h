/* SPDX-License-Identifier: MIT
 *
 * Threads that wait for each other, with a deadline.
 */
#ifndef TAM_BASE_SYNC_H
#define TAM_BASE_SYNC_H

#include "lib/base/base.h"

#include <pthread.h>

/** A lock and a condition on the clock of tam_clock_ns; false: out of resources. */
bool tam_lock_open(pthread_mutex_t *lock, pthread_cond_t *changed);
void tam_lock_close(pthread_mutex_t *lock, pthread_cond_t *changed);

/** Wait, with the lock held, for a change. @return false: `until_ns` has passed */
bool tam_lock_wait(pthread_mutex_t *lock, pthread_cond_t *changed, uint64_t until_ns);

/** Start a thread that no signal of the process interrupts; false: out of resources. */
bool tam_thread_start(pthread_t *thread, void *(*body)(void *), void *context);

/** How often this process was forked from another: an object that recorded another number belongs
 * to a parent. The child has none of its threads, and locks are as they were. */
unsigned tam_forks(void);

#endif
