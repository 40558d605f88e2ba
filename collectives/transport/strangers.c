/* SPDX-License-Identifier: MIT */
#include "collectives/transport/strangers.h"

#include "collectives/transport/sockets.h"

#include <poll.h>
#include <unistd.h>

enum { STRANGER_MS = 5000 };

static void forget(tam_strangers *s, uint32_t i) {
    uint32_t last = --s->count;
    s->sockets[i] = s->sockets[last];
    s->said[i] = s->said[last];
    s->bytes[i] = s->bytes[last];
    s->until_ns[i] = s->until_ns[last];
}

static uint32_t find_oldest(const tam_strangers *s) {
    uint32_t oldest = 0;
    for (uint32_t i = 1; i < s->count; i++)
        oldest = s->until_ns[i] < s->until_ns[oldest] ? i : oldest;
    return oldest;
}

/* @return whether somebody came */
static bool accept_one(tam_strangers *s, int listener) {
    int socket = tam_socket_accept(listener);
    if (socket < 0)
        return false;
    if (s->count == TAM_STRANGERS) {
        uint32_t oldest = find_oldest(s);
        close(s->sockets[oldest]);
        forget(s, oldest);
    }
    s->sockets[s->count] = socket;
    s->bytes[s->count] = 0;
    s->until_ns[s->count++] = tam_clock_ns() + STRANGER_MS * UINT64_C(1000000);
    return true;
}

/* @return whether it is no stranger any more, or gone */
static bool strangers_read_one(tam_strangers *s, uint32_t i, tam_admit admit, void *arg) {
    char *said = (char *)&s->said[i];
    ssize_t moved = tam_socket_move_some(s->sockets[i], said + s->bytes[i],
                                         sizeof s->said[i] - s->bytes[i], false);
    s->bytes[i] += moved > 0 ? (size_t)moved : 0;
    if (s->bytes[i] == sizeof s->said[i])
        admit(arg, s->sockets[i], &s->said[i]);
    else if (moved < 0 || tam_clock_ns() > s->until_ns[i])
        close(s->sockets[i]);
    else
        return false;
    forget(s, i);
    return true;
}

void tam_strangers_await(const tam_strangers *s, int listener, uint64_t until_ns) {
    struct pollfd all[TAM_STRANGERS + 1] = {{.fd = listener, .events = POLLIN}};
    for (uint32_t i = 0; i < s->count; i++)
        all[i + 1] = (struct pollfd){.fd = s->sockets[i], .events = POLLIN};
    int most = tam_socket_left_ms(until_ns);
    poll(all, s->count + 1, most < 100 ? most : 100);
}

static void strangers_read_all(tam_strangers *s, tam_admit admit, void *arg) {
    for (uint32_t i = 0; i < s->count;)
        i += !strangers_read_one(s, i, admit, arg);
}

void tam_strangers_read(tam_strangers *s, int listener, tam_admit admit, void *arg) {
    strangers_read_all(s, admit, arg);
    for (int n = 0; n < TAM_STRANGERS && accept_one(s, listener); n++)
        strangers_read_all(s, admit, arg);
}

void tam_strangers_close(tam_strangers *s) {
    for (uint32_t i = 0; i < s->count; i++)
        close(s->sockets[i]);
    s->count = 0;
}
