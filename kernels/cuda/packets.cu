/* SPDX-License-Identifier: MIT
 *
 * The messages of a step: seal the own packet (its header: seal.cuh), and check those of all ranks
 * before they are used. The last block of a check writes the verdict, the same on all ranks.
 */
#include "kernels/cuda/ranges.cuh"
#include "kernels/cuda/seal.cuh"

/* -- seal ------------------------------------------------------------------------------------- */

/* pairs: gather one piece of the own list and encode it. @return this thread's sum of squares
 * of what is sent */
static __device__ double encode_piece(const tam_cuda_exchange &x, uint32_t first, uint32_t end,
                                      unsigned char *values) {
    const uint32_t *indices = tam_indices_of(x.packets, x.packets.rank);
    const tam_cuda_value_codec &codec = x.packets.value_codec;
    double squares = 0.0, kept = 0.0;
    for (uint32_t at = first; at < end; at += TAM_VALUE_BLOCK) { /* uniform in the block */
        uint32_t i = at + threadIdx.x,
                 count = end - at < TAM_VALUE_BLOCK ? end - at : TAM_VALUE_BLOCK;
        float value = threadIdx.x < count ? x.acc[indices[i]] : 0.0f;
        uint64_t block = (uint64_t)(at / TAM_VALUE_BLOCK) * tam_value_block_bytes(codec);
        float error =
            tam_value_error(value, tam_value_encode_block(codec, value, count, values + block));
        if (threadIdx.x >= count) /* fp2 makes something of nothing */
            continue;
        squares += (double)value * value;
        kept += (double)error * error;
        if (x.errors)
            x.errors[i] = error;
    }
    return squares - kept;
}

