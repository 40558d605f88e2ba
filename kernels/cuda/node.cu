/* SPDX-License-Identifier: MIT
 *
 * Inside a node: its ranks add up their gradients, each its own shard of them, before the exchange
 * between nodes, and send each other the results of their shards behind it
 * (lib/policy/node_shard.h).
 *
 *     send     float(gradient) * scale, shard by shard
 *              ... all-to-all of shards in the node ...
 *     add      the sum of the own shard, in the order of lib/base/tree.h
 *     clear    dense output: zeros into the gradient, which is in the residuals now
 *              ... the step between nodes ...
 *     seal     the sums between nodes and what was seen there, as lists with values
 *              ... all-gather in the node; check, union, validate, apply ...
 *
 * A shard ends in a check of what it holds, of step, configuration and the result of the step
 * before, for nothing that follows would find a damaged sum: it would be the same for all.
 */
#include "kernels/cuda/packets.cuh"

#include "kernels/cuda/shards.cuh"
#include "kernels/cuda/sums.cuh"
#include "kernels/cuda/widen.cuh"
#include "lib/policy/strided.h"

enum {
    SENT,
    RECEIVED,
    CHECK = 4
}; /* tam_cuda_gathered.checks; floats behind the values of a shard */

static __device__ __forceinline__ uint32_t node_check_of(const tam_cuda_exchange &x, uint32_t from,
                                                         const tam_cuda_stretch &piece,
                                                         uint64_t sum) {
    const tam_header_due due = {tam_config_of(x), x.params->step, x.record->last_result, from, 0};
    return tam_header_check_of(&due, sum + tam_sum_word(TAM_SUM_HEADER, 0, piece.first));
}

static __device__ __forceinline__ uint32_t *
node_check_in(float *shards, const tam_cuda_stretch &piece, uint32_t r) {
    return reinterpret_cast<uint32_t *>(shards + (r + 1) * piece.shard_length) - 1;
}

/* -- send ------------------------------------------------------------------------------------- */

/* A chunk lies in one run of one shard. */
template <typename TYPE>
static __device__ __forceinline__ void
send_chunk(const tam_cuda_gathered &node, const tam_cuda_accumulate &target,
           const tam_cuda_chunk &chunk, const tam_cuda_stretch &piece, float scale) {
    uint32_t position = (uint32_t)tam_strided_position(&node.node_shards[chunk.part], chunk.begin);
    uint32_t place = position - piece.first;
    uint64_t sum = tam_widen_chunk<TYPE, true>(
        tam_gradient_of<typename TYPE::element>(target, chunk), chunk.length, scale, false,
        {node.sent + chunk.part * piece.shard_length + place, place});
    for (int by = 16; by > 0; by /= 2)
        sum += __shfl_down_sync(TAM_WARP, (unsigned long long)sum, by);
    if (threadIdx.x % 32 == 0)
        tam_add64(&node.checks[SENT][chunk.part], sum);
}

template <typename TYPE>
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    fill_send(const tam_cuda_exchange x, const tam_cuda_gathered node,
              const tam_cuda_accumulate target, const tam_cuda_stretch piece) {
    float scale = target.source->scale;
    for (uint32_t c = piece.first_chunk + tam_warp_of_grid(); c < piece.end_chunk;
         c += tam_warps_of_grid())
        send_chunk<TYPE>(node, target, tam_chunk_of(target.grid, c), piece, scale);
    if (!tam_last_block(&x.scratch->filled))
        return;
    for (uint32_t g = threadIdx.x; g < node.nlocal; g += TAM_BLOCK_THREADS) {
        *node_check_in(node.sent, piece, g) =
            node_check_of(x, node.local, piece, node.checks[SENT][g]);
        *node_check_in(node.received, piece, g) = 0; /* of a collective that was given up */
        node.checks[SENT][g] = 0;
    }
    if (threadIdx.x == 0)
        x.scratch->filled = 0;
}

/* -- add -------------------------------------------------------------------------------------- */

