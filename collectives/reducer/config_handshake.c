/* SPDX-License-Identifier: MIT
 *
 * The configuration handshake: before any other exchange, all ranks show each other their
 * configuration, in the communicator's records.
 */
#include "collectives/reducer/reducer.h"
#include "lib/base/hash.h"

#include <stdio.h>

_Static_assert(sizeof(tam_config_handshake) <= TAM_RECORD_BYTES, "a handshake fits the records");

typedef enum fact_kind { WHOLE, HEX, SCHEME } fact_kind;

static const struct {
    const char *name;
    fact_kind kind;
    tam_option_scope scope;
} facts[TAM_FACTS] = {
    [TAM_FACT_VERSION] = {"library version", WHOLE, TAM_SCOPE_STATE},
    [TAM_FACT_LENGTH] = {"layout length", WHOLE, TAM_SCOPE_STATE},
    [TAM_FACT_NSEGMENTS] = {"number of segments", WHOLE, TAM_SCOPE_STATE},
    [TAM_FACT_SEGMENTS] = {"segment lengths", HEX, TAM_SCOPE_STATE},
    [TAM_FACT_ROWS] = {"row lengths", HEX, TAM_SCOPE_STATE},
    [TAM_FACT_SCHEME] = {"scheme", SCHEME, TAM_SCOPE_STATE},
    [TAM_FACT_UPDATE] = {"update (0: none)", WHOLE, TAM_SCOPE_STATE},
    [TAM_FACT_GRAPHS] = {"TAMIS_GRAPHS", WHOLE, TAM_SCOPE_RANKS},
    [TAM_FACT_CUDA] = {"device cuda (1), dense or auto", WHOLE, TAM_SCOPE_RANKS},
    [TAM_FACT_DRIVER] = {"steps run by a device (1: yes)", WHOLE, TAM_SCOPE_RANKS},
    [TAM_FACT_DENSE_BUCKETS] = {"buckets that are dense", HEX, TAM_SCOPE_RANKS},
    [TAM_FACT_BUCKET_CODECS] = {"index codecs of the buckets", HEX, TAM_SCOPE_RANKS},
};

/* NULL: it is a fact */
static const tam_option *option_of(int field) {
    if (field >= TAM_FIELDS_OF_UPDATE)
        return &tam_update_options[field - TAM_FIELDS_OF_UPDATE];
    return field >= TAM_FIELDS_OF_CONFIG ? &tam_config_options[field - TAM_FIELDS_OF_CONFIG] : NULL;
}

static tam_option_scope scope_of(int field) {
    const tam_option *o = option_of(field);
    return o ? o->scope : facts[field].scope;
}

static void print_name(int field, char *text, size_t size) {
    const tam_option *o = option_of(field);
    snprintf(text, size, "%s%s", field >= TAM_FIELDS_OF_UPDATE ? "update." : "",
             o ? o->name : facts[field].name);
}

static void print_value(int field, uint64_t value, char *text, size_t size) {
    const tam_option *o = option_of(field);
    if (o)
        tam_option_print(o, value, text, size);
    else if (facts[field].kind == SCHEME)
        tam_scheme_print(value, text, size);
    else
        snprintf(text, size, facts[field].kind == HEX ? "%#llx" : "%llu",
                 (unsigned long long)value);
}

static int first_difference(const uint64_t *a, const uint64_t *b, tam_option_scope scope) {
    for (int f = 0; f < TAM_FIELDS; f++) {
        if (a[f] != b[f] && scope_of(f) >= scope)
            return f;
    }
    return -1;
}

/* Options that are not compared stay 0. */
static void fill_options(const tam_option *rows, uint32_t count, const void *from, uint64_t *out) {
    for (uint32_t i = 0; i < count; i++)
        out[i] = rows[i].scope == TAM_SCOPE_RANK ? 0 : tam_option_bits(&rows[i], from);
}

/* Compare only what the rule uses. What is left open follows k, which every step compares. */
static void fill_update(const tamis_reducer *r, uint64_t *out) {
    fill_options(tam_update_options, tam_update_used(&r->update), &r->update, out);
    if (r->scale_open)
        out[TAM_UPDATE_scale] = 0;
    if (r->matching_open)
        out[TAM_UPDATE_norm_matching] = 0;
}

