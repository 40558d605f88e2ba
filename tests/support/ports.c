/* SPDX-License-Identifier: MIT */
#include "tests/support/ports.h"

#include "tests/support/data.h"
#include "tests/support/ranks.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static uint16_t port;

static struct sockaddr_in address_of(uint16_t number) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons(number)};
}

/* Below the range that the system gives to outgoing connections, of which UCX makes many. */
static bool take_port(uint16_t number) {
    struct sockaddr_in at = address_of(number);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    bool is_free = bind(s, (struct sockaddr *)&at, sizeof at) == 0;
    close(s);
    return is_free;
}

uint16_t test_port_choose(void) {
    enum { FIRST = 10000, COUNT = 22000 };
    static uint64_t drawn;
    char text[64];
    do
        port = (uint16_t)(FIRST +
                          data_mix(drawn++ + now_ms() * UINT64_C(1000003) + (uint64_t)getpid()) %
                              COUNT);
    while (!take_port(port));
    snprintf(text, sizeof text, "127.0.0.1:%u", port);
    setenv("TAMIS_RENDEZVOUS", text, 1);
    return port;
}

void test_port_place(uint32_t rank, uint32_t nranks) {
    char text[16];
    snprintf(text, sizeof text, "%u", rank);
    setenv("RANK", text, 1);
    snprintf(text, sizeof text, "%u", nranks);
    setenv("WORLD_SIZE", text, 1);
}

int test_port_try(void) {
    const struct sockaddr_in at = address_of(port);
    int s = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(s, (const struct sockaddr *)&at, sizeof at) == 0)
        return s;
    close(s);
    return -1;
}

int test_port_connect(void) {
    uint64_t until_ms = now_ms() + test_long_ms();
    int s = test_port_try();
    for (; s < 0 && now_ms() < until_ms; s = test_port_try())
        sleep_ms(20);
    return s;
}
