/* SPDX-License-Identifier: MIT
 *
 * All memory is taken before anything is sent that needs it, and lies in the ledger, so that a
 * report like the last one allocates nothing, and a job that outlives its call has where to write.
 */
#include "collectives/energy/report.h"

#define CALL "tamis_energy_report"

enum {
    CHUNKS_BYTES = 1 << 22, /* of all ranks together, about */
    CHUNK_LEAST = 4096,
    CHUNK_MOST = 65536
};

/* What a rank shows first. */
typedef struct card {
    tam_board_head head;
    uint64_t version, entries;
    uint64_t reports, digest, ndomains, nviews;   /* of its ledger */
    uint64_t domains_room, views_room, desk_room; /* and what it has memory for */
} card;

_Static_assert(sizeof(card) <= TAM_BOARD_BYTES, "a card fits the board");

/* What a rank shows then: this, and its entries. */
typedef struct block {
    tam_energy_run run;
    uint64_t entries;
} block;

/* What the cards come to; the same on all ranks. */
typedef struct plan {
    uint32_t nranks, most, entries; /* of one rank, of all */
    uint32_t source;                /* whose ledger all take over, if they differ */
    bool differ, grows;
    size_t block_bytes, chunk_bytes, desk_bytes;
    size_t ledger_bytes, padded_bytes; /* of the source, packed; in whole chunks */
    uint64_t domains_room, views_room;
} plan;

/* A job of all-gathers: one of `bytes`, or of chunks that add up to `bytes`. */
typedef struct gather_job {
    tam_job job;
    const unsigned char *send;
    unsigned char *recv;
    size_t bytes;
    unsigned char *whole; /* chunks: where they are joined */
    size_t chunk;
    uint32_t source;
} gather_job;

_Static_assert(sizeof(gather_job) <= TAM_DESK_BYTES, "a gather fits the desk");

/* -- cards ------------------------------------------------------------------------------------ */

static const card *card_of(const unsigned char *board, uint32_t rank) {
    return tam_board_entry(board, rank);
}

static tamis_status judge_cards(const unsigned char *board, uint32_t nranks) {
    TAM_TRY(tam_board_failure(board, nranks, "report its energy"));
    for (uint32_t r = 0; r < nranks; r++) {
        const card *c = card_of(board, r);
        if (c->version != card_of(board, 0)->version)
            return tam_fail(
                TAMIS_E_MISMATCH, "library version differs: rank 0 has %llu, rank %u has %llu",
                (unsigned long long)card_of(board, 0)->version, r, (unsigned long long)c->version);
        if (c->entries > TAM_REPORT_ENTRIES_MOST)
            return tam_fail(TAMIS_E_ARGUMENT, "rank %u shows %llu domains of energy, at most %d", r,
                            (unsigned long long)c->entries, TAM_REPORT_ENTRIES_MOST);
        if (c->ndomains >= TAM_NOBODY || c->nviews >= TAM_NOBODY)
            return tam_fail(TAMIS_E_ARGUMENT, "rank %u has a ledger of %llu domains", r,
                            (unsigned long long)c->ndomains);
    }
    return TAMIS_OK;
}

static tamis_status judge_room(const unsigned char *board, uint32_t nranks) {
    return tam_board_failure(board, nranks, "report its energy");
}

static size_t greater(size_t a, size_t b) {
    return a > b ? a : b;
}

static plan make_plan(const unsigned char *board, uint32_t nranks) {
    plan p = {.nranks = nranks};
    for (uint32_t r = 0; r < nranks; r++) {
        const card *c = card_of(board, r), *first = card_of(board, 0);
        p.entries += (uint32_t)c->entries;
        p.most = (uint32_t)greater(p.most, c->entries);
        p.differ |= c->reports != first->reports || c->digest != first->digest;
        if (c->reports > card_of(board, p.source)->reports)
            p.source = r;
    }
    const card *source = card_of(board, p.source);
    size_t chunk = CHUNKS_BYTES / nranks / 64 * 64;
    p.chunk_bytes = chunk < CHUNK_LEAST ? CHUNK_LEAST : chunk > CHUNK_MOST ? CHUNK_MOST : chunk;
    p.block_bytes = sizeof(block) + p.most * sizeof(tam_energy_entry);
    p.desk_bytes = (nranks + (size_t)1) * p.block_bytes;
    if (p.differ) {
        p.ledger_bytes = tam_ledger_packed_bytes(source->ndomains, source->nviews);
        p.padded_bytes = (p.ledger_bytes + p.chunk_bytes - 1) / p.chunk_bytes * p.chunk_bytes;
        p.desk_bytes = greater(p.desk_bytes, p.padded_bytes + (nranks + (size_t)1) * p.chunk_bytes);
    }
    p.domains_room = source->ndomains + p.entries;
    p.views_room = source->nviews + p.entries;
    for (uint32_t r = 0; r < nranks; r++) {
        const card *c = card_of(board, r);
        p.grows |= c->desk_room < p.desk_bytes || c->domains_room < p.domains_room ||
                   c->views_room < p.views_room;
    }
    return p;
}

