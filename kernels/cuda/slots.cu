/* SPDX-License-Identifier: MIT
 *
 * The messages of a step: seal the own slot (its head: seal.cuh), and check those of all ranks
 * before they are used. The last block of a check writes the verdict, the same on all ranks.
 */
#include "kernels/cuda/ranges.cuh"
#include "kernels/cuda/seal.cuh"

/* -- seal ------------------------------------------------------------------------------------- */

/* pairs: gather one piece of the own list and encode it. @return this thread's sum of squares of
 * what is given */
static __device__ double give_piece(const tam_cuda_exchange &x, uint32_t first, uint32_t end,
                                    unsigned char *values) {
    const uint32_t *indices = tam_indices_of(x.slots, x.slots.rank);
    const tam_cuda_wire &wire = x.slots.wire;
    double squares = 0.0, kept = 0.0;
    for (uint32_t at = first; at < end; at += TAM_WIRE_BLOCK) { /* all threads alike */
        uint32_t i = at + threadIdx.x,
                 count = end - at < TAM_WIRE_BLOCK ? end - at : TAM_WIRE_BLOCK;
        float value = threadIdx.x < count ? x.acc[indices[i]] : 0.0f;
        uint64_t block = (uint64_t)(at / TAM_WIRE_BLOCK) * tam_wire_block_bytes(wire);
        float error = tam_wire_error(value, tam_wire_round(wire, value, count, values + block));
        if (threadIdx.x >= count) /* fp2 makes something of nothing */
            continue;
        squares += (double)value * value;
        kept += (double)error * error;
        if (x.errors)
            x.errors[i] = error;
    }
    return squares - kept;
}

/* The same, with checksum and squares. Pieces of any wire type are whole words. */
static __device__ __forceinline__ void gather_piece(const tam_cuda_exchange &x, uint32_t piece) {
    unsigned char *values = tam_values_of(x.slots, x.slots.rank);
    uint32_t first = piece * TAM_PIECE, left = x.picked->count - first;
    uint32_t end = first + (left < TAM_PIECE ? left : TAM_PIECE);
    double squares = give_piece(x, first, end, values);
    __syncthreads(); /* the codes are written */
    uint32_t begin = tam_wire_list_bytes(x.slots.wire, first);
    uint32_t bytes = tam_wire_list_bytes(x.slots.wire, end);
    uint64_t sum = tam_block_sum(
        tam_share_of_bytes(TAM_SUM_VALUES, values, bytes, begin / 4, (bytes + 3) / 4));
    squares = tam_block_fold(squares);
    if (threadIdx.x == 0) {
        tam_add64(&x.scratch->sent, sum);
        x.piece_sums[piece] = squares;
    }
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, TAM_UNSPILLED)
    seal(const tam_cuda_exchange x) {
    uint32_t pieces = tam_pieces_of(x.slots.with_values ? x.picked->count : 0);
    for (uint32_t piece = blockIdx.x; piece < pieces; piece += gridDim.x)
        gather_piece(x, piece);
    if (tam_last_block(&x.scratch->sealed))
        tam_seal_slot(x, tam_block_fold_list(x.piece_sums, pieces));
}

/* -- check: lists ----------------------------------------------------------------------------- */

/* Entries, or words of codes, that a block checks at a time. Few: to find the part of an entry
 * takes some ten loads, one after another, and only other warps hide them. */
enum { CHECKED = 512 };

/* Of the longest list. */
TAM_SHARED uint32_t checks_of(const tam_cuda_slots &slots) {
    return (tam_slot_words(slots) + CHECKED - 1) / CHECKED;
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
    uint64_t tasks = (uint64_t)(x.ranges.count + 1) * x.slots.nranks;
    for (uint64_t task = tam_thread_of_grid(); task < tasks; task += tam_threads_of_grid()) {
        uint32_t r = (uint32_t)(task % x.slots.nranks);
        uint64_t range = task / x.slots.nranks;
        uint32_t at = tam_entries_before(tam_indices_of(x.slots, r), tam_count_of(x.slots, r),
                                         range * TAM_RANGE);
        x.ranges.runs[task] = at;
        if (is_exclusive(x))
            count_at_border(x, range, at);
    }
}

/* The part of an element below n. */
static __device__ uint32_t part_of(const tam_cuda_exchange &x, uint32_t index) {
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
    uint64_t end = tam_scheme_rowed(x.scheme) ? x.rows.count : x.grid.n;
    if (index >= end || (i > 0 && index <= list[i - 1]))
        return 1u << TAM_REFUSED_ORDER;
    if (x.scheme.ownership != TAM_OWN_ALL && part_of(x, index) != part)
        return 1u << TAM_REFUSED_OWNER;
    return 0;
}

