/* SPDX-License-Identifier: MIT
 *
 * Host path on a fake runtime (with the kernels on the CPU below it): reducers over NCCL that go on
 * when ranks have died, on both ways: NCCL makes the smaller communicator of a list, or it is made
 * anew over the communicator that finds the ranks. Steps that a device drives take the first way
 * only where they were not captured, so cuda.nccl_migrate_direct runs this again with
 * TAMIS_GRAPHS=off. Gradients are whole numbers and results are sums, so that nothing may be lost
 * or counted twice, to the last unit:
 *
 *     what all ranks gave = what was applied + what waits on those left + what the dead held
 *
 * A rank that dies within a step may have applied it alone, when the others did not get what it
 * still had to send: they never hear of that step, so what it gave to it counts as held. Or they
 * all apply it but this rank, which then still holds what they have.
 *
 * test: release
 */
#include "collectives/reducer/reducer.h"
#include "tests/cuda/fake.h"
#include "tests/cuda/over_nccl.h"
#include "tests/support/data.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <tamis/elastic.h>
#include <tamis/nccl.h>
#include <tamis/state.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 600, MOST = 8, LIVES = 2, BEFORE = 3, AFTER = 20 };

/* When a rank dies: before the step that the others want to make; in it, on the way; after it. */
typedef enum phase { AT_REST, WITHIN, APPLIED } phase;
typedef enum way { LIST, BOOTSTRAP } way;

typedef struct migrate_case {
    const char *scheme;
    tamis_device device;
    uint32_t nranks;
    uint32_t dead[LIVES]; /* a bit for each rank, numbered as at first, that goes then */
    phase phase;
    way way;
    uint32_t within_us;
    uint64_t bucket_length;
    const tamis_update *update;
} migrate_case;

/* What the ranks leave behind. */
typedef struct trial {
    migrate_case c;
    atomic_uint done;           /* ranks that have ended */
    atomic_uint waiting[LIVES]; /* that have begun the step which cannot end */
    tamis_comm *comm[MOST];     /* of those that wait */
    atomic_bool abandoned;      /* a step, by a thread that had no time; then memory is left */
    double given[MOST][N], applied[MOST][N], held[MOST][N];
    double alone[MOST][N]; /* held by the dead as if the last step had not been applied */
    uint64_t hash[MOST], step[MOST];
    uint64_t left_at[LIVES];       /* the step at which the others go on */
    bool by_device, refused[MOST]; /* the first way */
} trial;

static bool in(uint32_t mask, uint32_t rank) {
    return mask >> rank & 1;
}

static uint32_t count(uint32_t mask) {
    return (uint32_t)__builtin_popcount(mask);
}

/* -- one rank --------------------------------------------------------------------------------- */

typedef struct life {
    trial *t;
    test_rank *self;
    tamis_comm *found, *comm; /* what found the ranks, and NCCL's */
    tamis_reducer *r;
    float *grad;   /* of the reducer's device */
    float last[N]; /* the gradient of the last step */
    cudaStream_t stream;
    uint32_t number;          /* of the next gradient */
    uint32_t all, place, was; /* ranks of `comm`, as at first; this one's place; and how many */
} life;

static tamis_status make(const migrate_case *c, tamis_comm *comm, tamis_reducer **out) {
    static const tamis_segment segments[] = {{"a", 150}, {"b", 200}, {"c", N - 350}};
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    config.scheme = c->scheme;
    config.density = 0.05;
    config.op = TAMIS_OP_SUM;
    config.device = c->device;
    config.bucket_length = c->bucket_length;
    config.update = c->update;
    tamis_status status = tamis_layout_create(segments, 3, &layout);
    if (status == TAMIS_OK)
        status = tamis_reducer_create(comm, layout, &config, out);
    tamis_layout_destroy(layout);
    return status;
}

static void be_born(life *l) {
    test_rank *self = l->self;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    RANK_CUDA(self, cudaSetDevice((int)self->id));
    RANK_OK(self, tamis_comm_create_nccl(l->found, &config, &l->comm));
    RANK_OK(self, make(&l->t->c, l->comm, &l->r));
    RANK_CUDA(self, cudaStreamCreateWithFlags(&l->stream, cudaStreamNonBlocking));
    RANK_CUDA(self, cudaMalloc((void **)&l->grad, N * sizeof l->grad[0]));
}

