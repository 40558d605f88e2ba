/* SPDX-License-Identifier: MIT
 *
 * Runs a case: communicators, a reducer for each rank (all ranks get one, or none), and the steps.
 */
#include "tests/fuzz/property/worker.h"

#include <fenv.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -- memory that stays from case to case ------------------------------------------------------ */

typedef struct arena {
    unsigned char *memory;
    size_t size, used;
} arena;

static arena arenas[2];

static void *take(arena *a, size_t bytes) {
    void *at = a->memory + a->used;
    a->used += (bytes + 15) / 16 * 16;
    return at;
}

static size_t needed(const fuzz_case *c, uint64_t n) {
    size_t vectors = (size_t)c->nranks * (c->updates ? 3 : 1) + 3;
    return c->nsteps * vectors * ((size_t)n * sizeof(float) + 16);
}

/* Vectors of a record. */
static bool open_record(const fuzz_case *c, uint64_t n, int memory, record *out) {
    arena *a = &arenas[memory];
    size_t size = needed(c, n), bytes = (size_t)n * sizeof(float);
    if (size > a->size) {
        free(a->memory);
        a->memory = malloc(size);
        a->size = a->memory ? size : 0;
    }
    if (!a->memory)
        return false;
    a->used = 0;
    for (uint32_t s = 0; s < c->nsteps; s++) {
        common *all = &out->common[s];
        all->listed = false;
        all->indices = take(a, bytes);
        all->values = take(a, bytes);
        all->gradient = take(a, bytes);
        for (uint32_t r = 0; r < c->nranks; r++) {
            moment *m = &out->moments[s][r];
            memset(m, 0, sizeof *m);
            m->residual = take(a, bytes);
            m->first = c->updates ? take(a, bytes) : NULL;
            m->second = c->updates ? take(a, bytes) : NULL;
        }
    }
    return true;
}

/* -- failures --------------------------------------------------------------------------------- */

bool worker_fail(worker *w, const char *format, ...) {
    trial *team = w->team;
    pthread_mutex_lock(&team->lock);
    if (team->failure[0] == '\0') {
        int used = snprintf(team->failure, SENTENCE, "step %u, rank %u: ", w->step, w->rank);
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(team->failure + used, SENTENCE - (size_t)used, format, arguments);
        va_end(arguments);
    }
    pthread_mutex_unlock(&team->lock);
    w->failed = true;
    ranks_leave(team->board, team->comms[w->rank]);
    return false;
}

bool worker_expect(worker *w, tamis_status expected, tamis_status got, const char *call) {
    if (got == expected)
        return true;
    return worker_fail(w, "%s gave %s, not %s: %s", call, tamis_status_name(got),
                       tamis_status_name(expected), tamis_last_error());
}

uint32_t worker_roll(worker *w, uint32_t sides) {
    return (uint32_t)(fuzz_mix(w->random++) % sides);
}

/* -- reducers --------------------------------------------------------------------------------- */

/* Make one argument invalid. */
static void make_wrong(uint32_t what, tamis_reducer_config *o, tamis_segment *segments) {
    static const double wrong[] = {-1e-9, -0.5, 10.0, 1.0000001, NAN, INFINITY};
    static const char *const schemes[] = {
        "",     "tamis+", "all+global", "cyclic+norm+predict+dense", "all+global+exact+union+union",
        "topk "};
    uint32_t number = what / 16;
    switch (what % 16) {
    case 0:
    case 1:
        o->density = wrong[number % 6];
        break;
    case 2:
        o->scheme = schemes[number % 6];
        break;
    case 3:
        o->block = number % 2 ? 33 : 131072;
        break;
    case 4:
        o->overselect = number % 2 ? 1.0 : NAN;
        break;
    case 5:
        o->capacity = number % 2 ? -1.0 : INFINITY;
        break;
    case 6:
        o->threshold = number % 2 ? -1.0 : NAN;
        break;
    case 7:
        o->residual_decay = number % 2 ? 1.5 : NAN;
        break;
    case 8:
        o->density_max = number % 2 ? o->density / 2 : 1.5;
        break;
    case 9:
        o->threads = 257;
        break;
    case 10:
        o->output = (tamis_output)7;
        break;
    case 11:
        o->value_codec = TAMIS_VALUE_END;
        break;
    case 12:
        o->index_codec = (tamis_index_codec)(number % 2 ? TAMIS_INDEX_END : -1);
        break;
    case 13:
        o->size = number % 2 ? 4 : 100000;
        break;
    case 14:
        o->link_gbit = number % 2 ? -1.0 : NAN;
        break;
    default:
        segments[0].length = number % 2 ? 0 : UINT64_C(1) << 33;
        break;
    }
}