/* This thread's part of the checksum of a piece of the indices, or of their codes. */
static __device__ uint64_t share_of_indices(const tam_cuda_exchange &x, uint32_t r,
                                            uint32_t piece) {
    uint32_t bytes =
        tam_is_packed(x.slots) ? tam_code_bytes_of(x.slots, r) : tam_count_of(x.slots, r) * 4;
    return tam_share_of_bytes(TAM_SUM_INDICES, tam_codes_of(x.slots, r), bytes, piece * CHECKED,
                              (piece + 1) * CHECKED);
}

/* pairs: of the values from entry `first` on, before `end`. @param faults  [in,out] */
static __device__ uint64_t share_of_values(const tam_cuda_exchange &x, uint32_t r, uint32_t first,
                                           uint32_t end, uint32_t *faults) {
    const tam_cuda_wire &wire = x.slots.wire;
    const unsigned char *values = tam_values_of(x.slots, r);
    uint32_t block = first / TAM_WIRE_BLOCK + threadIdx.x;
    if (block * TAM_WIRE_BLOCK < end &&
        !tam_wire_valid(wire, values + (uint64_t)block * tam_wire_block_bytes(wire)))
        *faults |= 1u << TAM_REFUSED_CODE;
    uint32_t begin = tam_wire_list_bytes(wire, first), bytes = tam_wire_list_bytes(wire, end);
    return tam_share_of_bytes(TAM_SUM_VALUES, values, bytes, begin / 4, (bytes + 3) / 4);
}

/* What a thread has found in the pieces of one rank's list. */
struct findings {
    uint64_t sum;
    uint32_t faults;
};

/* Check one piece of the list of rank r; the first piece includes the head. */
static __device__ void check_piece(const tam_cuda_exchange &x, uint32_t r, uint32_t piece,
                                   findings *found) {
    const uint32_t *list = tam_indices_of(x.slots, r);
    uint32_t count = tam_count_of(x.slots, r), begin = piece * CHECKED;
    uint32_t end = begin + CHECKED < count ? begin + CHECKED : count;
    uint32_t part = x.still ? r : tam_scheme_part(x.scheme, x.turn->step, r, x.slots.nranks);
    if (piece > 0 && begin >= count && !tam_is_packed(x.slots)) /* all threads alike */
        return;
    found->sum += piece == 0 ? tam_share_of_head(x.slots, r) : 0;
    found->sum += share_of_indices(x, r, piece);
    if (x.slots.with_values && begin < end)
        found->sum += share_of_values(x, r, begin, end, &found->faults);
    for (uint32_t i = begin + threadIdx.x; i < end; i += TAM_BLOCK_THREADS)
        found->faults |= fault_of(x, part, list, i);
}

/* All threads of the block, at the end of its pieces of one rank's list. */
static __device__ void report_findings(const tam_cuda_exchange &x, uint32_t r,
                                       const findings &found) {
    uint64_t sum = tam_block_sum(found.sum);
    if (threadIdx.x == 0)
        tam_add64(&x.tallies[r].checksum, sum);
    if (found.faults)
        atomicOr(&x.tallies[r].faults, found.faults);
}

static __device__ void check_lists(const tam_cuda_exchange &x) {
    uint32_t pieces = checks_of(x.slots), rank = 0;
    findings found = {0, 0};
    for (uint64_t i = blockIdx.x; i < (uint64_t)pieces * x.slots.nranks; i += gridDim.x) {
        uint32_t r = (uint32_t)(i / pieces);
        if (r != rank) { /* all threads alike */
            report_findings(x, rank, found);
            found = {0, 0};
            rank = r;
        }
        check_piece(x, r, (uint32_t)(i % pieces), &found);
    }
    report_findings(x, rank, found);
}

/* -- check: the verdict ----------------------------------------------------------------------- */

static __device__ tam_refusal refuse(const tam_cuda_exchange &x, uint32_t r) {
    const tam_head *h = tam_header_of(x.slots, r);
    const tam_cuda_tally *tally = &x.tallies[r];
    const tam_head_due due = tam_due_of(x, r);
    tam_refusal why = tam_head_check(h, &due);
    if (why != TAM_REFUSED_NOTHING)
        return why;
    if (tam_is_packed(x.slots) ? h->index_bytes > x.slots.index_bytes
                               : h->index_bytes != h->count * sizeof(uint32_t))
        return TAM_REFUSED_BYTES;
    if (h->check != tam_head_check_of(&due, tally->checksum))
        return TAM_REFUSED_CHECKSUM;
    if (tally->faults & 1u << TAM_REFUSED_CODE)
        return TAM_REFUSED_CODE;
    if (tam_is_packed(x.slots) && tally->faults) /* codes ascend */
        return TAM_REFUSED_OWNER;
    if (tally->faults & 1u << TAM_REFUSED_ORDER)
        return TAM_REFUSED_ORDER;
    return tally->faults ? TAM_REFUSED_OWNER : TAM_REFUSED_NOTHING;
}

