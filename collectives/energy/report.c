/* SPDX-License-Identifier: MIT
 *
 * Memory lies in the registry, so that a report like the last one allocates nothing, and a job that
 * outlives its call has where to write. It is taken before anything is sent, for as many domains as
 * this rank sees: a rank without any tells the others. Only where others see more, which is rare,
 * more is taken when it is too late for that.
 */
#include "collectives/energy/report.h"

#include "lib/base/fenv.h"
#include "lib/base/hash.h"

#define CALL "tamis_energy_report"

/* What a rank shows first. */
typedef struct record {
    tam_handshake_header header;
    uint32_t version, entries;
    uint64_t now_ns; /* no two reports have the same records */
    tam_energy_sums sums;
} record;

_Static_assert(sizeof(record) <= TAM_RECORD_BYTES, "one rank's record fits");

/* What the records come to; the same on all ranks. */
typedef struct plan {
    uint32_t entries, most; /* of all ranks, of one */
    size_t block_bytes;     /* of one rank */
    size_t messages_bytes;  /* blocks of all ranks, the own one, scratch */
    tam_energy_sums latest; /* of the rank that took part in the most reports */
    uint64_t name;
} plan;

typedef struct gather_job {
    tam_job job;
    const void *send;
    void *recv;
    size_t bytes;
} gather_job;

_Static_assert(sizeof(gather_job) <= TAM_JOB_BYTES, "a gather fits its memory");

/* -- records ---------------------------------------------------------------------------------- */

static const record *report_record_of(const tamis_comm *comm, uint32_t rank) {
    return tam_handshake_record(comm->records, rank);
}

static tamis_status judge_records(const unsigned char *records, uint32_t nranks) {
    const record *first = tam_handshake_record(records, 0);
    TAM_TRY(tam_handshake_failure(records, nranks, "report its energy"));
    for (uint32_t r = 0; r < nranks; r++) {
        const record *c = tam_handshake_record(records, r);
        if (c->version != first->version)
            return tam_fail(TAMIS_E_MISMATCH,
                            "library version differs: rank 0 has %u, rank %u has %u",
                            first->version, r, c->version);
        if (c->entries > TAM_REPORT_ENTRIES_MAX)
            return tam_fail(TAMIS_E_ARGUMENT, "rank %u reports %u energy domains, more than %d", r,
                            c->entries, TAM_REPORT_ENTRIES_MAX);
    }
    return TAMIS_OK;
}

static size_t block_bytes(uint32_t entries) {
    return sizeof(tam_energy_run) + entries * sizeof(tam_energy_entry);
}

static size_t messages_bytes(uint32_t nranks, uint32_t most, uint64_t entries) {
    return (nranks + (size_t)1) * block_bytes(most) + tam_registry_scratch(entries);
}

static plan report_make_plan(const tamis_comm *comm) {
    plan p = {.latest = report_record_of(comm, 0)->sums,
              .name = tam_hash(comm->records, (size_t)comm->nranks * TAM_RECORD_BYTES) | 1};
    for (uint32_t r = 0; r < comm->nranks; r++) {
        const record *c = report_record_of(comm, r);
        p.entries += c->entries;
        p.most = c->entries > p.most ? c->entries : p.most;
        if (c->sums.reports > p.latest.reports)
            p.latest = c->sums;
    }
    p.block_bytes = block_bytes(p.most);
    p.messages_bytes = messages_bytes(comm->nranks, p.most, p.entries);
    return p;
}

static tamis_status show_record(tamis_comm *comm, const tam_registry *registry, tamis_status status,
                                uint64_t deadline_ns) {
    record mine = {.header = {(uint64_t)status, CALL}, .version = TAMIS_VERSION};
    if (status == TAMIS_OK) {
        mine.entries = registry->n;
        mine.now_ns = tam_clock_ns();
        mine.sums = registry->sums;
    }
    return tam_handshake_run(comm, &mine, sizeof mine, judge_records, deadline_ns);
}

/* -- entries ---------------------------------------------------------------------------------- */

static tamis_status run_gather(tam_job *job, tam_link *link) {
    gather_job *g = (gather_job *)(void *)job;
    return link->transport->allgather(link->self, g->send, g->bytes, g->recv, &link->call);
}

