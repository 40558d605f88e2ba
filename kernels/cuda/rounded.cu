/* SPDX-License-Identifier: MIT
 *
 * Values that are rounded on their way to the ranks that add them up, and sums on their way back.
 * What is rounded how, and who keeps which error, is that of the host
 * (collectives/exchange/value_sum.h), so the bits are the same.
 *
 *     encode  the values of the union, encoded, for the owners of their blocks; errors
 *     add     decode those of all ranks, add them up, encode the sums; their errors
 *     decode  all sums, into `values`
 *
 * A block of threads takes a block of 256 values. Messages have a fixed size: a shard has room for
 * the most blocks that an owner can get, and how many it has in this step follows from the length
 * of the union (lib/policy/shards.h). Its last 4 bytes check what it holds, the step and the
 * configuration. A step may run again after a state was loaded, so the checks of what is to be
 * received are cleared before: what a collective that was given up did not bring is refused.
 */
#include "kernels/cuda/shards.cuh"
#include "kernels/cuda/value_codec.cuh"

#include "lib/base/tree.h"

/* -- blocks and shards ------------------------------------------------------------------------ */

/* One block of a shard: `count` values from `first` on, 0 if the shard has no such block. */
struct part {
    uint32_t first, count;
};

static __device__ __forceinline__ part rounded_part_of(const tam_cuda_exchange &x, uint32_t owner,
                                                       uint32_t place) {
    const tam_cuda_shard shard = x.rounded.shards[owner];
    bool second = place >= shard.count[0];
    uint32_t at = place - (second ? shard.count[0] : 0);
    part p = {};
    if (at >= shard.count[second])
        return p;
    p.first = (shard.begin[second] + at) * TAM_VALUE_BLOCK;
    p.count = x.scratch->verdict.count - p.first;
    p.count = p.count < TAM_VALUE_BLOCK ? p.count : TAM_VALUE_BLOCK;
    return p;
}

static __device__ __forceinline__ uint32_t *rounded_check_in(unsigned char *shard, size_t bytes) {
    return reinterpret_cast<uint32_t *>(shard + bytes) - 1;
}

/* Add a block of a shard to its check. All threads call it, when the block is written. */
static __device__ __forceinline__ void add_check(const tam_cuda_exchange &x, uint32_t which,
                                                 uint32_t r, uint32_t place,
                                                 const tam_cuda_value_codec &codec, uint32_t count,
                                                 const unsigned char *block) {
    uint32_t bytes = tam_value_encoded_bytes(codec, count), words = tam_value_stride(codec) / 4;
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < (bytes + 3) / 4; i += TAM_BLOCK_THREADS)
        sum +=
            tam_sum_word(TAM_SUM_VALUES, (uint64_t)place * words + i, tam_word_of(block, bytes, i));
    sum = tam_block_sum(sum);
    if (threadIdx.x == 0)
        tam_add64(&x.checks[which][r], sum);
}

/* -- encode ----------------------------------------------------------------------------------- */

static __device__ __forceinline__ void encode_block(const tam_cuda_exchange &x, uint32_t owner,
                                                    uint32_t place) {
    const tam_cuda_rounded &q = x.rounded;
    part p = rounded_part_of(x, owner, place);
    if (p.count == 0) /* uniform in the block */
        return;
    unsigned char *block = q.sent + owner * q.shard_bytes + (size_t)place * tam_value_stride(q.up);
    uint32_t i = p.first + threadIdx.x;
    bool inside = threadIdx.x < p.count;
    float value = inside ? x.values[i] : 0.0f;
    float error = tam_value_error(value, tam_value_encode_block(q.up, value, p.count, block));
    if (inside)
        x.errors[i] = error;
    __syncthreads(); /* the block is written */
    add_check(x, TAM_SENT, owner, place, q.up, p.count, block);
}

/* A rank that refuses the packets sends wrong checks. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    rounded_encode_values(const tam_cuda_exchange x) {
    const tam_cuda_rounded &q = x.rounded;
    uint32_t nranks = x.packets.nranks, refuses = x.scratch->verdict.status != TAMIS_OK;
    uint32_t tasks = refuses ? 0 : nranks * q.blocks;
    for (uint32_t task = blockIdx.x; task < tasks; task += gridDim.x)
        encode_block(x, task / q.blocks, task % q.blocks);
    if (!tam_last_block(&x.scratch->filled))
        return;
    for (uint32_t r = threadIdx.x; r < nranks; r += TAM_BLOCK_THREADS) {
        *rounded_check_in(q.sent + r * q.shard_bytes, q.shard_bytes) =
            tam_shard_check(x, x.packets.rank, x.checks[TAM_SENT][r]) ^ refuses;
        *rounded_check_in(q.received + r * q.shard_bytes, q.shard_bytes) = 0;
    }
}

/* -- add -------------------------------------------------------------------------------------- */

