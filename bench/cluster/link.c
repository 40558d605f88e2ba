/* SPDX-License-Identifier: MIT
 *
 * cluster_link [BYTES]: what MPI achieves over the cables between its ranks. Rank 0 prints one JSON
 * object: minimum, median and maximum over rounds; a round takes as long as its slowest rank.
 *
 *     one_way    ranks 0 ... P/2 - 1 send BYTES (8 MiB) to those P/2 higher
 *     ring       each rank sends BYTES to the next one and receives them from the one before
 *     pair       ranks P/2 apart send BYTES to each other
 *     allgather  MPI_Allgather of BYTES in total, of which each rank receives (P - 1) / P
 *     latency    half a round trip of 8 bytes between ranks 0 and P/2, the mean of 100
 *
 * Rates are payload, in one direction of one rank. Ranks on one host share its cable.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUNDS = 9, PINGS = 100, PING_BYTES = 8, MAX_BYTES = 1 << 30 };

typedef struct ends {
    int rank, ranks, far; /* far: the rank P/2 away */
    int bytes;
    char *out, *in;
} ends;

/* -- one round -------------------------------------------------------------------------------- */

static void send_to(const ends *e, int rank, int bytes) {
    MPI_Send(e->out, bytes, MPI_BYTE, rank, 0, MPI_COMM_WORLD);
}

static void receive_from(const ends *e, int rank, int bytes) {
    MPI_Recv(e->in, bytes, MPI_BYTE, rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void send_and_receive(const ends *e, int to, int from) {
    MPI_Sendrecv(e->out, e->bytes, MPI_BYTE, to, 0, e->in, e->bytes, MPI_BYTE, from, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void one_way(const ends *e) {
    if (e->rank < e->far)
        send_to(e, e->far, e->bytes);
    else
        receive_from(e, e->far, e->bytes);
}

static void ring(const ends *e) {
    send_and_receive(e, (e->rank + 1) % e->ranks, (e->rank + e->ranks - 1) % e->ranks);
}

static void pair(const ends *e) {
    send_and_receive(e, e->far, e->far);
}

static void allgather(const ends *e) {
    int part = e->bytes / e->ranks;
    MPI_Allgather(e->out, part, MPI_BYTE, e->in, part, MPI_BYTE, MPI_COMM_WORLD);
}

static void pings(const ends *e) {
    for (int i = 0; i < PINGS && e->rank == 0; i++) {
        send_to(e, e->far, PING_BYTES);
        receive_from(e, e->far, PING_BYTES);
    }
    for (int i = 0; i < PINGS && e->far == 0; i++) {
        receive_from(e, 0, PING_BYTES);
        send_to(e, 0, PING_BYTES);
    }
}

enum { ONE_WAY, RING, PAIR, ALLGATHER, RATES, LATENCY = RATES, KINDS };

static const struct {
    const char *name;
    void (*round)(const ends *);
} kinds[KINDS] = {
    {"one_way", one_way},     {"ring", ring},        {"pair", pair},
    {"allgather", allgather}, {"latency_us", pings},
};

/* -- many rounds ------------------------------------------------------------------------------ */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Writes sorted times. An extra round before the first opens connections and their windows. */
static void time_rounds(const ends *e, void (*round)(const ends *), double seconds[ROUNDS]) {
    for (int i = -1; i < ROUNDS; i++) {
        double time_s;
        MPI_Barrier(MPI_COMM_WORLD);
        time_s = -MPI_Wtime();
        round(e);
        time_s += MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, &time_s, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (i >= 0)
            seconds[i] = time_s;
    }
    qsort(seconds, ROUNDS, sizeof *seconds, ascending);
}

static int ranks_per_host(void) {
    MPI_Comm host;
    int ranks;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &ranks);
    MPI_Comm_free(&host);
    MPI_Allreduce(MPI_IN_PLACE, &ranks, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return ranks;
}

static void print(const char *name, double min, double median, double max) {
    printf("\"%s\": {\"min\": %.4g, \"median\": %.4g, \"max\": %.4g}", name, min, median, max);
}

static void measure(const ends *e) {
    double seconds[KINDS][ROUNDS], us = 1e6 / (2 * PINGS);
    int shared = ranks_per_host();
    for (int k = 0; k < KINDS; k++)
        time_rounds(e, kinds[k].round, seconds[k]);
    if (e->rank != 0)
        return;
    printf("{\"record\": \"link\", \"ranks\": %d, \"ranks_per_host\": %d, \"bytes\": %d, "
           "\"rounds\": %d, \"gbit_s\": {",
           e->ranks, shared, e->bytes, ROUNDS);
    for (int k = 0; k < RATES; k++) {
        int bytes = k == ALLGATHER ? e->bytes / e->ranks * (e->ranks - 1) : e->bytes;
        const double *s = seconds[k];
        print(kinds[k].name, 8e-9 * bytes / s[ROUNDS - 1], 8e-9 * bytes / s[ROUNDS / 2],
              8e-9 * bytes / s[0]);
        fputs(k + 1 < RATES ? ", " : "}, ", stdout);
    }
    const double *s = seconds[LATENCY];
    print(kinds[LATENCY].name, us * s[0], us * s[ROUNDS / 2], us * s[ROUNDS - 1]);
    puts("}");
}

/* BYTES, or 0 with a message on rank 0. */
static int checked_bytes(const ends *e, int argc, char **argv) {
    char *end = "";
    long bytes = argc > 1 ? strtol(argv[1], &end, 10) : 8 << 20;
    if (argc <= 2 && !*end && bytes >= e->ranks && bytes >= PING_BYTES && bytes <= MAX_BYTES &&
        e->ranks % 2 == 0)
        return (int)bytes;
    if (e->rank == 0)
        fprintf(stderr,
                "usage: cluster_link [BYTES], on an even number of ranks; BYTES from %d, and at "
                "least the number of ranks, to %d\n",
                PING_BYTES, MAX_BYTES);
    return 0;
}

int main(int argc, char **argv) {
    ends e = {0};
    int status = 2;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &e.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &e.ranks);
    e.far = (e.rank + e.ranks / 2) % e.ranks;
    e.bytes = checked_bytes(&e, argc, argv);
    if (e.bytes) {
        e.out = calloc((size_t)e.bytes, 1);
        e.in = calloc((size_t)e.bytes, 1);
        if (!e.out || !e.in) {
            fprintf(stderr, "cluster_link: out of memory\n");
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        measure(&e);
        free(e.in);
        free(e.out);
        status = 0;
    }
    MPI_Finalize();
    return status;
}
