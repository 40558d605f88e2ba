/* SPDX-License-Identifier: MIT */
#include "collectives/transport/sockets.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

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

static int listen_once(const struct addrinfo *at) {
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

int tam_socket_listen(const struct addrinfo *any) {
    int listener = -1;
    for (; any && listener < 0; any = any->ai_next)
        listener = listen_once(any);
    return listener;
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

static int connect_once(const struct addrinfo *at, uint64_t until_ns) {
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

int tam_socket_connect(const struct addrinfo *any, uint64_t until_ns) {
    int s = -1;
    for (; any && s < 0; any = any->ai_next)
        s = connect_once(any, until_ns);
    return s;
}
