/* SPDX-License-Identifier: MIT
 *
 * Connections that have not said who they are. Nobody waits for them: silent ones are closed after
 * a while, and each that comes too many closes the oldest.
 */
#ifndef TAM_TRANSPORT_STRANGERS_H
#define TAM_TRANSPORT_STRANGERS_H

#include "lib/base/base.h"

enum { TAM_STRANGERS = 64 };

#define TAM_GREETING_MAGIC UINT64_C(0x74616d6973737461)

/** What a process says first. */
typedef struct tam_greeting {
    uint64_t magic;
    uint32_t rank, nranks; /* nranks 0: of a newcomer to a job */
} tam_greeting;

typedef struct tam_strangers {
    int sockets[TAM_STRANGERS];
    tam_greeting said[TAM_STRANGERS];
    size_t bytes[TAM_STRANGERS];
    uint64_t until_ns[TAM_STRANGERS];
    uint32_t count;
} tam_strangers;

/** Owns the socket of a process that has said who it is. */
typedef void (*tam_admit)(void *arg, int socket, const tam_greeting *said);

/** Wait until one comes or speaks, 100 ms at most. */
void tam_strangers_await(const tam_strangers *s, int listener, uint64_t until_ns);

/** Take new ones, and what all say. */
void tam_strangers_read(tam_strangers *s, int listener, tam_admit admit, void *arg);

void tam_strangers_close(tam_strangers *s);

#endif
