/* SPDX-License-Identifier: MIT */
#include "collectives/transport/handshake.h"

#include <stdio.h>

typedef struct record_job {
    tam_job job;
    unsigned char mine[TAM_RECORD_BYTES];
    unsigned char *records; /* [nranks * TAM_RECORD_BYTES] */
    tam_handshake_judge judge;
} record_job;

_Static_assert(sizeof(record_job) <= TAM_JOB_BYTES, "what is shown fits its memory");

/* A rank that is in a step may have sent anything. */
static bool is_header(const tam_handshake_header *header) {
    return strncmp(header->call, "tamis_", 6) == 0 &&
           memchr(header->call, '\0', sizeof header->call);
}

/* The sentence is the same on all ranks that show a record: rank 0 against the first that
 * differs. */
static tamis_status compare_calls(const unsigned char *records, uint32_t rank, uint32_t nranks) {
    const tam_handshake_header *own = tam_handshake_record(records, rank),
                               *first = tam_handshake_record(records, 0);
    for (uint32_t r = 0; r < nranks; r++) {
        if (!is_header(tam_handshake_record(records, r)))
            return tam_fail(TAMIS_E_PROTOCOL,
                            "rank %u: rank %u makes another call (a step?) while this rank is in "
                            "%s; all ranks must make the same collective calls in the same order",
                            rank, r, own->call);
    }
    for (uint32_t r = 1; r < nranks; r++) {
        const tam_handshake_header *header = tam_handshake_record(records, r);
        if (strcmp(first->call, header->call) != 0)
            return tam_fail(TAMIS_E_MISMATCH,
                            "rank 0 is in %s, rank %u in %s; all ranks must make the same "
                            "collective calls in the same order",
                            first->call, r, header->call);
    }
    return TAMIS_OK;
}

static tamis_status check_records(const record_job *b, const tam_link *link) {
    TAM_TRY(compare_calls(b->records, link->rank, link->nranks));
    return b->judge(b->records, link->nranks);
}

/* A rank that failed has already logged why, so it does not log the verdict too. */
static tamis_status handshake_run(tam_job *job, tam_link *link) {
    record_job *b = (record_job *)(void *)job;
    TAM_TRY(
        link->transport->allgather(link->self, b->mine, sizeof b->mine, b->records, &link->call));
    if (((const tam_handshake_header *)(const void *)b->mine)->status == TAMIS_OK)
        return check_records(b, link);
    bool before = tam_errors_quiet(true);
    tamis_status status = check_records(b, link);
    tam_errors_quiet(before);
    return status;
}

tamis_status tam_handshake_run(tamis_comm *comm, const void *mine, size_t bytes,
                               tam_handshake_judge judge, uint64_t deadline_ns) {
    char sentence[512];
    tamis_status own = (tamis_status)((const tam_handshake_header *)mine)->status;
    snprintf(sentence, sizeof sentence, "%s", own != TAMIS_OK ? tamis_last_error() : "");

    record_job *b = (record_job *)(void *)comm->job_memory;
    *b = (record_job){.job = {.run = handshake_run, .deadline_ns = deadline_ns},
                      .records = comm->records,
                      .judge = judge};
    memcpy(b->mine, mine, bytes);
    b->job.purpose = ((const tam_handshake_header *)(const void *)b->mine)->call;
    tamis_status status = tam_comm_run(comm, &b->job);
    return own != TAMIS_OK ? tam_pass(own, sentence) : status;
}

tamis_status tam_handshake_failure(const unsigned char *records, uint32_t nranks,
                                   const char *what) {
    for (uint32_t r = 0; r < nranks; r++) {
        const tam_handshake_header *header = tam_handshake_record(records, r);
        tamis_status status = (tamis_status)header->status;
        if (status != TAMIS_OK)
            return tam_fail(status, "rank %u could not %s: %s", r, what, tamis_status_name(status));
    }
    return TAMIS_OK;
}

static uint64_t handshake_word(const unsigned char *records, uint32_t rank,
                               const tam_handshake_field *f) {
    uint64_t value;
    memcpy(&value, records + (size_t)rank * TAM_RECORD_BYTES + f->at, sizeof value);
    return value;
}

static void print_word(uint64_t value, const tam_handshake_field *f, char *text, size_t size) {
    double real;
    memcpy(&real, &value, sizeof real);
    if (f->shows == TAM_SHOWS_REAL)
        snprintf(text, size, "%.9g", real);
    else if (f->shows == TAM_SHOWS_HASH)
        snprintf(text, size, "hash %016llx", (unsigned long long)value);
    else
        snprintf(text, size, "%llu", (unsigned long long)value);
}

tamis_status tam_handshake_compare(const unsigned char *records, uint32_t a, uint32_t b,
                                   const tam_handshake_field *field) {
    char first[32], other[32];
    uint64_t one = handshake_word(records, a, field), two = handshake_word(records, b, field);
    if (one == two)
        return TAMIS_OK;
    print_word(one, field, first, sizeof first);
    print_word(two, field, other, sizeof other);
    return tam_fail(TAMIS_E_MISMATCH, "%s differs: rank %u has %s, rank %u has %s", field->name, a,
                    first, b, other);
}

tamis_status tam_handshake_same(const unsigned char *records, uint32_t nranks,
                                const tam_handshake_field *fields, uint32_t nfields) {
    for (uint32_t r = 1; r < nranks; r++) {
        for (uint32_t f = 0; f < nfields; f++)
            TAM_TRY(tam_handshake_compare(records, 0, r, &fields[f]));
    }
    return TAMIS_OK;
}