static void make_odd(const fuzz_case *c, tamis_reducer_config *o, tamis_segment *segments) {
    switch (c->odd) {
    case ODD_DENSITY:
        o->density *= 0.5;
        break;
    case ODD_SCHEME:
        o->scheme = fuzz_is(c, 0, "all") ? "cltk" : "topk";
        break;
    case ODD_LENGTH:
        segments[0].length += c->rows[0] ? c->rows[0] : 1;
        break;
    case ODD_AVERAGE:
        o->op = o->op ? TAMIS_OP_MEAN : TAMIS_OP_SUM;
        break;
    case ODD_DECAY:
        o->residual_decay = o->residual_decay == 1.0 ? 0.75 : 1.0;
        break;
    case ODD_CODEC:
        o->index_codec = o->index_codec == TAMIS_INDEX_U32 ? TAMIS_INDEX_BITMAP : TAMIS_INDEX_U32;
        break;
    default:
        make_wrong((uint32_t)(c->odd - ODD_ARGUMENT + 16 * (c->number % 6)), o, segments);
        break;
    }
}

tamis_status trial_reducer(trial *team, uint32_t rank, tamis_reducer **out) {
    const fuzz_case *c = team->c;
    tamis_segment segments[MOST_SEGMENTS];
    tamis_reducer_config config = c->config;
    tamis_layout *layout = NULL;
    config.scheme = c->scheme;
    config.update = c->updates ? &c->update : NULL;
    for (uint32_t s = 0; s < c->nsegments; s++)
        segments[s] = (tamis_segment){NULL, c->lengths[s]};
    if (c->odd && (rank == c->odd_rank || c->odd_rank == c->nranks))
        make_odd(c, &config, segments);
    tamis_status status = tamis_layout_create(segments, c->nsegments, &layout);
    if (status != TAMIS_OK) /* a missing layout notifies the other ranks */
        layout = NULL;
    for (uint32_t s = 0; s < c->nsegments && status == TAMIS_OK; s++)
        status = tamis_layout_set_rows(layout, s, c->rows[s]);
    status = tamis_reducer_create(team->comms[rank], layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

/* Programs may enable floating-point traps, so no call may raise an exception. */
static void trap(bool on) {
#ifdef __GLIBC__
    int all = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;
    feclearexcept(FE_ALL_EXCEPT);
    if (on)
        feenableexcept(all);
    else
        fedisableexcept(all);
#else
    (void)on;
#endif
}

static void step_on(void *context, uint32_t rank) {
    trap(true);
    trial_steps(context, rank);
    trap(false);
}

static void create(void *context, uint32_t rank) {
    trial *team = context;
    trap(true);
    team->out->created[rank] = trial_reducer(team, rank, &team->reducers[rank]);
    trap(false);
    snprintf(team->out->sentence[rank], SENTENCE, "%s",
             team->out->created[rank] == TAMIS_OK ? "" : tamis_last_error());
}

static void destroy(void *context, uint32_t rank) {
    trial *team = context;
    tamis_reducer_destroy(team->reducers[rank]);
}

/* -- a case ----------------------------------------------------------------------------------- */

static bool is_refusal(tamis_status status) {
    return status == TAMIS_E_ARGUMENT || status == TAMIS_E_UNSUPPORTED ||
           status == TAMIS_E_MISMATCH;
}

/* If one rank is refused, all must be, though messages may differ. */
static bool check_created(const fuzz_case *c, record *out, char failure[SENTENCE]) {
    tamis_status first = out->created[0];
    out->refused = first != TAMIS_OK;
    for (uint32_t r = 0; r < c->nranks; r++) {
        if (!out->created[r] != !first || (out->created[r] != first && !c->odd)) {
            snprintf(failure, SENTENCE, "tamis_reducer_create: rank 0 got %s, rank %u got %s: %s",
                     tamis_status_name(first), r, tamis_status_name(out->created[r]),
                     out->sentence[r]);
            return false;
        }
        if (out->refused && (!is_refusal(first) || strlen(out->sentence[r]) < 12)) {
            snprintf(failure, SENTENCE, "tamis_reducer_create refused with %s and \"%s\"",
                     tamis_status_name(first), out->sentence[r]);
            return false;
        }
    }
    if (c->odd && !out->refused) {
        snprintf(failure, SENTENCE, "rank %u asked for something else, and nobody minds",
                 c->odd_rank);
        return false;
    }
    return true;
}

static bool run_all(trial *team, char failure[SENTENCE]) {
    const fuzz_case *c = team->c;
    ranks_do(c->nranks, create, team);
    bool fine = check_created(c, team->out, failure);
    if (fine && !team->out->refused) {
        ranks_do(c->nranks, step_on, team);
        fine = failure[0] == '\0';
        team->out->nsteps = fine ? c->nsteps : 0;
    }
    ranks_do(c->nranks, destroy, team);
    return fine;
}

bool fuzz_run(const fuzz_case *c, int memory, record *out, char failure[SENTENCE]) {
    trial own = {.c = c, .out = out, .n = fuzz_length(c), .failure = failure};
    failure[0] = '\0';
    out->fuzz = c;
    out->refused = false;
    out->nsteps = 0;
    if (!open_record(c, own.n, memory, out)) {
        snprintf(failure, SENTENCE, "no memory for a record");
        return false;
    }
    if (!ranks_connect(c, &own.board, own.comms)) {
        snprintf(failure, SENTENCE, "no communicators: %s", tamis_last_error());
        return false;
    }
    pthread_mutex_init(&own.lock, NULL);
    bool fine = run_all(&own, failure);
    pthread_mutex_destroy(&own.lock);
    ranks_part(c->nranks, own.board, own.comms);
    return fine;
}