static void add(const float *values, double sign, double *sums) {
    for (size_t i = 0; i < N; i++)
        sums[i] += sign * (double)values[i];
}

static void hold(life *l, double *out) {
    float residual[N];
    memset(out, 0, N * sizeof out[0]);
    RANK_OK(l->self, l->r->driver->quiesce(l->r));
    if (!l->r->acc)
        return;
    RANK_OK(l->self, tamis_reducer_save_residual(l->r, residual));
    add(residual, 1.0, out);
}

static tamis_status begin_step(life *l) {
    uint32_t me = l->self->id;
    tamis_step step = TAMIS_STEP_INIT;
    step.grad = l->grad;
    step.stream = l->t->c.device == TAMIS_DEVICE_CUDA ? l->stream : NULL;
    data_fill(DATA_TIES, me, l->number++, N, l->grad);
    for (size_t i = 0; i < N; i++)
        l->grad[i] *= (float)(1 + (i * 7 + me + l->number) % 50);
    memcpy(l->last, l->grad, sizeof l->last);
    tamis_status status = tamis_reducer_start(l->r, &step);
    if (status == TAMIS_OK)
        add(l->last, 1.0, l->t->given[me]);
    return status;
}

/* A step that failed here may have been applied all the same: its report came too late. */
static tamis_status end_step(life *l, uint64_t before) {
    uint32_t me = l->self->id;
    double held[N];
    tamis_status status = tamis_reducer_wait(l->r);
    if (tamis_status_loss(status) == TAMIS_LOST_COMM)
        hold(l, held); /* settles */
    if (status == TAMIS_OK || l->r->step > before) {
        add(l->grad, 1.0, l->t->applied[me]);
        l->t->hash[me] = data_hash(l->t->hash[me], l->grad, N * sizeof l->grad[0]);
    }
    return status;
}

static tamis_status one_step(life *l) {
    uint64_t before = l->r->step;
    tamis_status status = begin_step(l);
    return status == TAMIS_OK ? end_step(l, before) : status;
}

/* -- death, and those that are left ----------------------------------------------------------- */

/* By the deadline in one phase; in the others the dead spare them the wait. */
static void wake(life *l, int n) {
    trial *t = l->t;
    uint32_t left = l->all & ~t->c.dead[n];
    if (t->c.phase == AT_REST)
        return;
    while (atomic_load(&t->waiting[n]) < count(left))
        sleep_ms(1);
    sleep_ms(20);
    for (uint32_t r = 0; r < t->c.nranks; r++)
        if (in(left, r))
            (void)tamis_comm_abort(t->comm[r]);
}

static void die(life *l, int n) {
    test_rank *self = l->self;
    trial *t = l->t;
    uint64_t before = l->r->step;
    if (t->c.phase == APPLIED)
        RANK_OK(self, one_step(l));
    if (t->c.phase == WITHIN) {
        struct timespec pause = {.tv_nsec = (long)t->c.within_us * 1000};
        hold(l, t->alone[self->id]);
        RANK_OK(self, begin_step(l));
        add(l->last, 1.0, t->alone[self->id]);
        nanosleep(&pause, NULL);
        RANK_OK(self, tamis_comm_abort(l->comm));
        end_step(l, before);
    }
    hold(l, t->held[self->id]);
    if (self->id == (uint32_t)__builtin_ctz(t->c.dead[n]))
        wake(l, n);
}

static void notice(life *l, int n) {
    trial *t = l->t;
    tamis_status status = TAMIS_OK;
    if (t->c.phase == APPLIED)
        RANK_OK(l->self, one_step(l));
    test_deadline(l->comm, t->c.phase == AT_REST ? over_short_ms() : test_long_ms());
    t->comm[l->self->id] = l->comm;
    for (bool first = true; status == TAMIS_OK; first = false) {
        uint64_t before = l->r->step;
        status = begin_step(l);
        if (first)
            atomic_fetch_add(&t->waiting[n], 1);
        if (status == TAMIS_OK)
            status = end_step(l, before);
    }
    test_deadline(l->comm, test_long_ms());
    RANK_CHECK(l->self, tamis_status_loss(status) == TAMIS_LOST_COMM, "%s",
               tamis_status_name(status));
    if (l->r->abandoned)
        atomic_store(&t->abandoned, true);
}