void tam_config_handshake_fill(tamis_reducer *r, const tamis_layout *layout) {
    uint64_t *f = r->handshake.fields;
    f[TAM_FACT_VERSION] = TAMIS_VERSION;
    f[TAM_FACT_LENGTH] = layout->length;
    f[TAM_FACT_NSEGMENTS] = layout->nsegments;
    f[TAM_FACT_SEGMENTS] = layout->hash;
    f[TAM_FACT_ROWS] = layout->rows_hash;
    f[TAM_FACT_SCHEME] = tam_scheme_code(r->scheme);
    f[TAM_FACT_UPDATE] = r->config.update != NULL;
    f[TAM_FACT_GRAPHS] = tam_setting_number(TAM_SETTING_GRAPHS);
    if (tam_scheme_dense(r->scheme) || tam_scheme_auto(r->scheme))
        f[TAM_FACT_CUDA] = r->config.device == TAMIS_DEVICE_CUDA;
    fill_options(tam_config_options, TAM_CONFIG_COUNT, &r->config, f + TAM_FIELDS_OF_CONFIG);
    if (r->config.update)
        fill_update(r, f + TAM_FIELDS_OF_UPDATE);
}

bool tam_config_handshake_differs(const tam_config_handshake *ours, const uint64_t *state,
                                  char *text, size_t size) {
    char name[32], here[64], there[64];
    int f = first_difference(ours->fields, state, TAM_SCOPE_STATE);
    if (f < 0)
        return false;
    print_name(f, name, sizeof name);
    print_value(f, ours->fields[f], here, sizeof here);
    print_value(f, state[f], there, sizeof there);
    snprintf(text, size, "%s is %s in the file, %s here", name, there, here);
    return true;
}

void tam_config_handshake_of_state(const tam_config_handshake *handshake, uint64_t *out) {
    for (int f = 0; f < TAM_FIELDS; f++)
        out[f] = scope_of(f) == TAM_SCOPE_STATE ? handshake->fields[f] : 0;
    out[TAM_FACT_DENSE_BUCKETS] = handshake->fields[TAM_FACT_DENSE_BUCKETS]; /* to be logged */
}

uint64_t tam_config_handshake_hash(const tam_config_handshake *handshake) {
    return tam_hash(handshake->fields, sizeof handshake->fields);
}

/* The first rank that differs from rank 0, and in what. @return nranks: there is none */
static uint32_t find_odd(const unsigned char *records, uint32_t nranks, int *out) {
    const tam_config_handshake *first = tam_handshake_record(records, 0);
    for (uint32_t r = 1; r < nranks; r++) {
        const tam_config_handshake *other = tam_handshake_record(records, r);
        *out = first_difference(first->fields, other->fields, TAM_SCOPE_RANKS);
        if (*out >= 0)
            return r;
    }
    return nranks;
}

/* Layout differences are reported by segment, not by hash (disagree.c). */
static bool of_layout(int field) {
    return field == TAM_FACT_LENGTH || field == TAM_FACT_NSEGMENTS || field == TAM_FACT_SEGMENTS ||
           field == TAM_FACT_ROWS;
}

/* Compare the records; the sentence is the same on every rank. */
static tamis_status config_handshake_compare(const unsigned char *records, uint32_t nranks) {
    TAM_TRY(tam_handshake_failure(records, nranks, "create its reducer"));
    const tam_config_handshake *first = tam_handshake_record(records, 0);
    int f = -1;
    uint32_t r = find_odd(records, nranks, &f);
    if (r < nranks && !of_layout(f)) {
        const tam_config_handshake *other = tam_handshake_record(records, r);
        char name[32], here[64], there[64];
        print_name(f, name, sizeof name);
        print_value(f, first->fields[f], here, sizeof here);
        print_value(f, other->fields[f], there, sizeof there);
        return tam_fail(TAMIS_E_MISMATCH, "%s differs: rank 0 has %s, rank %u has %s", name, here,
                        r, there);
    }
    return TAMIS_OK;
}

tamis_status tam_config_handshake_run(tamis_comm *comm, const tam_config_handshake *mine,
                                      const tamis_layout *layout, uint64_t deadline_ns) {
    int f = -1;
    TAM_TRY(tam_handshake_run(comm, mine, sizeof *mine, config_handshake_compare, deadline_ns));
    uint32_t odd = find_odd(comm->records, comm->nranks, &f);
    return odd < comm->nranks ? tam_layouts_disagree(comm, layout, odd, deadline_ns) : TAMIS_OK;
}
