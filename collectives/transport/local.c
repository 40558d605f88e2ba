/* SPDX-License-Identifier: MIT
 *
 * Ranks as threads of one process. Every operation is: post a pointer and its purpose, barrier,
 * compare, read the other ranks' memory, barrier. Three ranks all-gather:
 *
 *     rank 0   post a   |         | copies a b c |         |
 *     rank 1   post b   | barrier | copies a b c | barrier |
 *     rank 2   post c   |         | copies a b c |         |
 */
#include "lib/base/base.h"
#include "collectives/transport/local_hub.h"
#include "collectives/transport/sum.h"
#include "lib/base/tree.h"
#include "lib/transport/wait.h"

#include <errno.h>
#include <stdio.h>
#include <time.h>

static void break_by_deadline(tam_hub *h, uint32_t rank, const tam_call *call) {
    char missing[128], waited[TAM_WAIT_TEXT], cause[256];
    snprintf(cause, sizeof cause, "rank %u%s for rank(s)%s", rank, tam_wait_time_text(call, waited),
             tam_hub_list(h, h->here, false, missing, sizeof missing));
    for (uint32_t r = 0; r < h->nranks; r++)
        h->missed[r] = !h->here[r];
    tam_hub_break(h, TAMIS_E_TIMEOUT, cause);
}

static uint32_t first_missing(const tam_hub *h) {
    uint32_t r = 0;
    while (r + 1 < h->nranks && h->here[r])
        r++;
    return r;
}

static void local_warn_late(const tam_hub *h, uint32_t rank, tam_call *call) {
    char missing[128];
    tam_hub_list(h, h->here, false, missing, sizeof missing);
    tam_wait_warn(call, rank, missing, first_missing(h));
}

static struct timespec time_of(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
}

static void await_generation(tam_local *self, uint64_t generation, tam_call *call) {
    tam_hub *h = self->hub;
    while (h->generation == generation && h->broken == TAMIS_OK) {
        uint64_t late_ns = tam_wait_warn_ns(call);
        struct timespec until = time_of(late_ns < call->deadline_ns ? late_ns : call->deadline_ns);
        int rc = pthread_cond_timedwait(&h->changed, &h->lock, &until);
        if (rc != ETIMEDOUT || h->generation != generation || h->broken != TAMIS_OK)
            continue;
        if (late_ns < call->deadline_ns)
            local_warn_late(h, self->rank, call);
        else
            break_by_deadline(h, self->rank, call);
    }
}

static void stop_reading(tam_local *self) {
    if (self->reading && --self->hub->reading == 0)
        pthread_cond_broadcast(&self->hub->changed);
    self->reading = false;
}

/* No rank leaves the barrier before all have arrived. With `reads`, ranks then read what the others
 * posted. A rank that fails at a later barrier stays until all have read, as its memory may go. */
static tamis_status barrier(tam_local *self, bool reads, tam_call *call) {
    tam_hub *h = self->hub;
    pthread_mutex_lock(&h->lock);
    stop_reading(self);
    uint64_t generation = h->generation;
    h->here[self->rank] = true;
    if (h->broken == TAMIS_OK && ++h->arrived == h->nranks) {
        h->arrived = 0;
        memset(h->here, 0, h->nranks * sizeof h->here[0]);
        h->generation++;
        h->reading = reads ? h->nranks : 0;
        pthread_cond_broadcast(&h->changed);
    }
    await_generation(self, generation, call);
    bool passed = h->generation != generation;
    self->reading = passed && reads;
    while (!passed && h->reading > 0) /* only copies, so not for long */
        pthread_cond_wait(&h->changed, &h->lock);
    tamis_status status = passed ? TAMIS_OK : h->broken;
    char cause[sizeof h->cause];
    memcpy(cause, h->cause, sizeof cause);
    pthread_mutex_unlock(&h->lock);
    return status == TAMIS_OK ? TAMIS_OK : tam_fail(status, "rank %u: %s", self->rank, cause);
}

static tamis_status local_compare(const tam_local *self, uint32_t r, tam_call *call) {
    const tam_posting *mine = &self->hub->posted[self->rank], *theirs = &self->hub->posted[r];
    if (mine->tagged && theirs->tagged)
        TAM_TRY(tam_tag_check(call, r, &theirs->tag));
    if (mine->call == theirs->call && mine->bytes == theirs->bytes &&
        mine->tagged == theirs->tagged)
        return TAMIS_OK;
    return tam_fail(
        TAMIS_E_PROTOCOL,
        "rank %u makes %s of %zu bytes, rank %u %s of %zu bytes: all ranks must use the "
        "reducers of a communicator in the same order",
        self->rank, mine->call, mine->bytes, r, theirs->call, theirs->bytes);
}