static tamis_status shrink(const life *l, tamis_comm *comm, uint32_t dead, tamis_comm **out) {
    uint32_t list[MOST];
    tamis_shrink how = TAMIS_SHRINK_INIT;
    uint32_t place = 0;
    for (uint32_t r = 0; r < l->t->c.nranks; r++) {
        if (in(l->all, r) && !in(dead, r))
            list[how.nranks++] = place;
        place += in(l->all, r);
    }
    how.ranks = list;
    return tamis_comm_shrink(comm, &how, out);
}

/* @param found  [out]  what found the ranks; as before where nobody asked it */
static void find_left(life *l, uint32_t dead, tamis_comm **found, tamis_comm **smaller) {
    test_rank *self = l->self;
    bool refused = l->t->by_device && tam_setting_number(TAM_SETTING_GRAPHS) != 0;
    if (l->t->c.way == LIST) {
        RANK_STATUS(self, refused ? TAMIS_E_UNSUPPORTED : TAMIS_OK,
                    shrink(l, l->comm, dead, smaller));
        l->t->refused[self->id] = refused;
        if (!refused)
            return;
        RANK_SAYS(self, "TAMIS_GRAPHS=off");
    }
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    config.timeout_ms = test_long_ms();
    RANK_OK(self, shrink(l, l->found, dead, found));
    RANK_OK(self, tamis_comm_create_nccl(*found, &config, smaller));
}

static void go_on(life *l, uint32_t dead) {
    test_rank *self = l->self;
    tamis_comm *smaller = NULL, *found = l->found;
    tamis_reducer *migrated = NULL;
    tamis_migration report = TAMIS_MIGRATION_INIT;
    double old[N], new[N];
    find_left(l, dead, &found, &smaller);
    if (self->failure[0])
        return;
    RANK_OK(self, tamis_reducer_migrate(l->r, smaller, &report, &migrated));
    RANK_CHECK(self, report.gone == count(dead), "%u are gone", report.gone);
    l->t->left_at[dead == l->t->c.dead[0] ? 0 : 1] = report.step;
    RANK_CHECK(self, report.step == l->r->step && migrated->step == l->r->step,
               "it is at step %llu", (unsigned long long)report.step);
    hold(l, old);
    tamis_reducer_destroy(l->r);
    tamis_comm_destroy(l->comm);
    if (found != l->found && l->found != self->comm)
        tamis_comm_destroy(l->found);
    l->r = migrated;
    l->comm = smaller;
    l->found = found;
    l->all &= ~dead;
    hold(l, new);
    RANK_CHECK(self, memcmp(old, new, sizeof old) == 0,
               "the residual is another after the migration");
}

static void end(life *l) {
    trial *t = l->t;
    uint32_t dead = t->c.dead[0] | t->c.dead[1];
    if (!in(dead, l->self->id))
        atomic_fetch_add(&t->done, 1);
    while (in(dead, l->self->id) && atomic_load(&t->done) < t->c.nranks - count(dead))
        sleep_ms(1);
    if (in(dead, l->self->id))
        (void)tamis_comm_abort(l->comm);
    tamis_reducer_destroy(l->r);
    tamis_comm_destroy(l->comm);
    if (l->found != l->self->comm)
        tamis_comm_destroy(l->found);
    cudaStreamDestroy(l->stream);
    cudaFree(l->grad);
}