/* -- rounds ----------------------------------------------------------------------------------- */

static tamis_status show_cards(tamis_comm *comm, const tam_ledger *ledger, uint32_t n,
                               tamis_status status, uint64_t deadline_ns) {
    card mine = {.head = {(uint64_t)status, CALL}, .version = TAMIS_VERSION};
    if (status == TAMIS_OK) {
        mine.entries = n;
        mine.reports = ledger->reports;
        mine.digest = ledger->digest;
        mine.ndomains = ledger->ndomains;
        mine.nviews = ledger->nviews;
        mine.domains_room = ledger->domains_room;
        mine.views_room = ledger->views_room;
        mine.desk_room = ledger->desk_bytes;
    }
    return tam_board_show(comm, &mine, sizeof mine, judge_cards, deadline_ns);
}

static tamis_status take_room(const plan *p, tam_ledger *ledger) {
    TAM_TRY(tam_ledger_room(ledger, p->domains_room, p->views_room));
    return tam_ledger_desk(ledger, p->desk_bytes);
}

static tamis_status show_room(tamis_comm *comm, const plan *p, tam_ledger *ledger,
                              uint64_t deadline_ns) {
    card mine = {.head = {(uint64_t)take_room(p, ledger), CALL}};
    return tam_board_show(comm, &mine, sizeof mine, judge_room, deadline_ns);
}

static tamis_status run_gather(tam_job *job, tam_link *link) {
    gather_job *g = (gather_job *)(void *)job;
    if (!g->whole)
        return link->transport->allgather(link->self, g->send, g->bytes, g->recv, &link->call);
    for (size_t at = 0; at < g->bytes; at += g->chunk) {
        const unsigned char *send = link->rank == g->source ? g->whole + at : g->send;
        TAM_TRY(link->transport->allgather(link->self, send, g->chunk, g->recv, &link->call));
        if (link->rank != g->source)
            memcpy(g->whole + at, g->recv + g->source * g->chunk, g->chunk);
    }
    return TAMIS_OK;
}

/* A job that was given up may still write to the desk of the ledger: it is left to it. */
static tamis_status run_job(tamis_comm *comm, const gather_job *what, tam_ledger *ledger) {
    gather_job *g = (gather_job *)(void *)comm->desk;
    memcpy(g, what, sizeof *g);
    tamis_status status = tam_comm_run(comm, &g->job);
    if (status != TAMIS_OK &&
        (comm->transport->capabilities & (TAM_CAP_LINGERS | TAM_CAP_THREADED)) != 0)
        tam_ledger_leave_desk(ledger);
    return status;
}

/* The desk: the ledger as bytes, chunks of all ranks, a chunk of zeros. */
static tamis_status take_over(tamis_comm *comm, const plan *p, tam_ledger *ledger,
                              uint64_t deadline_ns) {
    unsigned char *whole = ledger->desk, *recv = whole + p->padded_bytes;
    unsigned char *zeros = recv + p->nranks * p->chunk_bytes;
    gather_job g = {.job = {.run = run_gather, .deadline_ns = deadline_ns, .purpose = CALL},
                    .send = zeros,
                    .recv = recv,
                    .bytes = p->padded_bytes,
                    .whole = whole,
                    .chunk = p->chunk_bytes,
                    .source = p->source};
    memset(zeros, 0, p->chunk_bytes);
    memset(whole, 0, p->padded_bytes);
    if (comm->rank == p->source)
        tam_ledger_pack(ledger, whole);
    TAM_TRY(run_job(comm, &g, ledger));
    if (comm->rank == p->source)
        return TAMIS_OK;
    tamis_status status = tam_ledger_unpack(ledger, whole, p->ledger_bytes);
    if (status == TAMIS_OK) {
        tam_log(TAM_INFO, "energy: rank %u takes over the ledger of rank %u, of %llu reports",
                comm->rank, p->source, (unsigned long long)ledger->reports);
        return TAMIS_OK;
    }
    status = tam_fail(TAMIS_E_PROTOCOL, "rank %u: the ledger of rank %u came damaged", comm->rank,
                      p->source);
    tam_comm_lose(comm, status); /* the others have gone on */
    return status;
}