/* If postings differ, all ranks find that, and none has read another's memory. */
static tamis_status local_post(tam_local *self, tam_posting mine, tam_call *call) {
    tamis_status status = TAMIS_OK;
    mine.tagged = call->tag != NULL;
    if (mine.tagged)
        mine.tag = *call->tag;
    self->hub->posted[self->rank] = mine;
    TAM_TRY(barrier(self, true, call));
    for (uint32_t r = 0; r < self->hub->nranks && status == TAMIS_OK; r++)
        status = local_compare(self, r, call);
    if (status == TAMIS_OK)
        return TAMIS_OK;
    char sentence[256];
    snprintf(sentence, sizeof sentence, "%s", tamis_last_error());
    TAM_TRY(barrier(self, false, call)); /* first, for the others still read */
    return tam_fail(status, "%s", sentence);
}

tamis_status tam_local_allgather(void *arg, const void *send, size_t bytes, void *recv,
                                 tam_call *call) {
    tam_local *self = arg;
    TAM_TRY(local_post(self, (tam_posting){.call = "an all-gather", .memory = send, .bytes = bytes},
                       call));
    for (uint32_t r = 0; r < self->hub->nranks; r++)
        memcpy((char *)recv + r * bytes, self->hub->posted[r].memory, bytes);
    call->wire_bytes += (uint64_t)bytes * (self->hub->nranks - 1);
    return barrier(self, false, call);
}

/* Sum this rank's shard over all ranks. Only this rank writes its part of it, and no other rank
 * reads that meanwhile. */
static void sum_shard(const tam_local *self, float *values, size_t begin, size_t end) {
    const tam_posting *all = self->hub->posted;
    uint32_t nranks = self->hub->nranks, own = tam_tree_own(nranks);
    tam_tree_block block;
    tam_tree_begin(&block);
    for (size_t at = begin; at < end; at += TAM_TREE_BLOCK) {
        size_t length = end - at < TAM_TREE_BLOCK ? end - at : TAM_TREE_BLOCK;
        for (uint32_t r = 0; r < nranks; r++)
            tam_tree_add_block(&block, tam_tree_vrank(r, own), (const float *)all[r].memory + at,
                               length);
        tam_tree_end_block(&block, length, values + at);
    }
}

/* Take the summed shards of the other ranks. */
static tamis_status take_shards(tam_local *self, float *values, size_t count, tam_call *call) {
    const tam_hub *h = self->hub;
    size_t own = tam_shard_begin(count, self->rank + 1, h->nranks) -
                 tam_shard_begin(count, self->rank, h->nranks);
    TAM_TRY(barrier(self, true, call));
    for (uint32_t r = 0; r < h->nranks; r++) {
        size_t from = tam_shard_begin(count, r, h->nranks);
        size_t to = tam_shard_begin(count, r + 1, h->nranks);
        if (r != self->rank && from < to)
            memcpy(values + from, (const float *)h->posted[r].memory + from,
                   (to - from) * sizeof values[0]);
    }
    /* What a network would carry: others' shards out, this rank's sums to all others. */
    call->wire_bytes += sizeof values[0] * (uint64_t)(count - own + own * (h->nranks - 1));
    return barrier(self, false, call);
}

tamis_status tam_local_allreduce_sum(void *arg, float *values, size_t count, tam_call *call) {
    tam_local *self = arg;
    uint32_t nranks = self->hub->nranks;
    tam_posting mine = {.call = "a sum", .memory = values, .bytes = count * sizeof values[0]};
    TAM_TRY(local_post(self, mine, call));
    sum_shard(self, values, tam_shard_begin(count, self->rank, nranks),
              tam_shard_begin(count, self->rank + 1, nranks));
    return take_shards(self, values, count, call);
}

tamis_status tam_local_alltoall(void *arg, const void *send, const size_t *send_at, void *recv,
                                const size_t *recv_at, tam_call *call) {
    tam_local *self = arg;
    uint32_t rank = self->rank, nranks = self->hub->nranks, odd = nranks;
    TAM_TRY(local_post(self, (tam_posting){.call = "an all-to-all", .memory = send, .at = send_at},
                       call));
    for (uint32_t r = 0; r < nranks; r++) {
        const tam_posting *theirs = &self->hub->posted[r];
        size_t length = theirs->at[rank + 1] - theirs->at[rank];
        if (length == recv_at[r + 1] - recv_at[r])
            memcpy((char *)recv + recv_at[r], (const char *)theirs->memory + theirs->at[rank],
                   length);
        else
            odd = r;
    }
    call->wire_bytes += send_at[nranks] - (send_at[rank + 1] - send_at[rank]);
    TAM_TRY(barrier(self, false, call)); /* first, for the others still read */
    if (odd < nranks)
        return tam_fail(TAMIS_E_PROTOCOL, "rank %u: rank %u sent more or less than it announced",
                        rank, odd);
    return TAMIS_OK;
}

void tam_local_abort(void *arg, tamis_status status, const char *cause) {
    tam_local *self = arg;
    char text[256];
    (void)status;
    snprintf(text, sizeof text, "rank %u aborted the communicator: %.200s", self->rank, cause);
    pthread_mutex_lock(&self->hub->lock);
    tam_hub_break(self->hub, TAMIS_E_ABORTED, text);
    pthread_mutex_unlock(&self->hub->lock);
}
