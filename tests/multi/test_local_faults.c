/* SPDX-License-Identifier: MIT
 *
 * Local steps over a communicator that fails at each of its operations: nothing is lost, and saved
 * states go on.
 *
 * test: tsan
 */
#include "collectives/transport/faulty.h"
#include "tests/multi/local_case.h"

#include <tamis/elastic.h>
#include <tamis/state.h>

typedef struct fault_case {
    local_case c;
    uint64_t nth;
    uint32_t until;            /* local steps, at most; */
    uint32_t failed_at[RANKS]; /* steps made; */
    bool apart;                /* not by all ranks as many */
    _Atomic bool failed;
    void *control[RANKS], *state[RANKS];
    size_t control_bytes[RANKS], bytes[RANKS];
    float params[RANKS][N], residual[RANKS][N], own_base[RANKS][N];
    double made[RANKS][N]; /* what local steps have changed */
    uint64_t base[RANKS];
} fault_case;

enum { FAULTY = 1 };

/* Before a first round is applied, all that a rank has changed is in its params or its residual. */
static void check_kept(run *u, const local_case *c, const float *residual, const double *made) {
    const float *base = NULL;
    tamis_local_stats stats = TAMIS_LOCAL_STATS_INIT;
    RANK_OK(u->self, tamis_local_base(u->local, &base));
    RANK_OK(u->self, tamis_local_stats_read(u->local, &stats));
    if (stats.rounds > 0 || stats.under_way)
        return;
    for (size_t i = 0; i < N; i++) {
        double waiting = strcmp(c->scheme, "dense") != 0 ? residual[i] : 0.0;
        RANK_CHECK(u->self, fabs(u->params[i] - base[i] - waiting - made[i]) < 1e-5,
                   "element %zu: params have moved %g, %g waits, but %g was made", i,
                   (double)(u->params[i] - base[i]), waiting, made[i]);
    }
}

static void run_fault(test_rank *self) {
    fault_case *f = self->shared;
    uint32_t id = self->id;
    run u = {0};
    begin(&u, self, &f->c);
    RANK_CHECK(self, rank_barrier(self), "a rank has left");
    if (id == FAULTY)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_ERROR, f->nth, 0));
    tamis_status status = TAMIS_OK;
    uint32_t t = 0;
    double *made = f->made[id];
    const float *base = NULL;
    for (; t < f->until && status == TAMIS_OK; t++) {
        float before[N];
        memcpy(before, u.params, sizeof before);
        train(&u, t);
        for (size_t i = 0; i < N; i++)
            made[i] += (double)u.params[i] - before[i];
        status = tamis_local_step(u.local, u.parts);
    }
    RANK_CHECK(self, status == TAMIS_OK || tamis_status_loss(status) == TAMIS_LOST_COMM, "%s",
               tamis_last_error());
    if (status != TAMIS_OK)
        RANK_OK(self, tamis_comm_abort(self->comm)); /* the others need not wait */
    RANK_CHECK(self, finite_params(&u), "params are not finite");
    f->failed_at[id] = t;
    memcpy(f->params[id], u.params, sizeof u.params);
    RANK_OK(self, tamis_local_base(u.local, &base));
    memcpy(f->own_base[id], base, sizeof f->own_base[id]);
    RANK_OK(self, tamis_local_bytes(u.local, &f->bytes[id]));
    RANK_OK(self, tamis_reducer_control_bytes(u.reducer, &f->control_bytes[id]));
    f->state[id] = malloc(f->bytes[id]);
    f->control[id] = malloc(f->control_bytes[id]);
    RANK_OK(self, tamis_local_save(u.local, f->state[id], f->bytes[id]));
    if (tamis_comm_status(self->comm) != TAMIS_OK) { /* the save timed out */
        f->failed = true;
        RANK_OK(self, tamis_comm_abort(self->comm));
    }
    RANK_OK(self, tamis_reducer_save_control(u.reducer, f->control[id], f->control_bytes[id]));
    if (strcmp(f->c.scheme, "dense") != 0)
        RANK_OK(self, tamis_reducer_save_residual(u.reducer, f->residual[id]));
    if (status != TAMIS_OK)
        check_kept(&u, &f->c, f->residual[id], made);
    end(&u);
}