/* What all ranks sent for a block, one value in each thread. */
static __device__ __forceinline__ float rounded_add_up(const tam_cuda_exchange &x, const part &p,
                                                       uint32_t place) {
    const tam_cuda_rounded &q = x.rounded;
    uint32_t nranks = x.packets.nranks, own = tam_tree_own(nranks);
    tam_tree_sum sum;
    sum.count = sum.vrank = 0;
    for (uint32_t r = 0; r < nranks; r++) {
        const unsigned char *block =
            q.received + r * q.shard_bytes + (size_t)place * tam_value_stride(q.up);
        add_check(x, TAM_RECEIVED, r, place, q.up, p.count, block);
        if (!tam_value_valid(q.up, block) && threadIdx.x == 0)
            atomicOr(&x.scratch->damaged, 1u);
        if (threadIdx.x < p.count)
            tam_tree_add(&sum, tam_tree_vrank(r, own),
                         tam_value_in_block(q.up, block, threadIdx.x));
    }
    return tam_tree_end(&sum);
}

static __device__ __forceinline__ void rounded_add_block(const tam_cuda_exchange &x,
                                                         uint32_t place) {
    const tam_cuda_rounded &q = x.rounded;
    part p = rounded_part_of(x, x.packets.rank, place);
    if (p.count == 0)
        return;
    unsigned char *block =
        q.sent + x.packets.rank * q.sum_bytes + (size_t)place * tam_value_stride(q.down);
    uint32_t i = p.first + threadIdx.x;
    float sum = rounded_add_up(x, p, place);
    float error = tam_value_error(sum, tam_value_encode_block(q.down, sum, p.count, block));
    if (threadIdx.x < p.count)
        x.errors[i] = tam_value_add_errors(x.errors[i], error);
    __syncthreads();
    add_check(x, TAM_SUMS, x.packets.rank, place, q.down, p.count, block);
}

/* The received shards are those that were sent, or this rank's sums get a wrong check. Two blocks
 * of a multiprocessor at least: with fewer registers there are spills. */
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, 2)
    add_rounded(const tam_cuda_exchange x) {
    const tam_cuda_rounded &q = x.rounded;
    uint32_t refuses = x.scratch->verdict.status != TAMIS_OK;
    for (uint32_t place = blockIdx.x; place < q.blocks && !refuses; place += gridDim.x)
        rounded_add_block(x, place);
    if (!tam_last_block(&x.scratch->added))
        return;
    for (uint32_t r = threadIdx.x; r < x.packets.nranks; r += TAM_BLOCK_THREADS) {
        if (tam_shard_check(x, r, x.checks[TAM_RECEIVED][r]) !=
            *rounded_check_in(q.received + r * q.shard_bytes, q.shard_bytes))
            atomicOr(&x.scratch->damaged, 1u);
        *rounded_check_in(q.sent + r * q.sum_bytes, q.sum_bytes) = 0;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        *rounded_check_in(q.sent + x.packets.rank * q.sum_bytes, q.sum_bytes) =
            tam_shard_check(x, x.packets.rank, x.checks[TAM_SUMS][x.packets.rank]) ^
            (refuses | x.scratch->damaged);
}

/* -- decode ----------------------------------------------------------------------------------- */

static __device__ __forceinline__ void rounded_decode_block(const tam_cuda_exchange &x,
                                                            uint32_t owner, uint32_t place) {
    const tam_cuda_rounded &q = x.rounded;
    part p = rounded_part_of(x, owner, place);
    if (p.count == 0)
        return;
    const unsigned char *block =
        q.sent + owner * q.sum_bytes + (size_t)place * tam_value_stride(q.down);
    if (!tam_value_valid(q.down, block) && threadIdx.x == 0)
        atomicOr(&x.scratch->absent, 1u);
    if (threadIdx.x < p.count)
        x.values[p.first + threadIdx.x] = tam_value_in_block(q.down, block, threadIdx.x);
    if (owner != x.packets.rank)
        add_check(x, TAM_SUMS, owner, place, q.down, p.count, block);
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    rounded_decode_sums(const tam_cuda_exchange x) {
    const tam_cuda_rounded &q = x.rounded;
    if (x.scratch->verdict.status != TAMIS_OK)
        return;
    uint32_t tasks = x.packets.nranks * q.blocks;
    for (uint32_t task = blockIdx.x; task < tasks; task += gridDim.x)
        rounded_decode_block(x, task / q.blocks, task % q.blocks);
    if (!tam_last_block(&x.scratch->decoded))
        return;
    for (uint32_t r = threadIdx.x; r < x.packets.nranks; r += TAM_BLOCK_THREADS) {
        if (tam_shard_check(x, r, x.checks[TAM_SUMS][r]) !=
            *rounded_check_in(q.sent + r * q.sum_bytes, q.sum_bytes))
            atomicOr(&x.scratch->absent, 1u);
    }
}

/* -- launch ----------------------------------------------------------------------------------- */

extern "C" int tam_launch_encode_values(const tam_cuda_exchange *job, void *stream) {
    uint64_t tasks = (uint64_t)job->packets.nranks * job->rounded.blocks;
    return tam_launch(rounded_encode_values, tam_blocks_for(job, tasks), stream, *job);
}

extern "C" int tam_launch_add_rounded(const tam_cuda_exchange *job, void *stream) {
    return tam_launch(add_rounded, tam_blocks_for(job, job->rounded.blocks), stream, *job);
}

extern "C" int tam_launch_decode_sums(const tam_cuda_exchange *job, void *stream) {
    uint64_t tasks = (uint64_t)job->packets.nranks * job->rounded.blocks;
    return tam_launch(rounded_decode_sums, tam_blocks_for(job, tasks), stream, *job);
}
