/* SPDX-License-Identifier: MIT */
#include "bench/scale/nets.h"

#include "bench/common/options.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define GBIT 8e-9 /* seconds to send a byte at 1 Gbit/s */

/* message_s: a pair of MPI_Isend and MPI_Irecv, measured with Open MPI 4.1 in shared memory (0.4
 * us) and over TCP (5 us); the rest are the vendors' figures. Cables of ib: a card each. */
static const scale_net known[] = {
    {"ib", {8, 1e-6, GBIT / 1600, 3e-6, GBIT / 400, GBIT / 3200, 0.4e-6, 5e-11, 0.0}, 0},
    {"ib1", {8, 1e-6, GBIT / 1600, 3e-6, GBIT / 400, GBIT / 400, 0.4e-6, 5e-11, 0.0}, 0},
    {"tcp", {1, 0.0, 0.0, 20e-6, GBIT / 25, GBIT / 25, 5e-6, 1e-10, 0.0}, 0},
    {"tcp8", {8, 1e-6, GBIT / 80, 20e-6, GBIT / 25, GBIT / 25, 5e-6, 1e-10, 0.0}, 0},
    {"wan", {1, 20e-6, GBIT / 25, 20e-3, GBIT / 1, GBIT / 1, 5e-6, 1e-10, 0.0}, 4},
};

enum { NUMBERS = 7, LEAST = 3 };

static scale_net of_numbers(const char *text) {
    double x[NUMBERS] = {0}, most = 1e9;
    size_t count = 0;
    for (const char *at = text; *at;) {
        int length = 0;
        if (count == NUMBERS || sscanf(at, "%lf%n", &x[count], &length) != 1 ||
            !(x[count] >= 0.0 && x[count] <= most) || (at[length] && at[length] != ','))
            break;
        count++;
        at += length;
        if (!*at) {
            if (count < LEAST || count == 4 || x[2] == 0.0 || (count > 4 && x[4] == 0.0))
                break;
            scale_net net = {.name = "given", .net = {.ranks_per_node = 1}};
            net.net.far_s = 1e-6 * x[0];
            net.net.message_s = 1e-6 * x[1];
            net.net.far_s_per_byte = GBIT / x[2];
            net.net.near_s = 1e-6 * (count > 4 ? x[3] : x[0]);
            net.net.near_s_per_byte = GBIT / (count > 4 ? x[4] : x[2]);
            net.net.cable_s_per_byte = count > 5 && x[5] > 0.0 ? GBIT / x[5] : 0.0;
            net.net.copy_s_per_byte = count > 6 && x[6] > 0.0 ? 1e-9 / x[6] : 0.0;
            return net;
        }
        at++;
    }
    bench_usage("--net %s is no network: needs %s", text, SCALE_NETS);
}

scale_net scale_net_parse(const char *text) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].name, text) == 0)
            return known[i];
    }
    return of_numbers(text);
}

tam_net scale_net_of(const scale_net *net, uint32_t nranks, uint64_t ranks_per_node) {
    tam_net out = net->net;
    if (net->sites > 0)
        out.ranks_per_node = nranks > net->sites ? nranks / net->sites : 1;
    if (ranks_per_node > 0)
        out.ranks_per_node = (uint32_t)ranks_per_node;
    return out;
}

static double gbit(double s_per_byte) {
    return s_per_byte > 0.0 ? GBIT / s_per_byte : INFINITY;
}

const char *scale_net_text(const scale_net *net, char *text, size_t size) {
    const tam_net *n = &net->net;
    int at = snprintf(text, size, "%s: between nodes %g us, %g Gbit/s a rank", net->name,
                      1e6 * n->far_s, gbit(n->far_s_per_byte));
    if (n->cable_s_per_byte > 0.0)
        at +=
            snprintf(text + at, size - (size_t)at, ", %g Gbit/s a node", gbit(n->cable_s_per_byte));
    if (n->near_s_per_byte > 0.0)
        at += snprintf(text + at, size - (size_t)at, "; inside %g us, %g Gbit/s", 1e6 * n->near_s,
                       gbit(n->near_s_per_byte));
    at += snprintf(text + at, size - (size_t)at,
                   "; %g us of processor for a message sent and one received, %g s a byte copied",
                   1e6 * n->message_s, n->copy_s_per_byte);
    if (n->incast_s > 0.0)
        at += snprintf(text + at, size - (size_t)at, "; %g us for each sender beyond 8 at once",
                       1e6 * n->incast_s);
    if (net->sites > 0)
        snprintf(text + at, size - (size_t)at, "; a node is a site, one of %u", net->sites);
    return text;
}