/* Sums of integers over the ranks: the order of addition does not matter. */
struct totals {
    unsigned long long picked, candidates, deferred, nonfinite;
    uint32_t unknown, rescans;
    uint32_t refused;       /* the first rank here whose slot is refused, or nranks */
    uint32_t met_nonfinite; /* the first of the communicator that found NaN or Inf, or UINT32_MAX */
};

/* Results of slices: the first rank of the first node whose sum was not finite. */
static __device__ uint32_t who_met_nonfinite(const tam_cuda_slots &s, uint32_t r) {
    return s.nwords > 0 ? tam_words_of(s, r)[s.nwords - 1] * s.nranks : tam_rank_of(s, r);
}

static __device__ void add_header(const tam_cuda_exchange &x, uint32_t r, totals *all) {
    const tam_head *h = tam_header_of(x.slots, r);
    const float *tallies = tam_tallies_of(x.slots, r);
    unsigned long long deferred = tam_tally_counted(tallies, TAM_TALLY_DEFERRED);
    if (refuse(x, r))
        atomicMin(&all->refused, r);
    if (tam_head_flags(h) & TAM_HEAD_NONFINITE)
        atomicMin(&all->met_nonfinite, who_met_nonfinite(x.slots, r));
    if (tallies[TAM_TALLY_UNKNOWN] > 0.0f)
        atomicOr(&all->unknown, 1u);
    atomicAdd(&all->rescans, (uint32_t)tam_tally_whole(tallies[TAM_TALLY_RESCANS]));
    atomicAdd(&all->picked, h->count + deferred);
    atomicAdd(&all->deferred, deferred);
    atomicAdd(&all->candidates,
              (unsigned long long)tam_tally_counted(tallies, TAM_TALLY_CANDIDATES));
    atomicAdd(&all->nonfinite, (unsigned long long)tam_tally_counted(tallies, TAM_TALLY_NONFINITE));
}

static __device__ void conclude(const tam_cuda_exchange &x, const totals &all) {
    tam_cuda_verdict *verdict = &x.scratch->verdict;
    verdict->picked = all.picked;
    verdict->deferred = all.deferred;
    verdict->known = !all.unknown;
    verdict->candidates = all.unknown ? 0 : all.candidates;
    verdict->rescans = all.rescans;
    verdict->nonfinite = all.nonfinite;
    if (all.refused < x.slots.nranks) {
        verdict->status = TAMIS_E_PROTOCOL;
        verdict->refused = refuse(x, all.refused);
        verdict->rank = tam_rank_of(x.slots, all.refused);
    } else if (all.met_nonfinite < UINT32_MAX && x.nonfinite != TAMIS_NONFINITE_DROP) {
        verdict->status = TAMIS_E_NONFINITE;
        verdict->rank = all.met_nonfinite;
    }
    if (verdict->status != TAMIS_OK)
        verdict->picked_sum = 0.0;
}

static __global__ void __launch_bounds__(TAM_BLOCK_THREADS, 2) check(const tam_cuda_exchange x) {
    __shared__ totals all;
    if (x.scratch->verdict.status != TAMIS_OK) /* as the slot was sealed: broken */
        return;
    check_lists(x);
    search_runs(x);
    if (!tam_last_block(&x.scratch->checked))
        return;
    if (threadIdx.x == 0) {
        all = totals();
        all.refused = x.slots.nranks;
        all.met_nonfinite = UINT32_MAX;
    }
    __syncthreads();
    for (uint32_t r = threadIdx.x; r < x.slots.nranks; r += TAM_BLOCK_THREADS)
        add_header(x, r, &all);
    __syncthreads();
    if (threadIdx.x == 0)
        conclude(x, all);
    __syncthreads();
    if (is_exclusive(x) && x.scratch->verdict.status == TAMIS_OK)
        tam_begin_union(x);
}

/* -- launch ----------------------------------------------------------------------------------- */

extern "C" int tam_launch_seal(const tam_cuda_exchange *job, void *stream) {
    uint64_t count = job->slots.with_values ? tam_pieces_of(job->slots.capacity) : 1;
    return tam_launch(seal, tam_blocks_for(job, count), stream, *job);
}

extern "C" int tam_launch_check(const tam_cuda_exchange *job, void *stream) {
    uint64_t pieces = checks_of(job->slots);
    return tam_launch(check, tam_blocks_for(job, pieces * job->slots.nranks), stream, *job);
}
