/* SPDX-License-Identifier: MIT */
#ifdef TAMIS_BENCH_MPI

#include "bench/common/group_spread.h"

#include <stdlib.h>
#include <string.h>

struct bench_spread {
    MPI_Comm comm;
    MPI_Request requests[2]; /* of a round: in and out */
    int rank, nranks, distance, tag;
    size_t bytes;
    bench_spread_out out;
    char blocks[]; /* [nranks * bytes], this rank's first */
};

static int post(bench_spread *s) {
    int left = s->nranks - s->distance;
    size_t blocks = (size_t)(s->distance < left ? s->distance : left);
    int bytes = (int)(blocks * s->bytes);
    int code = MPI_Irecv(s->blocks + (size_t)s->distance * s->bytes, bytes, MPI_BYTE,
                         (s->rank + s->distance) % s->nranks, s->tag, s->comm, &s->requests[0]);
    if (code != MPI_SUCCESS)
        return code;
    return MPI_Isend(s->blocks, bytes, MPI_BYTE, (s->rank + left) % s->nranks, s->tag, s->comm,
                     &s->requests[1]);
}

bench_spread *bench_spread_begin(MPI_Comm comm, int tag, const void *mine, size_t bytes,
                                 bench_spread_out out) {
    int nranks;
    MPI_Comm_size(comm, &nranks);
    bench_spread *s = malloc(sizeof *s + (size_t)nranks * bytes);
    if (!s)
        return NULL;
    *s = (bench_spread){
        .comm = comm, .nranks = nranks, .distance = 1, .tag = tag, .bytes = bytes, .out = out};
    MPI_Comm_rank(comm, &s->rank);
    if (bytes > 0)
        memcpy(s->blocks, mine, bytes);
    return nranks == 1 || post(s) == MPI_SUCCESS ? s : NULL; /* MPI may still use it */
}

static void take_max(const bench_spread *s, int block, uint64_t *max) {
    for (size_t i = 0; i < s->bytes / sizeof max[0]; i++) {
        uint64_t value;
        memcpy(&value, s->blocks + (size_t)block * s->bytes + i * sizeof value, sizeof value);
        max[i] = block == 0 || value > max[i] ? value : max[i];
    }
}

static void hand_over(bench_spread *s) {
    for (int i = 0; i < s->nranks; i++) {
        size_t place = (size_t)((s->rank + i) % s->nranks);
        if (s->out.all && s->bytes > 0)
            memcpy((char *)s->out.all + place * s->bytes, s->blocks + (size_t)i * s->bytes,
                   s->bytes);
        if (s->out.max)
            take_max(s, i, s->out.max);
    }
    free(s);
}

bool bench_spread_test(bench_spread *s, bool *ended) {
    int done = 1, code = MPI_SUCCESS;
    while (code == MPI_SUCCESS && done && s->distance < s->nranks) {
        code = MPI_Testall(2, s->requests, &done, MPI_STATUSES_IGNORE);
        if (code != MPI_SUCCESS || !done)
            break;
        s->distance *= 2;
        if (s->distance < s->nranks)
            code = post(s);
    }
    *ended = code == MPI_SUCCESS && s->distance >= s->nranks;
    if (*ended)
        hand_over(s);
    return code == MPI_SUCCESS;
}

#endif