/* The checksum of one stretch of what a rank sent. */
static __device__ __forceinline__ void node_check_received(const tam_cuda_gathered &node,
                                                           const tam_cuda_stretch &piece,
                                                           uint32_t r, uint32_t begin,
                                                           uint32_t count) {
    uint64_t sum = tam_block_sum(tam_part_of_check(node.received + r * piece.shard_length, begin,
                                                   tam_piece_end(begin, count)));
    if (threadIdx.x == 0)
        tam_add64(&node.checks[RECEIVED][r], sum);
}

static __device__ void check_all_received(const tam_cuda_gathered &node,
                                          const tam_cuda_stretch &piece, uint32_t count) {
    uint32_t stretches = tam_pieces_of(count);
    for (uint64_t i = blockIdx.x; i < (uint64_t)stretches * node.nlocal; i += gridDim.x)
        node_check_received(node, piece, (uint32_t)(i / stretches),
                            (uint32_t)(i % stretches) * TAM_PIECE, count);
}

/* The first rank whose shard is not what it sent, or nlocal. All threads get it. */
static __device__ uint32_t find_damaged(const tam_cuda_exchange &x, const tam_cuda_gathered &node,
                                        const tam_cuda_stretch &piece) {
    __shared__ uint32_t first;
    if (threadIdx.x == 0)
        first = node.nlocal;
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < node.nlocal; r += TAM_BLOCK_THREADS) {
        if (node_check_of(x, r, piece, node.checks[RECEIVED][r]) !=
            *node_check_in(node.received, piece, r))
            atomicMin(&first, r);
        node.checks[RECEIVED][r] = 0;
    }
    __syncthreads();
    return first;
}

/* The last block: whose shard was damaged, and what the pass will add. */
static __device__ void node_conclude(const tam_cuda_exchange &x, const tam_cuda_gathered &node,
                                     const tam_cuda_accumulate &target,
                                     const tam_cuda_stretch &piece) {
    uint32_t bad = find_damaged(x, node, piece);
    if (threadIdx.x == 0 && bad < node.nlocal) {
        x.scratch->damaged = 1;
        x.scratch->verdict.rank = node.first_rank + bad;
    }
    if (threadIdx.x == 0) {
        x.scratch->added = 0;
        tam_cuda_source pass = {};
        pass.grad = node.sum;
        pass.scale = 1.0f;
        pass.decay = x.scratch->damaged ? 1.0f : target.source->decay;
        *node.pass = pass;
    }
    __syncthreads();
    if (!piece.last || !x.scratch->damaged)
        return;
    for (uint64_t i = threadIdx.x; i < node.length; i += TAM_BLOCK_THREADS)
        node.sum[i] = 0.0f;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, 2)
    node_add(const tam_cuda_exchange x, const tam_cuda_gathered node,
             const tam_cuda_accumulate target, const tam_cuda_stretch piece) {
    uint64_t left = node.length - piece.first, capacity = piece.shard_length - CHECK;
    uint32_t count = (uint32_t)(left < capacity ? left : capacity);
    float4 *sums = reinterpret_cast<float4 *>(node.sum + piece.first);
    tam_received g = {reinterpret_cast<const float4 *>(node.received), piece.shard_length / 4,
                      node.nlocal, tam_tree_own(node.nlocal)};
    check_all_received(node, piece, count);
    for (uint64_t i = tam_thread_of_grid(); i < ((uint64_t)count + 3) / 4;
         i += tam_threads_of_grid())
        sums[i] = tam_add_ranks(g, i);
    if (tam_last_block(&x.scratch->added))
        node_conclude(x, node, target, piece);
}

/* -- clear ------------------------------------------------------------------------------------ */

template <typename ELEMENT>
static __global__ void __launch_bounds__(TAM_BLOCK_THREADS)
    node_clear(const tam_cuda_exchange x, const tam_cuda_accumulate target) {
    if (!x.scratch->damaged)
        tam_clear_all<ELEMENT>(target);
}

/* -- seal ------------------------------------------------------------------------------------- */

