/* SPDX-License-Identifier: MIT
 *
 * Agreement: before anything else travels, all ranks show each other what they were asked for.
 * Uses the communicator's board, so that a rank without memory can still say so.
 */
#include "collectives/reducer/reducer.h"

#include <stdio.h>
#include <xxhash.h>

/* As it travels: as long in every version, so that versions that differ can say so. */
typedef union board_entry {
    tam_agreement agreement;
    unsigned char bytes[TAM_BOARD_BYTES];
} board_entry;

_Static_assert(sizeof(board_entry) == TAM_BOARD_BYTES, "an agreement fits the board");

typedef enum field_kind { WHOLE, REAL, HEX, SCHEME } field_kind;

static const struct {
    const char *name;
    field_kind kind;
} fields[TAM_FIELDS] = {
    [TAM_FIELD_VERSION] = {"library version", WHOLE},
    [TAM_FIELD_LENGTH] = {"layout length", WHOLE},
    [TAM_FIELD_NSEGMENTS] = {"number of segments", WHOLE},
    [TAM_FIELD_SEGMENTS] = {"segment lengths", HEX},
    [TAM_FIELD_SCHEME] = {"scheme", SCHEME},
    [TAM_FIELD_DENSITY] = {"density", REAL},
    [TAM_FIELD_OUTPUT] = {"output", WHOLE},
    [TAM_FIELD_AVERAGE] = {"average", WHOLE},
    [TAM_FIELD_NONFINITE] = {"nonfinite", WHOLE},
    [TAM_FIELD_BLOCK] = {"block", WHOLE},
    [TAM_FIELD_OVER] = {"over", REAL},
    [TAM_FIELD_CAPACITY] = {"capacity", REAL},
    [TAM_FIELD_THRESHOLD] = {"threshold", REAL},
    [TAM_FIELD_DEVICE] = {"device", WHOLE},
    [TAM_FIELD_GRAD_TYPE] = {"grad_type", WHOLE},
    [TAM_FIELD_GRAPHS] = {"TAMIS_GRAPHS", WHOLE},
};

static void print_value(uint64_t value, field_kind kind, char *text, size_t size) {
    double real;
    memcpy(&real, &value, sizeof real);
    if (kind == SCHEME)
        tam_scheme_print(value, text, size);
    else if (kind == REAL)
        snprintf(text, size, "%.9g", real);
    else
        snprintf(text, size, kind == HEX ? "%#llx" : "%llu", (unsigned long long)value);
}

static int first_difference(const tam_agreement *a, const tam_agreement *b, int nfields) {
    for (int f = 0; f < nfields; f++) {
        if (a->fields[f] != b->fields[f])
            return f;
    }
    return -1;
}

bool tam_agreement_differs(const tam_agreement *ours, const tam_agreement *file, char *text,
                           size_t size) {
    char here[64], there[64];
    int f = first_difference(ours, file, TAM_FIELDS_OF_STATE);
    if (f < 0)
        return false;
    print_value(ours->fields[f], fields[f].kind, here, sizeof here);
    print_value(file->fields[f], fields[f].kind, there, sizeof there);
    snprintf(text, size, "%s is %s in the file, %s here", fields[f].name, there, here);
    return true;
}

uint64_t tam_agreement_hash(const tam_agreement *agreement) {
    return XXH3_64bits(agreement->fields, sizeof agreement->fields);
}

typedef struct agreement_job {
    tam_job job;
    board_entry mine;
    const board_entry *board; /* [nranks] */
} agreement_job;

_Static_assert(sizeof(agreement_job) <= TAM_DESK_BYTES, "an agreement fits the desk");

static const tam_agreement *entry(const agreement_job *a, uint32_t rank) {
    return &a->board[rank].agreement;
}

/* The same sentence on every rank: rank 0 against the first that differs from it. */
static tamis_status compare(const agreement_job *a, uint32_t nranks) {
    for (uint32_t r = 0; r < nranks; r++) {
        tamis_status status = (tamis_status)entry(a, r)->status;
        if (status != TAMIS_OK)
            return tam_fail(status, "rank %u could not create its reducer: %s", r,
                            tamis_status_name(status));
    }
    for (uint32_t r = 1; r < nranks; r++) {
        int f = first_difference(entry(a, 0), entry(a, r), TAM_FIELDS);
        if (f < 0)
            continue;
        char first[64], other[64];
        print_value(entry(a, 0)->fields[f], fields[f].kind, first, sizeof first);
        print_value(entry(a, r)->fields[f], fields[f].kind, other, sizeof other);
        return tam_fail(TAMIS_E_MISMATCH, "%s differs: rank 0 has %s, rank %u has %s",
                        fields[f].name, first, r, other);
    }
    return TAMIS_OK;
}

static tamis_status run(tam_job *job, tam_link *link) {
    agreement_job *a = (agreement_job *)(void *)job;
    TAM_TRY(link->transport->allgather(link->self, &a->mine, sizeof a->mine, (void *)a->board,
                                       &link->call));
    return compare(a, link->nranks);
}

tamis_status tam_agree(tamis_comm *comm, const tam_agreement *mine, uint64_t deadline_ns) {
    agreement_job *a = (agreement_job *)(void *)comm->desk;
    *a = (agreement_job){.job = {.run = run, .deadline_ns = deadline_ns},
                         .board = (const board_entry *)(void *)comm->board};
    a->mine.agreement = *mine;
    comm->agreements++;
    return tam_comm_run(comm, &a->job);
}
