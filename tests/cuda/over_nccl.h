/* SPDX-License-Identifier: MIT
 *
 * Ranks over NCCL's communicator, below the reducer: what they ask of the transport, and known
 * bytes to ask for.
 */
#ifndef TEST_CUDA_OVER_NCCL_H
#define TEST_CUDA_OVER_NCCL_H

#include "collectives/transport/comm.h"
#include "tests/cuda/rank.h"
#include <cuda_runtime_api.h>

enum { OVER_SHARD = 600, OVER_ROUNDS = 12 };

/** Milliseconds of a deadline that is to pass. */
uint32_t over_short_ms(void);

/** Run `body` on ranks whose `comm` is NCCL's and whose `shared` is the local one, and see that
 * nothing is left. @param timeout_ms  0: test_long_ms() */
void over_nccl(uint32_t nranks, uint32_t timeout_ms, rank_body body);

/** Run it without looking at what is left. */
void over_nccl_leaving(uint32_t nranks, uint32_t timeout_ms, rank_body body);

/** over_nccl on 1, 2, 3, 4 and 8 ranks, as far as they are at least `least`. */
void over_nccl_crowds(uint32_t least, uint32_t timeout_ms, rank_body body);

/** Fails the test if memory, streams, events, graphs or communicators are left. */
void over_assert_no_leak(void);

/* -- host memory ------------------------------------------------------------------------------ */

/** An operation on host memory, on the communicator's thread, as a reducer would ask for it. */
typedef struct over_ask {
    tam_job job; /* first */
    const void *send;
    size_t bytes;
    void *recv;
    float *values; /* else: a sum */
    size_t count;
} over_ask;

over_ask over_ask_gather(const void *send, size_t bytes, void *recv);

tamis_status over_gather(tamis_comm *comm, const void *send, size_t bytes, void *recv,
                         uint64_t *wire_bytes);
tamis_status over_sum(tamis_comm *comm, float *values, size_t count);

/** A few bytes of every rank, which nobody looks at. */
tamis_status over_touch(tamis_comm *comm);

/** Bytes that are the same on every rank for the same seed. */
unsigned char over_byte(uint32_t seed, size_t i);
void over_fill(uint32_t seed, size_t bytes, void *out);
bool over_is_filled(uint32_t seed, size_t bytes, const void *memory);

/* -- streams ---------------------------------------------------------------------------------- */

typedef struct over_stream {
    cudaStream_t stream;
    unsigned char *memory; /* device: [3 * nranks * OVER_SHARD] */
    unsigned char *pinned; /* [OVER_ROUNDS][2 * nranks * OVER_SHARD] what came */
    unsigned char *sent;   /* pinned: [nranks * OVER_SHARD] */
} over_stream;

/** A stream that is not open is all zeros. */
void over_stream_open(test_rank *self, over_stream *out);
void over_stream_close(over_stream *l);

/** Gather in place, then all-to-all, and all of it to `out`. Nothing is waited for. */
void over_enqueue(test_rank *self, const over_stream *l, unsigned char *out);
void over_check(test_rank *self, const unsigned char *out);

#endif
