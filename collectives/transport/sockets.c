/* SPDX-License-Identifier: MIT */
#include "collectives/transport/sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HOST = 256 };

int tam_socket_left_ms(uint64_t until_ns) {
    uint64_t now_ns = tam_clock_ns();
    return now_ns < until_ns ? (int)((until_ns - now_ns) / 1000000u) + 1 : 0;
}

ssize_t tam_socket_move_some(int socket, void *bytes, size_t length, bool sends) {
    ssize_t moved = sends ? send(socket, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT)
                          : recv(socket, bytes, length, MSG_DONTWAIT);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    return moved > 0 ? moved : -1;
}

int tam_socket_move(int socket, void *bytes, size_t length, bool sends, uint64_t until_ns) {
    size_t at = 0;
    while (at < length) {
        ssize_t moved = tam_socket_move_some(socket, (char *)bytes + at, length - at, sends);
        if (moved < 0)
            return -1;
        at += (size_t)moved;
        if (moved > 0)
            continue;
        if (tam_socket_left_ms(until_ns) == 0)
            return 0;
        struct pollfd one = {.fd = socket, .events = sends ? POLLOUT : POLLIN};
        poll(&one, 1, tam_socket_left_ms(until_ns));
    }
    return 1;
}

tamis_status tam_socket_find(const char *address, bool listens, struct addrinfo **out) {
    char host[HOST];
    const char *colon = strrchr(address, ':');
    size_t length = colon ? (size_t)(colon - address) : 0;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0)};
    if (!colon || length == 0 || length >= sizeof host || colon[1] == '\0')
        return tam_fail(TAMIS_E_ARGUMENT, "TAMIS_RENDEZVOUS=%.200s is not host:port", address);
    bool brackets = address[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(length - 2 * brackets), address + brackets);
    int code = getaddrinfo(host, colon + 1, &hints, out);
    if (code == 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT, "TAMIS_RENDEZVOUS=%.200s: %s", address, gai_strerror(code));
}

static int listen_at(const struct addrinfo *at) {
    int one = 1, listener = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return -1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, at->ai_addr, at->ai_addrlen) == 0 && listen(listener, 128) == 0)
        return listener;
    int why = errno;
    close(listener);
    errno = why;
    return -1;
}

tamis_status tam_socket_listen(const char *address, int *out) {
    struct addrinfo *found;
    TAM_TRY(tam_socket_find(address, true, &found));
    *out = listen_at(found);
    int why = errno;
    freeaddrinfo(found);
    if (*out >= 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_TRANSPORT,
                    "cannot listen at TAMIS_RENDEZVOUS=%.200s: %s; give an address of its host and "
                    "a free port",
                    address, strerror(why));
}

void tam_socket_keep_alive(int socket) {
    int one = 1, idle_s = 5, interval_s = 2, probes = 3;
    setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

int tam_socket_accept(int listener) {
    int one = 1, s = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (s >= 0)
        setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return s;
}

int tam_socket_connect(const struct addrinfo *at, uint64_t until_ns) {
    int code = 0, one = 1;
    socklen_t length = sizeof code;
    int s = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return -1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(s, at->ai_addr, at->ai_addrlen) == 0)
        return s;
    struct pollfd waits = {.fd = s, .events = POLLOUT};
    if (errno == EINPROGRESS && poll(&waits, 1, tam_socket_left_ms(until_ns)) > 0 &&
        getsockopt(s, SOL_SOCKET, SO_ERROR, &code, &length) == 0 && code == 0)
        return s;
    close(s);
    return -1;
}