/* Rounds without local steps send all that waits: the base is what all ranks have made. */
static void check_settled(run *u, const fault_case *f) {
    const float *base = NULL;
    for (uint32_t t = 0; t < 200 && !u->self->failure[0]; t++)
        RANK_OK(u->self, tamis_local_step(u->local, u->parts));
    RANK_OK(u->self, tamis_local_base(u->local, &base));
    for (size_t i = 0; i < N; i++) {
        double want = first_param(i);
        for (uint32_t r = 0; r < RANKS; r++)
            want += f->made[r][i] / RANKS;
        RANK_CHECK(u->self, fabs(base[i] - want) < 1e-4, "element %zu ends at %g, not at %g", i,
                   (double)base[i], want);
    }
}

/* As the header says: the reducer's state, resync, the own state; else that of a rank that did not
 * apply the round. Then either what waits is sent, or all ranks go on for some rounds. */
static void run_after_fault(test_rank *self) {
    fault_case *f = self->shared;
    uint32_t id = self->id;
    uint64_t step;
    run u = {0};
    bool has_residual = strcmp(f->c.scheme, "dense") != 0;
    begin(&u, self, &f->c);
    RANK_OK(self, tamis_reducer_load_memory(u.reducer, f->control[id], f->control_bytes[id],
                                            has_residual ? f->residual[id] : NULL));
    RANK_OK(self, tamis_reducer_resync(u.reducer, &step));
    tamis_status status = tamis_local_load(u.local, f->state[id], f->bytes[id]);
    bool back = status == TAMIS_E_FORMAT;
    if (back)
        status = tamis_local_load(u.local, f->state[FAULTY], f->bytes[FAULTY]);
    RANK_OK(self, status);
    memcpy(u.params, f->params[id], sizeof u.params);
    const float *base = NULL;
    RANK_OK(self, tamis_local_base(u.local, &base));
    for (size_t i = 0; back && i < N; i++)
        u.params[i] += base[i] - f->own_base[id][i];
    if (f->c.momentum == 0.0 && (has_residual || !f->apart)) {
        check_settled(&u, f);
        f->base[id] = hash_base(&u);
        end(&u);
        return;
    }
    for (uint32_t t = 0; t < 12 && !self->failure[0]; t++) {
        train(&u, 100 + t);
        RANK_OK(self, tamis_local_step(u.local, u.parts));
    }
    f->base[id] = hash_base(&u);
    end(&u);
}

static void test_fault(void **state) {
    (void)state;
    static const struct {
        const char *scheme;
        uint32_t delay;
        bool settles;
        uint32_t until; /* 5: saved while an exchange is under way */
    } grid[] = {
        {"tamis", 0, false, STEPS},   {"tamis", 2, false, STEPS}, {"dense", 0, false, STEPS},
        {"dense", 2, false, STEPS},   {"tamis", 0, true, STEPS},  {"tamis", 2, true, STEPS},
        {"tamis", 4, true, STEPS},    {"dense", 0, true, STEPS},  {"dense", 2, true, STEPS},
        {"tamis", 2, true, 5},        {"dense", 2, true, 5},      {"quantized", 2, true, 5},
        {"quantized", 0, true, STEPS}};
    for (size_t i = 0; i < sizeof grid / sizeof grid[0]; i++) {
        uint64_t nth = 0;
        bool failed = true;
        for (; failed && nth < 12; nth += test_stride(3)) {
            fault_case *f = calloc(1, sizeof *f);
            f->c = (local_case){.scheme = grid[i].scheme,
                                .density = strcmp(grid[i].scheme, "tamis") == 0 ? 0.1 : 1.0,
                                .steps = 4,
                                .delay = grid[i].delay,
                                .lr = grid[i].settles ? 1.0 : 0.7,
                                .momentum = grid[i].settles ? 0.0 : 0.9};
            f->nth = nth;
            f->until = grid[i].until;
            test_context("%s, delay %u, %s, operation %llu fails", f->c.scheme, f->c.delay,
                         grid[i].settles ? "settles" : "goes on", (unsigned long long)nth);
            ranks_run(RANKS, 0, run_fault, f);
            failed = f->failed;
            for (uint32_t r = 0; r < RANKS; r++)
                f->apart = f->apart || f->failed_at[r] != f->failed_at[0];
            ranks_run(RANKS, 0, run_after_fault, f);
            for (uint32_t r = 1; r < RANKS; r++)
                assert_true(f->base[r] == f->base[0]);
            for (uint32_t r = 0; r < RANKS; r++) {
                free(f->state[r]);
                free(f->control[r]);
            }
            free(f);
        }
        assert_true(nth > 2 || grid[i].until < STEPS);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