/* Gather a piece, with checksum and squares. Pieces of any value codec are whole words. */
static __device__ __forceinline__ void gather_piece(const tam_cuda_exchange &x, uint32_t piece) {
    unsigned char *values = tam_values_of(x.packets, x.packets.rank);
    uint32_t first = piece * TAM_PIECE, left = x.selected->count - first;
    uint32_t end = first + (left < TAM_PIECE ? left : TAM_PIECE);
    double squares = encode_piece(x, first, end, values);
    __syncthreads(); /* the codes are written */
    uint32_t begin = tam_value_encoded_bytes(x.packets.value_codec, first);
    uint32_t bytes = tam_value_encoded_bytes(x.packets.value_codec, end);
    uint64_t sum =
        tam_block_sum(tam_part_of_bytes(TAM_SUM_VALUES, values, bytes, begin / 4, (bytes + 3) / 4));
    squares = tam_block_fold(squares);
    if (threadIdx.x == 0) {
        tam_add64(&x.scratch->sent, sum);
        x.piece_sums[piece] = squares;
    }
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    packets_seal(const tam_cuda_exchange x) {
    uint32_t pieces = tam_pieces_of(x.packets.with_values ? x.selected->count : 0);
    for (uint32_t piece = blockIdx.x; piece < pieces; piece += gridDim.x)
        gather_piece(x, piece);
    if (tam_last_block(&x.scratch->sealed))
        tam_seal_packet(x, tam_block_fold_list(x.piece_sums, pieces));
}

/* -- check: lists ----------------------------------------------------------------------------- */

/* Entries, or words of codes, that a block checks at a time. Few: to find the part of an entry
 * takes some ten loads, one after another, and only other warps hide them. */
enum { CHECKED = 512 };

/* Checks of the longest list. */
TAM_SHARED uint32_t checks_of(const tam_cuda_packets &packets) {
    return (tam_packet_words(packets) + CHECKED - 1) / CHECKED;
}

/* Whether the lists of ranks cannot overlap: then a range has as many entries as its runs. */
static __device__ __forceinline__ bool is_exclusive(const tam_cuda_exchange &x) {
    return x.scheme.ownership != TAM_OWN_ALL;
}

/* The border below `range` is at entry `at` of some list: what is before it lies in the range
 * below. Sums modulo 2^32, which start at 0. */
static __device__ __forceinline__ void count_at_border(const tam_cuda_exchange &x, uint64_t range,
                                                       uint32_t at) {
    if (range > 0)
        atomicAdd(&x.ranges.entries[range - 1], at);
    if (range < x.ranges.count)
        atomicAdd(&x.ranges.entries[range], 0u - at);
}

/* Find where every list enters every range. Searched here, while other warps wait for memory. */
static __device__ void search_runs(const tam_cuda_exchange &x) {
    uint64_t tasks = (uint64_t)(x.ranges.count + 1) * x.packets.nranks;
    for (uint64_t task = tam_thread_of_grid(); task < tasks; task += tam_threads_of_grid()) {
        uint32_t r = (uint32_t)(task % x.packets.nranks);
        uint64_t range = task / x.packets.nranks;
        uint32_t at = tam_entries_before(tam_indices_of(x.packets, r), tam_count_of(x.packets, r),
                                         range * TAM_RANGE);
        x.ranges.runs[task] = at;
        if (is_exclusive(x))
            count_at_border(x, range, at);
    }
}

/* The part of an element below n. */
static __device__ uint32_t packets_part_of(const tam_cuda_exchange &x, uint32_t index) {
    uint32_t from = x.ranges.first_chunk[index / TAM_RANGE];
    uint32_t last = x.ranges.first_chunk[index / TAM_RANGE + 1];
    while (from < last) { /* the last chunk that begins at or before it */
        uint32_t middle = from + (last - from + 1) / 2;
        if (x.grid.chunks[middle].begin <= index)
            from = middle;
        else
            last = middle - 1;
    }
    return x.grid.chunks[from].part;
}

static __device__ uint32_t fault_of(const tam_cuda_exchange &x, uint32_t part, const uint32_t *list,
                                    uint32_t i) {
    uint32_t index = list[i];
    uint64_t end = tam_scheme_is_sparse_rows(x.scheme) ? x.rows.count : x.grid.n;
    if (index >= end || (i > 0 && index <= list[i - 1]))
        return 1u << TAM_REFUSED_ORDER;
    if (x.scheme.ownership != TAM_OWN_ALL && packets_part_of(x, index) != part)
        return 1u << TAM_REFUSED_OWNER;
    return 0;
}

/* This thread's part of the checksum of a piece of the indices, or of their codes. */
static __device__ uint64_t part_of_indices(const tam_cuda_exchange &x, uint32_t r, uint32_t piece) {
    uint32_t bytes =
        tam_is_packed(x.packets) ? tam_code_bytes_of(x.packets, r) : tam_count_of(x.packets, r) * 4;
    return tam_part_of_bytes(TAM_SUM_INDICES, tam_codes_of(x.packets, r), bytes, piece * CHECKED,
                             (piece + 1) * CHECKED);
}

/* pairs: of the values from entry `first` on, before `end`. @param faults  [in,out] */
static __device__ uint64_t part_of_values(const tam_cuda_exchange &x, uint32_t r, uint32_t first,
                                          uint32_t end, uint32_t *faults) {
    const tam_cuda_value_codec &codec = x.packets.value_codec;
    const unsigned char *values = tam_values_of(x.packets, r);
    uint32_t block = first / TAM_VALUE_BLOCK + threadIdx.x;
    if (block * TAM_VALUE_BLOCK < end &&
        !tam_value_valid(codec, values + (uint64_t)block * tam_value_block_bytes(codec)))
        *faults |= 1u << TAM_REFUSED_CODE;
    uint32_t begin = tam_value_encoded_bytes(codec, first),
             bytes = tam_value_encoded_bytes(codec, end);
    return tam_part_of_bytes(TAM_SUM_VALUES, values, bytes, begin / 4, (bytes + 3) / 4);
}

/* What a thread has found in the pieces of one rank's list. */
struct findings {
    uint64_t sum;
    uint32_t faults;
};

/* Check one piece of the list of rank r; the first piece includes the header. */
static __device__ void check_piece(const tam_cuda_exchange &x, uint32_t r, uint32_t piece,
                                   findings *found) {
    const uint32_t *list = tam_indices_of(x.packets, r);
    uint32_t count = tam_count_of(x.packets, r), begin = piece * CHECKED;
    uint32_t end = begin + CHECKED < count ? begin + CHECKED : count;
    uint32_t part = x.still ? r : tam_scheme_part(x.scheme, x.params->step, r, x.packets.nranks);
    if (piece > 0 && begin >= count && !tam_is_packed(x.packets)) /* uniform in the block */
        return;
    found->sum += piece == 0 ? tam_part_of_header(x.packets, r) : 0;
    found->sum += part_of_indices(x, r, piece);
    if (x.packets.with_values && begin < end)
        found->sum += part_of_values(x, r, begin, end, &found->faults);
    for (uint32_t i = begin + threadIdx.x; i < end; i += TAM_BLOCK_THREADS)
        found->faults |= fault_of(x, part, list, i);
}

/* All threads of the block, at the end of its pieces of one rank's list. */
static __device__ void report_findings(const tam_cuda_exchange &x, uint32_t r,
                                       const findings &found) {
    uint64_t sum = tam_block_sum(found.sum);
    if (threadIdx.x == 0)
        tam_add64(&x.packet_checks[r].checksum, sum);
    if (found.faults)
        atomicOr(&x.packet_checks[r].faults, found.faults);
}

static __device__ void check_lists(const tam_cuda_exchange &x) {
    uint32_t pieces = checks_of(x.packets), rank = 0;
    findings found = {0, 0};
    for (uint64_t i = blockIdx.x; i < (uint64_t)pieces * x.packets.nranks; i += gridDim.x) {
        uint32_t r = (uint32_t)(i / pieces);
        if (r != rank) { /* uniform in the block */
            report_findings(x, rank, found);
            found = {0, 0};
            rank = r;
        }
        check_piece(x, r, (uint32_t)(i % pieces), &found);
    }
    report_findings(x, rank, found);
}

/* -- check: the verdict ----------------------------------------------------------------------- */

static __device__ tam_refusal packets_refuse(const tam_cuda_exchange &x, uint32_t r) {
    const tam_header *h = tam_header_of(x.packets, r);
    const tam_cuda_packet_check *check = &x.packet_checks[r];
    const tam_header_due due = tam_due_of(x, r);
    tam_refusal why = tam_header_check(h, &due);
    if (why != TAM_REFUSED_NOTHING)
        return why;
    if (tam_is_packed(x.packets) ? h->index_bytes > x.packets.index_bytes
                                 : h->index_bytes != h->count * sizeof(uint32_t))
        return TAM_REFUSED_BYTES;
    if (h->check != tam_header_check_of(&due, check->checksum))
        return TAM_REFUSED_CHECKSUM;
    if (check->faults & 1u << TAM_REFUSED_CODE)
        return TAM_REFUSED_CODE;
    if (tam_is_packed(x.packets) && check->faults) /* codes ascend */
        return TAM_REFUSED_OWNER;
    if (check->faults & 1u << TAM_REFUSED_ORDER)
        return TAM_REFUSED_ORDER;
    return check->faults ? TAM_REFUSED_OWNER : TAM_REFUSED_NOTHING;
}

/* Sums of integers over the ranks: the order of addition does not matter. */
struct totals {
    unsigned long long selected, candidates, deferred, nonfinite;
    uint32_t unknown, rescans;
    uint32_t refused;         /* the first rank here whose packet is refused, or nranks */
    uint32_t found_nonfinite; /* the first of all ranks that found NaN or Inf, or UINT32_MAX */
};

/* Results of shards: the first rank of the first node whose sum was not finite. */
static __device__ uint32_t who_found_nonfinite(const tam_cuda_packets &s, uint32_t r) {
    return s.nwords > 0 ? tam_words_of(s, r)[s.nwords - 1] * s.nranks : tam_rank_of(s, r);
}

static __device__ void packets_add_header(const tam_cuda_exchange &x, uint32_t r, totals *all) {
    const tam_header *h = tam_header_of(x.packets, r);
    const float *counters = tam_counters_of(x.packets, r);
    unsigned long long deferred = tam_counter_get(counters, TAM_COUNTER_DEFERRED);
    if (packets_refuse(x, r))
        atomicMin(&all->refused, r);
    if (tam_header_flags(h) & TAM_HEADER_NONFINITE)
        atomicMin(&all->found_nonfinite, who_found_nonfinite(x.packets, r));
    if (counters[TAM_COUNTER_UNKNOWN] > 0.0f)
        atomicOr(&all->unknown, 1u);
    atomicAdd(&all->rescans, (uint32_t)tam_counter_whole(counters[TAM_COUNTER_RESCANS]));
    atomicAdd(&all->selected, h->count + deferred);
    atomicAdd(&all->deferred, deferred);
    atomicAdd(&all->candidates,
              (unsigned long long)tam_counter_get(counters, TAM_COUNTER_CANDIDATES));
    atomicAdd(&all->nonfinite,
              (unsigned long long)tam_counter_get(counters, TAM_COUNTER_NONFINITE));
}

static __device__ void packets_conclude(const tam_cuda_exchange &x, const totals &all) {
    tam_cuda_verdict *verdict = &x.scratch->verdict;
    verdict->selected = all.selected;
    verdict->deferred = all.deferred;
    verdict->known = !all.unknown;
    verdict->candidates = all.unknown ? 0 : all.candidates;
    verdict->rescans = all.rescans;
    verdict->nonfinite = all.nonfinite;
    if (all.refused < x.packets.nranks) {
        verdict->status = TAMIS_E_PROTOCOL;
        verdict->refused = packets_refuse(x, all.refused);
        verdict->rank = tam_rank_of(x.packets, all.refused);
    } else if (all.found_nonfinite < UINT32_MAX && x.nonfinite != TAMIS_NONFINITE_DROP) {
        verdict->status = TAMIS_E_NONFINITE;
        verdict->rank = all.found_nonfinite;
    }
    if (verdict->status != TAMIS_OK)
        verdict->sent_sum = 0.0;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, 2)
    packets_check(const tam_cuda_exchange x) {
    __shared__ totals all;
    if (x.scratch->verdict.status != TAMIS_OK) /* as the packet was sealed: broken */
        return;
    check_lists(x);
    search_runs(x);
    if (!tam_last_block(&x.scratch->checked))
        return;
    if (threadIdx.x == 0) {
        all = totals();
        all.refused = x.packets.nranks;
        all.found_nonfinite = UINT32_MAX;
    }
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < x.packets.nranks; r += TAM_BLOCK_THREADS)
        packets_add_header(x, r, &all);
    __syncthreads();
    if (threadIdx.x == 0)
        packets_conclude(x, all);
    __syncthreads();
    if (is_exclusive(x) && x.scratch->verdict.status == TAMIS_OK)
        tam_begin_union(x);
}

/* -- launch ----------------------------------------------------------------------------------- */

extern "C" int tam_launch_seal(const tam_cuda_exchange *job, void *stream) {
    uint64_t count = job->packets.with_values ? tam_pieces_of(job->packets.capacity) : 1;
    return tam_launch(packets_seal, tam_blocks_for(job, count), stream, *job);
}

extern "C" int tam_launch_check(const tam_cuda_exchange *job, void *stream) {
    uint64_t pieces = checks_of(job->packets);
    return tam_launch(packets_check, tam_blocks_for(job, pieces * job->packets.nranks), stream,
                      *job);
}
