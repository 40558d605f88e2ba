/* SPDX-License-Identifier: MIT
 *
 * cluster_cable CONTROL HOST_0 SWITCH_0 HOST_1 SWITCH_1 ...: cables that lose and delay. Passes
 * frames between each pair of interfaces, as `cluster.sh cables` calls it, until it is ended.
 * CONTROL is a FIFO; a line changes one cable, or all:
 *
 *     HOST from|to LOSS_PERCENT DELAY_MS [MS [MBIT_PER_S]]
 *
 * HOST is 0, 1, ... or "all"; `from` is what it sends, `to` what it receives; after MS ms, if they
 * are given and not 0, the cable is perfect again. A rate holds for one direction of one cable; a
 * queue of more than half a second of it drops what comes. What is lost is lost without a word to
 * either end, as on a cable that was pulled out beyond the next switch. The kernel's netem could
 * do that, but many kernels lack it.
 *
 * A frame is what the sender's kernel passes on, so up to 64 KiB at once are lost or pass.
 */
#define _GNU_SOURCE /* strsep */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define QUEUED_S 0.5 /* that wait for a cable with a rate */

enum { HOSTS = 64, WAYS = 2 * HOSTS, FRAME_BYTES = 66000, QUEUED = 4096 };

typedef struct frame {
    struct frame *next;
    double due_s;
    size_t bytes;
    unsigned char data[];
} frame;

/* One direction of a cable: way 2 h is what host h sends, 2 h + 1 what it receives. */
typedef struct way {
    int in, out;
    double loss, delay_s, until_s;
    double s_per_byte, free_s; /* of a rate: when the last frame has left the sender */
    frame *first, **end;
    unsigned queued;
} way;

static way ways[WAYS];
static int nways;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void give_up(const char *what) {
    fprintf(stderr, "cluster_cable: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* -- frames ----------------------------------------------------------------------------------- */

/* A random number: every run loses the same frames, if the traffic is the same. */
static double draw(void) {
    static uint64_t state = UINT64_C(0x9e3779b97f4a7c15);
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

static void pass(int out, const void *data, size_t bytes) {
    ssize_t sent = send(out, data, bytes, MSG_DONTWAIT);
    (void)sent; /* a frame that finds no room is lost, as in a switch */
}

static void queue(way *w, const void *data, size_t bytes) {
    double now = now_s(), begins = w->free_s > now ? w->free_s : now;
    bool full = w->queued == QUEUED || begins > now + QUEUED_S;
    frame *f = full ? NULL : malloc(sizeof *f + bytes);
    if (!f)
        return;
    w->free_s = begins + w->s_per_byte * (double)bytes;
    *f = (frame){.due_s = w->free_s + w->delay_s, .bytes = bytes};
    memcpy(f->data, data, bytes);
    *w->end = f;
    w->end = &f->next;
    w->queued++;
}

static void receive(way *w) {
    static unsigned char data[FRAME_BYTES];
    ssize_t bytes = recv(w->in, data, sizeof data, MSG_DONTWAIT);
    if (bytes <= 0 || draw() < w->loss)
        return;
    if (w->delay_s > 0 || w->s_per_byte > 0 || w->first)
        queue(w, data, (size_t)bytes);
    else
        pass(w->out, data, (size_t)bytes);
}

/* What is due. @return when the next one is */
static double release(way *w, double now) {
    while (w->first && w->first->due_s <= now) {
        frame *f = w->first;
        pass(w->out, f->data, f->bytes);
        w->first = f->next;
        w->queued--;
        free(f);
    }
    if (!w->first)
        w->end = &w->first;
    if (w->until_s > 0 && w->until_s <= now)
        w->loss = w->delay_s = w->s_per_byte = w->until_s = 0;
    return w->first ? w->first->due_s : now + 3600;
}

/* -- control ---------------------------------------------------------------------------------- */

static void obey(const char *line) {
    char host[8], side[8];
    double percent, delay_ms, last_ms = 0, mbit = 0;
    char *end = "";
    if (sscanf(line, "%7s %7s %lf %lf %lf %lf", host, side, &percent, &delay_ms, &last_ms, &mbit) <
        4)
        return;
    bool all = strcmp(host, "all") == 0;
    long number = all ? 0 : strtol(host, &end, 10);
    int to = strcmp(side, "to") == 0;
    for (int i = 0; i < nways && !*end; i++) {
        if ((!all && i / 2 != number) || i % 2 != to)
            continue;
        ways[i].loss = percent / 100;
        ways[i].delay_s = 1e-3 * delay_ms;
        ways[i].s_per_byte = mbit > 0 ? 8e-6 / mbit : 0;
        ways[i].until_s = last_ms > 0 ? now_s() + 1e-3 * last_ms : 0;
    }
}

static void read_control(int control) {
    char text[4096];
    ssize_t bytes = read(control, text, sizeof text - 1); /* lines are written whole */
    if (bytes <= 0)
        return;
    text[bytes] = '\0';
    for (char *rest = text, *line; (line = strsep(&rest, "\n"));)
        obey(line);
}

/* -- start ------------------------------------------------------------------------------------ */

/* With the headers in which kernels of one machine tell each other what is left to do for a frame:
 * to cut it up, or to compute its checksum. */
static int open_interface(const char *name) {
    int yes = 1, buffer = 1 << 22, s = socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL));
    struct sockaddr_ll address = {.sll_family = AF_PACKET,
                                  .sll_protocol = htons(ETH_P_ALL),
                                  .sll_ifindex = (int)if_nametoindex(name)};
    if (s < 0 || setsockopt(s, SOL_PACKET, PACKET_VNET_HDR, &yes, sizeof yes) != 0 ||
        setsockopt(s, SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof yes) != 0 ||
        setsockopt(s, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer) != 0 ||
        bind(s, (struct sockaddr *)&address, sizeof address) != 0)
        give_up(name);
    return s;
}

static void relay(int control) {
    struct pollfd ready[WAYS + 1];
    for (int i = 0; i < nways; i++)
        ready[i] = (struct pollfd){.fd = ways[i].in, .events = POLLIN};
    ready[nways] = (struct pollfd){.fd = control, .events = POLLIN};
    for (;;) {
        double now = now_s(), next = now + 0.01;
        for (int i = 0; i < nways; i++) {
            double due_s = release(&ways[i], now);
            next = due_s < next ? due_s : next;
        }
        if (poll(ready, (nfds_t)nways + 1, (int)(1e3 * (next - now)) + 1) < 0 && errno != EINTR)
            give_up("poll");
        if (ready[nways].revents)
            read_control(control);
        for (int i = 0; i < nways; i++) {
            if (ready[i].revents)
                receive(&ways[i]);
        }
    }
}

int main(int argc, char **argv) {
    if (argc < 4 || argc % 2 != 0 || argc - 2 > WAYS) {
        fprintf(stderr, "usage: cluster_cable CONTROL HOST_0 SWITCH_0 [HOST_1 SWITCH_1 ...]\n");
        return 2;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int control = open(argv[1], O_RDWR | O_NONBLOCK | O_CLOEXEC); /* writers come and go */
    if (control < 0)
        give_up(argv[1]);
    for (nways = 0; nways + 2 < argc; nways += 2) {
        int host = open_interface(argv[nways + 2]), rest = open_interface(argv[nways + 3]);
        ways[nways] = (way){.in = host, .out = rest, .end = &ways[nways].first};
        ways[nways + 1] = (way){.in = rest, .out = host, .end = &ways[nways + 1].first};
    }
    relay(control);
}