static void live_on(life *l) {
    test_rank *self = l->self;
    trial *t = l->t;
    bool dies = in(t->c.dead[0] | t->c.dead[1], self->id);
    if (self->id == 0)
        t->by_device = strcmp(l->r->driver->name, "stream") == 0;
    for (int n = 0; n < LIVES && t->c.dead[n] != 0 && !self->failure[0]; n++) {
        for (int i = 0; i < BEFORE && !self->failure[0]; i++)
            RANK_OK(self, one_step(l));
        if (in(t->c.dead[n], self->id)) {
            die(l, n);
            break;
        }
        notice(l, n);
        if (!self->failure[0])
            go_on(l, t->c.dead[n]);
    }
    for (int i = 0; i < AFTER && !dies && !self->failure[0]; i++)
        RANK_OK(self, one_step(l));
    if (!dies && !self->failure[0])
        hold(l, t->held[self->id]);
    t->step[self->id] = l->r->step;
}

/* The dead wait for the others, so whoever fails must get here, too. */
static void live(test_rank *self) {
    life l = {
        .t = self->shared, .self = self, .found = self->comm, .all = (1u << self->nranks) - 1};
    be_born(&l);
    if (!self->failure[0])
        live_on(&l);
    end(&l);
}

/* -- what must hold afterwards ---------------------------------------------------------------- */

static void check_left(const trial *t, fake_cuda_objects before) {
    fake_cuda_objects now = fake_cuda_alive();
    if (!atomic_load(&t->abandoned) && memcmp(&now, &before, sizeof now) != 0)
        fail_msg("[%s] left: %u allocations, %u streams, %u communicators", test_context_text(),
                 now.allocations - before.allocations, now.streams - before.streams,
                 now.comms - before.comms);
}

static void check_replicas(const trial *t) {
    uint32_t dead = t->c.dead[0] | t->c.dead[1], first = (uint32_t)__builtin_ctz(~dead);
    for (uint32_t r = 0; r < t->c.nranks; r++)
        if (!in(dead, r) && (t->hash[r] != t->hash[first] || t->step[r] != t->step[first]))
            fail_msg("[%s] ranks %u and %u hold other bits, at steps %llu and %llu",
                     test_context_text(), first, r, (unsigned long long)t->step[first],
                     (unsigned long long)t->step[r]);
}

/* How much later, or earlier, the others went on than a rank stopped that died within a step. */
static int steps_missed(const trial *t, uint32_t r) {
    for (int n = 0; n < LIVES; n++)
        if (in(t->c.dead[n], r) && t->c.phase == WITHIN)
            return (int)((int64_t)t->left_at[n] - (int64_t)t->step[r]);
    return 0;
}

/* A rank gave all of an entry to its last step, or nothing. So where the others applied that
 * step and it did not, either they have what it holds, or it was not given. */
static void check_entry(const trial *t, size_t i) {
    uint32_t first = (uint32_t)__builtin_ctz(~(t->c.dead[0] | t->c.dead[1]));
    double given = 0.0, there = t->applied[first][i], twice = 0.0;
    for (uint32_t r = 0; r < t->c.nranks; r++) {
        int missed = steps_missed(t, r);
        given += t->given[r][i];
        there += missed < 0 ? t->alone[r][i] : t->held[r][i];
        twice += missed > 0 ? t->held[r][i] : 0.0;
    }
    if (given != there && given != there - twice)
        fail_msg("[%s] entry %zu: %g was given, %g is there", test_context_text(), i, given, there);
}

static void check_mass(const trial *t) {
    for (size_t i = 0; i < N; i++)
        check_entry(t, i);
}

static void run(const migrate_case *c) {
    trial *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->c = *c;
    fake_cuda_objects before = fake_cuda_alive();
    test_context("%s on %s, P=%u, %x die, then %x, phase %d, after %u us, way %d", c->scheme,
                 c->device == TAMIS_DEVICE_CUDA ? "cuda" : "cpu", c->nranks, c->dead[0], c->dead[1],
                 (int)c->phase, c->within_us, (int)c->way);
    ranks_run(c->nranks, 0, live, t);
    check_left(t, before);
    check_replicas(t);
    if (!c->update && strcmp(c->scheme, "dense") != 0)
        check_mass(t);
    free(t);
}

static const tamis_update adam = {
    sizeof(tamis_update), TAMIS_UPDATE_ADAM, 0.9, 0.99, 1e-8, 2.0, 0.0};