/* Entries of the result between nodes, in elements of the bucket. @return this thread's part of
 * their checksum */
static __device__ uint64_t list_result(const tam_cuda_exchange &inter,
                                       const tam_cuda_packets &packets, const tam_strided &shard,
                                       uint32_t count) {
    uint32_t *indices = tam_codes_of(packets, packets.rank);
    float *values = reinterpret_cast<float *>(tam_values_of(packets, packets.rank));
    uint64_t sum = 0;
    for (uint64_t i = tam_thread_of_grid(); i < count; i += tam_threads_of_grid()) {
        uint32_t index = (uint32_t)tam_strided_element(&shard, inter.indices[i]);
        float value = inter.values[tam_value_position(inter, (uint32_t)i)];
        indices[i] = index;
        values[i] = value;
        sum += tam_sum_word(TAM_SUM_INDICES, i, index) +
               tam_sum_word(TAM_SUM_VALUES, i, tam_bits_of(value));
    }
    return sum;
}

/* The norm of the shard, in thread 0, which adds in the order of the host. */
static __device__ double norm_of(const tam_cuda_packets &packets) {
    __shared__ double norms[TAM_BLOCK_THREADS];
    double sum = 0.0;
    for (uint32_t first = 0; first < packets.nstats; first += TAM_BLOCK_THREADS) {
        uint32_t left = packets.nstats - first;
        uint32_t count = left < TAM_BLOCK_THREADS ? left : TAM_BLOCK_THREADS;
        if (threadIdx.x < count)
            norms[threadIdx.x] = sqrt(tam_mean_of(packets, first + threadIdx.x));
        __syncthreads();
        for (uint32_t i = 0; threadIdx.x == 0 && i < count; i++)
            sum += norms[i];
        __syncthreads();
    }
    return sum;
}

