/* SPDX-License-Identifier: MIT
 *
 * Connections of TCP with deadlines, for the few kilobytes by which processes find each other.
 */
#ifndef TAM_TRANSPORT_SOCKETS_H
#define TAM_TRANSPORT_SOCKETS_H

#include "lib/base/base.h"

#include <netdb.h>
#include <sys/types.h>

/** For poll, rounded up; 0: it has passed. */
int tam_socket_left_ms(uint64_t until_ns);

/** @return how many bytes moved; -1: the connection has ended; 0: none can now */
ssize_t tam_socket_move_some(int socket, void *bytes, size_t length, bool sends);

/** @return 1: all moved; 0: not by the deadline; -1: the connection has ended */
int tam_socket_move(int socket, void *bytes, size_t length, bool sends, uint64_t until_ns);

/** Listen at the first of these that is of this host and free. @return -1, with errno */
int tam_socket_listen(const struct addrinfo *any);

/** Notice within seconds that the other host is gone. */
void tam_socket_keep_alive(int socket);

/** The next connection. @return -1: none waits */
int tam_socket_accept(int listener);

/** Connect to the first of these that listens. @return -1: none does */
int tam_socket_connect(const struct addrinfo *any, uint64_t until_ns);

#endif