static void at_every_phase(const migrate_case *like) {
    migrate_case c = *like;
    for (int w = LIST; w <= BOOTSTRAP; w++)
        for (int p = AT_REST; p <= APPLIED; p++) {
            c.way = (way)w;
            c.phase = (phase)p;
            c.within_us = (uint32_t)(data_mix((uint64_t)w * 3 + like->nranks) % 2000);
            if (test_drawn(5))
                run(&c);
        }
}

static void on_a_device(void **state) {
    static const char *const schemes[] = {"tamis", "dense", "topk"};
    (void)state;
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        migrate_case c = {
            .scheme = schemes[i], .device = TAMIS_DEVICE_CUDA, .nranks = 4, .dead = {2}};
        c.bucket_length = i == 2 ? 200 : 0;
        at_every_phase(&c);
    }
}

static void driven_by_the_host(void **state) {
    (void)state;
    migrate_case c = {.scheme = "deft", .device = TAMIS_DEVICE_CUDA, .nranks = 4, .dead = {8}};
    at_every_phase(&c);
    c.scheme = "tamis";
    c.update = &adam;
    at_every_phase(&c);
    c = (migrate_case){.scheme = "tamis", .device = TAMIS_DEVICE_CPU, .nranks = 4, .dead = {1}};
    at_every_phase(&c);
}

static void twice_in_a_run(void **state) {
    (void)state;
    for (int w = LIST; w <= BOOTSTRAP; w++) {
        migrate_case c = {.scheme = "tamis",
                          .device = TAMIS_DEVICE_CUDA,
                          .nranks = 4,
                          .dead = {4, 1},
                          .phase = WITHIN,
                          .within_us = 300,
                          .way = (way)w};
        run(&c);
        c.phase = AT_REST;
        run(&c);
    }
}

/* Where some have applied a step that others have not, a device cannot roll back: all ranks get
 * that error. */
static void fall_apart(life *l, void *saved, size_t bytes) {
    test_rank *self = l->self;
    tamis_comm *found = self->comm, *smaller = NULL;
    tamis_reducer *migrated = NULL;
    for (int i = 0; i < BEFORE && !self->failure[0]; i++) {
        if (i + 1 == BEFORE)
            RANK_OK(self, tamis_reducer_save_control(l->r, saved, bytes));
        RANK_OK(self, one_step(l));
    }
    if (in(l->t->c.dead[0], self->id))
        return;
    notice(l, 0);
    if (self->id == 1)
        RANK_OK(self, tamis_reducer_load_memory(l->r, saved, bytes, NULL));
    find_left(l, l->t->c.dead[0], &found, &smaller);
    RANK_STATUS(self, TAMIS_E_UNSUPPORTED, tamis_reducer_migrate(l->r, smaller, NULL, &migrated));
    RANK_SAYS(self, "rank 0 at step 3 cannot go back");
    tamis_comm_destroy(smaller);
    if (found != self->comm)
        tamis_comm_destroy(found);
}

static void be_apart(test_rank *self) {
    life l = {.t = self->shared, .self = self, .found = self->comm, .all = 7};
    void *saved = NULL;
    size_t bytes = 0;
    be_born(&l);
    if (!self->failure[0] && tamis_reducer_control_bytes(l.r, &bytes) == TAMIS_OK)
        saved = malloc(bytes);
    if (saved)
        fall_apart(&l, saved, bytes);
    free(saved);
    end(&l);
}

static void a_step_apart_is_refused_on_all(void **state) {
    trial *t = calloc(1, sizeof *t);
    fake_cuda_objects before = fake_cuda_alive();
    (void)state;
    assert_non_null(t);
    t->c = (migrate_case){
        .scheme = "tamis", .device = TAMIS_DEVICE_CUDA, .nranks = 3, .dead = {4}, .way = BOOTSTRAP};
    test_context("a step apart");
    ranks_run(3, 0, be_apart, t);
    check_left(t, before);
    free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_a_device),
        cmocka_unit_test(driven_by_the_host),
        cmocka_unit_test(twice_in_a_run),
        cmocka_unit_test(a_step_apart_is_refused_on_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
