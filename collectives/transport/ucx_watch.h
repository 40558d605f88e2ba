/* SPDX-License-Identifier: MIT
 *
 * Whether processes of this host live, asked of the kernel. UCX's own keep-alives notice a death
 * over shared memory late, and never if it comes before their first look (1.13: what they compare
 * is read by that look).
 */
#ifndef TAM_TRANSPORT_UCX_WATCH_H
#define TAM_TRANSPORT_UCX_WATCH_H

#include <stdbool.h>
#include <stdint.h>

/** A process, for others that may share its host. */
typedef struct tam_identity {
    uint64_t host, namespace; /* of process numbers */
    uint64_t process, started;
} tam_identity;

tam_identity tam_identity_own(void);

/** What tells of the end of another process of this host: a descriptor, to be closed; -1: of
 * another host, or that cannot be told.
 * @param  ended  [out]  it has ended already */
int tam_watch_open(const tam_identity *own, const tam_identity *other, bool *ended);

/** Which of them have ended.
 * @param  ended  [out]  [n] */
void tam_watch_look(const int *watches, uint32_t n, bool *ended);

#endif
