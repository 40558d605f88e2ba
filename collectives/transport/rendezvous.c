/* SPDX-License-Identifier: MIT */
#include "collectives/transport/rendezvous.h"

#include "collectives/transport/sockets.h"

#include <errno.h>
#include <stdio.h>

#define ATTEMPT_NS UINT64_C(2000000000)

enum { HOST = 256 };

/* @param  out  [out]  for freeaddrinfo */
static tamis_status rendezvous_look_up(const char *place, bool listens, struct addrinfo **out) {
    char host[HOST];
    const char *colon = strrchr(place, ':');
    size_t length = colon ? (size_t)(colon - place) : 0;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0)};
    if (!colon || length == 0 || length >= sizeof host || colon[1] == '\0')
        return tam_fail(TAMIS_E_ARGUMENT, "TAMIS_RENDEZVOUS=%.200s is not host:port", place);
    bool brackets = place[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(length - 2 * brackets), place + brackets);
    int code = getaddrinfo(host, colon + 1, &hints, out);
    if (code == 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT, "TAMIS_RENDEZVOUS=%.200s: %s", place, gai_strerror(code));
}

tamis_status tam_rendezvous_listen(const char *place, int *listener) {
    struct addrinfo *found;
    TAM_TRY(rendezvous_look_up(place, true, &found));
    *listener = tam_socket_listen(found);
    int why = errno;
    freeaddrinfo(found);
    if (*listener >= 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_TRANSPORT,
                    "cannot listen at TAMIS_RENDEZVOUS=%.200s: %s; give an address of its host and "
                    "a free port",
                    place, strerror(why));
}

tamis_status tam_rendezvous_dial(const char *place, uint64_t until_ns, int *out) {
    struct addrinfo *found;
    uint64_t soon_ns = tam_clock_ns() + ATTEMPT_NS;
    TAM_TRY(rendezvous_look_up(place, false, &found));
    *out = tam_socket_connect(found, soon_ns < until_ns ? soon_ns : until_ns);
    freeaddrinfo(found);
    return TAMIS_OK;
}
