/* SPDX-License-Identifier: MIT
 *
 * Agreement: before anything else travels, all ranks show each other what they were asked for, on
 * the communicator's board.
 */
#include "collectives/reducer/reducer.h"

#include <stdio.h>
#include <xxhash.h>

_Static_assert(sizeof(tam_agreement) <= TAM_BOARD_BYTES, "an agreement fits the board");

typedef enum field_kind { WHOLE, REAL, HEX, SCHEME } field_kind;

static const struct {
    const char *name;
    field_kind kind;
} fields[TAM_FIELDS] = {
    [TAM_FIELD_VERSION] = {"library version", WHOLE},
    [TAM_FIELD_LENGTH] = {"layout length", WHOLE},
    [TAM_FIELD_NSEGMENTS] = {"number of segments", WHOLE},
    [TAM_FIELD_SEGMENTS] = {"segment lengths", HEX},
    [TAM_FIELD_ROWS] = {"row lengths", HEX},
    [TAM_FIELD_SCHEME] = {"scheme", SCHEME},
    [TAM_FIELD_DENSITY] = {"density", REAL},
    [TAM_FIELD_OUTPUT] = {"output", WHOLE},
    [TAM_FIELD_AVERAGE] = {"average", WHOLE},
    [TAM_FIELD_NONFINITE] = {"nonfinite", WHOLE},
    [TAM_FIELD_BLOCK] = {"block", WHOLE},
    [TAM_FIELD_OVER] = {"over", REAL},
    [TAM_FIELD_CAPACITY] = {"capacity", REAL},
    [TAM_FIELD_THRESHOLD] = {"threshold", REAL},
    [TAM_FIELD_BUCKET_LENGTH] = {"bucket_length", WHOLE},
    [TAM_FIELD_LINK_LATENCY] = {"link_latency_us", REAL},
    [TAM_FIELD_LINK_GBIT] = {"link_gbit", REAL},
    [TAM_FIELD_SHARE] = {"share", WHOLE},
    [TAM_FIELD_DENSITY_MAX] = {"density_max", REAL},
    [TAM_FIELD_RANKS_PER_NODE] = {"ranks_per_node", WHOLE},
    [TAM_FIELD_RESIDUAL_DECAY] = {"residual_decay", REAL},
    [TAM_FIELD_UPDATE] = {"update (0 none, 1 adam, 2 momentum)", WHOLE},
    [TAM_FIELD_BETA1] = {"update.beta1", REAL},
    [TAM_FIELD_BETA2] = {"update.beta2", REAL},
    [TAM_FIELD_EPSILON] = {"update.epsilon", REAL},
    [TAM_FIELD_DEVICE] = {"device", WHOLE},
    [TAM_FIELD_GRAD_TYPE] = {"grad_type", WHOLE},
    [TAM_FIELD_GRAPHS] = {"TAMIS_GRAPHS", WHOLE},
    [TAM_FIELD_DENSE_BUCKETS] = {"buckets that are dense", HEX},
    [TAM_FIELD_INDEX_FORMAT] = {"index_format", WHOLE},
    [TAM_FIELD_WIRE_TYPE] = {"wire_type", WHOLE},
    [TAM_FIELD_BUCKET_FORMATS] = {"index formats of the buckets", HEX},
    [TAM_FIELD_UPDATE_SCALE] = {"update.scale", REAL},
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

static int first_difference(const uint64_t *a, const uint64_t *b, int nfields) {
    for (int f = 0; f < nfields; f++) {
        if (a[f] != b[f])
            return f;
    }
    return -1;
}

bool tam_agreement_differs(const tam_agreement *ours, const uint64_t *state, char *text,
                           size_t size) {
    char here[64], there[64];
    int f = first_difference(ours->fields, state, TAM_FIELDS_OF_STATE);
    if (f < 0)
        return false;
    print_value(ours->fields[f], fields[f].kind, here, sizeof here);
    print_value(state[f], fields[f].kind, there, sizeof there);
    snprintf(text, size, "%s is %s in the file, %s here", fields[f].name, there, here);
    return true;
}

uint64_t tam_agreement_hash(const tam_agreement *agreement) {
    return XXH3_64bits(agreement->fields, sizeof agreement->fields);
}

/* The first rank that differs from rank 0, and in what. @return nranks: there is none */
static uint32_t find_odd(const unsigned char *board, uint32_t nranks, int *out) {
    const tam_agreement *first = tam_board_entry(board, 0);
    for (uint32_t r = 1; r < nranks; r++) {
        const tam_agreement *other = tam_board_entry(board, r);
        *out = first_difference(first->fields, other->fields, TAM_FIELDS);
        if (*out >= 0)
            return r;
    }
    return nranks;
}

/* Of a layout more than a hash is to be told (disagree.c). */
static bool of_layout(int field) {
    return field == TAM_FIELD_LENGTH || field == TAM_FIELD_NSEGMENTS ||
           field == TAM_FIELD_SEGMENTS || field == TAM_FIELD_ROWS;
}

/* The same sentence on every rank. */
static tamis_status compare(const unsigned char *board, uint32_t nranks) {
    TAM_TRY(tam_board_failure(board, nranks, "create its reducer"));
    const tam_agreement *first = tam_board_entry(board, 0);
    int f = -1;
    uint32_t r = find_odd(board, nranks, &f);
    if (r < nranks && !of_layout(f)) {
        const tam_agreement *other = tam_board_entry(board, r);
        char here[64], there[64];
        print_value(first->fields[f], fields[f].kind, here, sizeof here);
        print_value(other->fields[f], fields[f].kind, there, sizeof there);
        return tam_fail(TAMIS_E_MISMATCH, "%s differs: rank 0 has %s, rank %u has %s",
                        fields[f].name, here, r, there);
    }
    return TAMIS_OK;
}

tamis_status tam_agree(tamis_comm *comm, const tam_agreement *mine, const tamis_layout *layout,
                       uint64_t deadline_ns) {
    int f = -1;
    TAM_TRY(tam_board_show(comm, mine, sizeof *mine, compare, deadline_ns));
    uint32_t odd = find_odd(comm->board, comm->nranks, &f);
    return odd < comm->nranks ? tam_layouts_disagree(comm, layout, odd, deadline_ns) : TAMIS_OK;
}
