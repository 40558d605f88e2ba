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

/** Look up "host:port" or "[address]:port". ARGUMENT, with a sentence that names TAMIS_RENDEZVOUS.
 * @param  out  [out]  for freeaddrinfo */
tamis_status tam_socket_find(const char *address, bool listens, struct addrinfo **out);

/** Listen at an address of this host. ARGUMENT, TRANSPORT. */
tamis_status tam_socket_listen(const char *address, int *out);

/** Notice within seconds that the other host is gone. */
void tam_socket_keep_alive(int socket);

/** The next connection. @return -1: none waits */
int tam_socket_accept(int listener);

/** @return -1: nobody listens there */
int tam_socket_connect(const struct addrinfo *at, uint64_t until_ns);

#endif