/* A job that was given up may still write to the messages of the registry: it is left to it. */
static tamis_status gather_blocks(tamis_comm *comm, const plan *p, const tam_energy_run *run,
                                  tam_registry *registry, uint64_t deadline_ns) {
    unsigned char *recv = registry->messages, *send = recv + comm->nranks * p->block_bytes;
    gather_job *g = (gather_job *)(void *)comm->job_memory;
    memset(send, 0, p->block_bytes);
    memcpy(send, run, sizeof *run);
    tam_registry_offer(registry, &p->latest, p->name,
                       (tam_energy_entry *)(void *)(send + sizeof(tam_energy_run)));
    *g = (gather_job){.job = {.run = run_gather, .deadline_ns = deadline_ns, .purpose = CALL},
                      .send = send,
                      .recv = recv,
                      .bytes = p->block_bytes};
    tamis_status status = tam_comm_run(comm, &g->job);
    if (status != TAMIS_OK &&
        (comm->transport->capabilities & (TAM_CAP_IN_FLIGHT | TAM_CAP_THREADED)) != 0)
        tam_registry_abandon(registry);
    return status;
}

static void add_run(tam_energy_run *sum, const tam_energy_run *one) {
    if (one->time_ns > sum->time_ns)
        sum->time_ns = one->time_ns;
    if (one->steps > sum->steps)
        sum->steps = one->steps;
    sum->wire_bytes += one->wire_bytes;
    for (uint32_t k = 0; k < TAMIS_ENERGY_PHASES; k++)
        sum->exposure_ns[k] += one->exposure_ns[k];
}

/* Blocks become one row of entries, at the beginning of the messages. */
static tam_energy_run report_join(const tamis_comm *comm, const plan *p, unsigned char *messages) {
    tam_energy_run sum = {0}, one;
    tam_energy_entry *row = (tam_energy_entry *)(void *)messages;
    for (uint32_t r = 0; r < comm->nranks; r++) {
        const unsigned char *from = messages + r * p->block_bytes;
        uint32_t count = report_record_of(comm, r)->entries;
        memcpy(&one, from, sizeof one);
        add_run(&sum, &one);
        memmove(row, from + sizeof(tam_energy_run), count * sizeof row[0]);
        row += count;
    }
    return sum;
}

tamis_status tam_report_gather(tamis_comm *comm, const tam_energy_run *run, tam_registry *registry,
                               tamis_status status) {
    uint64_t deadline_ns = tam_comm_deadline(comm);
    if (status == TAMIS_OK && registry->n <= TAM_REPORT_ENTRIES_MAX) /* as much as is known to be */
        status =
            tam_registry_reserve(registry, messages_bytes(comm->nranks, registry->n,
                                                          (uint64_t)comm->nranks * registry->n));
    TAM_TRY(show_record(comm, registry, status, deadline_ns));
    plan p = report_make_plan(comm);
    status = tam_registry_reserve(registry, p.messages_bytes);
    if (status != TAMIS_OK) {
        tam_comm_lose(comm, status); /* the others have gone on */
        return status;
    }
    TAM_TRY(gather_blocks(comm, &p, run, registry, deadline_ns));
    unsigned char *messages = registry->messages;
    tam_energy_run all = report_join(comm, &p, messages);
    tam_registry_take(registry, (tam_energy_entry *)(void *)messages, p.entries, &all,
                      messages + (comm->nranks + (size_t)1) * p.block_bytes);
    return TAMIS_OK;
}

/* -- what callers see ------------------------------------------------------------------------- */

/* Everything that can be wrong on this rank alone, before anything is sent. */
static tamis_status report_prepare(tamis_energy *energy, const tamis_energy_totals *out,
                                   tam_energy_run *run) {
    if (!energy || !out)
        return tam_fail(TAMIS_E_ARGUMENT, CALL ": %s is NULL", energy ? "out" : "energy");
    if (out->size < sizeof *out || out->size > 65536)
        return tam_fail(TAMIS_E_ARGUMENT,
                        "tamis_energy_totals.size is %zu: set the struct by its _INIT macro",
                        out->size);
    TAM_TRY(tam_meter_present(energy, CALL));
    tam_meter_entries(energy, tam_meter_registry(energy)->shown);
    tam_meter_run(energy, run);
    return TAMIS_OK;
}

tamis_status tamis_energy_report(tamis_energy *energy, tamis_comm *comm, tamis_energy_totals *out) {
    TAM_FENV_HELD();
    tam_energy_run run = {0};
    tamis_energy_totals totals;
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, CALL ": comm is NULL");
    TAM_TRY(tam_comm_check(comm));
    tamis_status status = report_prepare(energy, out, &run);
    tam_registry *registry = status == TAMIS_OK ? tam_meter_registry(energy) : NULL;
    TAM_TRY(tam_report_gather(comm, &run, registry, status));
    tam_registry_totals(registry, &totals);
    tam_meter_complete(energy, &totals);
    return tam_struct_return("tamis_energy_totals", &totals, sizeof totals, out);
}