/* What each rank of the inter-node group selected, and the first node whose sum was not finite. */
static __device__ void write_words(const tam_cuda_packets &inter, uint32_t *words) {
    __shared__ uint32_t bad;
    if (threadIdx.x == 0)
        bad = inter.nranks;
    __syncthreads();
    for (uint32_t a = threadIdx.x; a < inter.nranks; a += TAM_BLOCK_THREADS) {
        words[a] = tam_count_of(inter, a);
        if (tam_header_flags(tam_header_of(inter, a)) & TAM_HEADER_NONFINITE)
            atomicMin(&bad, a);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        words[inter.nranks] = bad;
}

/* Thread 0. */
static __device__ void write_counters(const tam_cuda_verdict &seen, double norm, float *counters) {
    tam_counter_set(counters, TAM_COUNTER_DEFERRED, (uint32_t)seen.deferred);
    tam_counter_set(counters, TAM_COUNTER_CANDIDATES, (uint32_t)seen.candidates);
    tam_counter_set(counters, TAM_COUNTER_NONFINITE, tam_at_most_32_bits(seen.nonfinite));
    counters[TAM_COUNTER_UNKNOWN] = 0.0f;
    counters[TAM_COUNTER_RESCANS] = (float)seen.rescans;
    counters[TAM_COUNTERS] = (float)norm;
}

/* Thread 0, when the words are there. */
static __device__ void write_header(const tam_cuda_exchange &x, uint32_t count, bool bad) {
    const tam_header_due due = tam_due_of(x, x.packets.rank);
    tam_header own = {};
    own.count = count;
    own.index_bytes = count * (uint32_t)sizeof(uint32_t);
    tam_header_flag(&own, bad ? TAM_HEADER_NONFINITE : 0u);
    tam_header_address(&own, &due);
    *tam_header_of(x.packets, x.packets.rank) = own;
}

/* A rank whose inter-node group refused the step seals nothing, so its node refuses, too. */
static __device__ void open_verdict(const tam_cuda_exchange &inter, const tam_cuda_exchange &x) {
    const tam_cuda_verdict &seen = inter.scratch->verdict;
    tam_cuda_verdict *own = &x.scratch->verdict;
    own->step = seen.step;
    own->status = seen.status;
    own->refused = seen.refused;
    own->rank = seen.rank;
    own->sent_sum = seen.sent_sum;
    if (seen.status != TAMIS_OK)
        tam_header_of(x.packets, x.packets.rank)->step_flags = 0;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    node_seal(const tam_cuda_exchange inter, const tam_cuda_exchange x,
              const tam_cuda_gathered node) {
    const tam_cuda_verdict &seen = inter.scratch->verdict;
    uint32_t count = seen.status == TAMIS_OK ? seen.count : 0;
    count = count < x.packets.capacity ? count : x.packets.capacity;
    uint64_t sum =
        tam_block_sum(list_result(inter, x.packets, node.node_shards[node.local], count));
    if (threadIdx.x == 0)
        tam_add64(&x.scratch->sent, sum);
    if (!tam_last_block(&x.scratch->sealed))
        return;
    tam_forget_packets(x);
    uint32_t *words = tam_words_of(x.packets, x.packets.rank);
    write_words(inter.packets, words);
    double norm = norm_of(inter.packets);
    if (threadIdx.x == 0) {
        write_counters(seen, norm, tam_counters_of(x.packets, x.packets.rank));
        write_header(x, count, words[inter.packets.nranks] < inter.packets.nranks);
    }
    __syncthreads();
    uint64_t header = tam_block_sum(tam_part_of_header(x.packets, x.packets.rank));
    if (threadIdx.x > 0)
        return;
    const tam_header_due due = tam_due_of(x, x.packets.rank);
    tam_header_of(x.packets, x.packets.rank)->check =
        tam_header_check_of(&due, header + x.scratch->sent);
    open_verdict(inter, x);
}

/* -- launch ----------------------------------------------------------------------------------- */

typedef void (*sender)(const tam_cuda_exchange, const tam_cuda_gathered, const tam_cuda_accumulate,
                       const tam_cuda_stretch);

extern "C" int tam_launch_node_send(const tam_cuda_exchange *inter, const tam_cuda_gathered *node,
                                    const tam_cuda_accumulate *target,
                                    const tam_cuda_stretch *piece, void *stream) {
    static const sender of_type[] = {fill_send<tam_as_float32>, fill_send<tam_as_float16>,
                                     fill_send<tam_as_bfloat16>};
    uint64_t chunks = piece->end_chunk - piece->first_chunk;
    unsigned blocks = tam_blocks_for(inter, (chunks + TAM_BLOCK_WARPS - 1) / TAM_BLOCK_WARPS);
    return tam_launch(of_type[target->type], blocks, stream, *inter, *node, *target, *piece);
}

extern "C" int tam_launch_node_add(const tam_cuda_exchange *inter, const tam_cuda_gathered *node,
                                   const tam_cuda_accumulate *target, const tam_cuda_stretch *piece,
                                   void *stream) {
    unsigned blocks = tam_blocks_for(inter, tam_pieces_of(piece->shard_length * node->nlocal));
    return tam_launch(node_add, blocks, stream, *inter, *node, *target, *piece);
}

extern "C" int tam_launch_node_clear(const tam_cuda_exchange *inter,
                                     const tam_cuda_accumulate *target, void *stream) {
    uint64_t chunks = target->grid.nchunks;
    unsigned blocks = tam_blocks_for(inter, (chunks + TAM_BLOCK_WARPS - 1) / TAM_BLOCK_WARPS);
    if (target->type == TAMIS_DTYPE_FLOAT32)
        return tam_launch(node_clear<float>, blocks, stream, *inter, *target);
    return tam_launch(node_clear<uint16_t>, blocks, stream, *inter, *target);
}

extern "C" int tam_launch_node_seal(const tam_cuda_exchange *inter, const tam_cuda_exchange *node,
                                    const tam_cuda_gathered *gathered, void *stream) {
    unsigned blocks = tam_blocks_for(inter, tam_pieces_of(node->packets.capacity));
    return tam_launch(node_seal, blocks, stream, *inter, *node, *gathered);
}