/* The desk: blocks of all ranks, the own one. */
static tamis_status gather_entries(tamis_comm *comm, const plan *p, const tam_energy_entry *mine,
                                   uint32_t n, const tam_energy_run *run, tam_ledger *ledger,
                                   uint64_t deadline_ns) {
    unsigned char *recv = ledger->desk, *send = recv + p->nranks * p->block_bytes;
    block head = {*run, n};
    tam_energy_entry *entries = (tam_energy_entry *)(void *)(send + sizeof head);
    gather_job g = {.job = {.run = run_gather, .deadline_ns = deadline_ns, .purpose = CALL},
                    .send = send,
                    .recv = recv,
                    .bytes = p->block_bytes};
    memset(send, 0, p->block_bytes);
    memcpy(send, &head, sizeof head);
    for (uint32_t i = 0; i < n; i++) {
        entries[i] = mine[i];
        entries[i].meter = ledger->self;
    }
    return run_job(comm, &g, ledger);
}

/* -- what came -------------------------------------------------------------------------------- */

static void add_run(tam_energy_run *sum, const tam_energy_run *one) {
    if (one->time_ns > sum->time_ns)
        sum->time_ns = one->time_ns;
    if (one->steps > sum->steps)
        sum->steps = one->steps;
    sum->wire_bytes += one->wire_bytes;
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++)
        sum->exposure_ns[k] += one->exposure_ns[k];
}

/* Blocks become one row of entries, at the beginning of the desk. @return entries */
static uint32_t join(const plan *p, tam_ledger *ledger, tam_energy_run *sum) {
    unsigned char *desk = ledger->desk;
    tam_energy_entry *row = (tam_energy_entry *)(void *)desk;
    uint32_t at = 0;
    memset(sum, 0, sizeof *sum);
    for (uint32_t r = 0; r < p->nranks; r++) {
        const unsigned char *from = desk + r * p->block_bytes;
        block head;
        memcpy(&head, from, sizeof head);
        uint32_t count = head.entries < p->most ? (uint32_t)head.entries : p->most;
        add_run(sum, &head.run);
        memmove(&row[at], from + sizeof head, count * sizeof row[0]);
        for (uint32_t i = 0; i < count; i++)
            row[at + i].rank = r;
        at += count;
    }
    return at;
}

static tamis_status check(const tam_energy_entry *mine, uint32_t n, const tam_energy_run *run,
                          const tam_ledger *ledger) {
    if (!ledger || !run || (n && !mine))
        return tam_fail(TAMIS_E_ARGUMENT, "a report of energy without %s",
                        !ledger ? "ledger"
                        : !run  ? "run"
                                : "entries");
    return TAMIS_OK;
}

tamis_status tam_report_gather(tamis_comm *comm, const tam_energy_entry *mine, uint32_t n,
                               const tam_energy_run *run, tam_ledger *ledger) {
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, "a report of energy: comm is NULL");
    TAM_TRY(tam_comm_check(comm));
    uint64_t deadline_ns = tam_comm_deadline(comm);
    tam_energy_run all;
    TAM_TRY(show_cards(comm, ledger, n, check(mine, n, run, ledger), deadline_ns));
    plan p = make_plan(comm->board, comm->nranks);
    if (p.grows)
        TAM_TRY(show_room(comm, &p, ledger, deadline_ns));
    if (p.differ)
        TAM_TRY(take_over(comm, &p, ledger, deadline_ns));
    TAM_TRY(gather_entries(comm, &p, mine, n, run, ledger, deadline_ns));
    uint32_t count = join(&p, ledger, &all);
    return tam_ledger_take(ledger, ledger->desk, count, &all);
}

tamis_status tam_report_decline(tamis_comm *comm, tamis_status status) {
    return show_cards(comm, NULL, 0, status, 0);
}
