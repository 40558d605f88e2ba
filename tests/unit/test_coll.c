/* SPDX-License-Identifier: MIT
 *
 * Staged collectives of all plans on a simulated network: what arrives, the bits of sums, messages.
 */
#include "tests/support/ranks.h"
#include "tests/unit/coll_job.h"

#include "lib/contracts/value_codec.h"
#include "lib/base/tree.h"
#include "lib/policy/shards.h"

/* -- the definitions -------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* Values of very different sizes, so that another order gives other bits. */
static float value_of(uint32_t rank, size_t i) {
    uint64_t h = mix(rank * UINT64_C(0x10001) + i * UINT64_C(0x9e3779b97f4a7c15) + 1);
    return ldexpf((float)(int32_t)(h & 0xffffff) - 8388607.5f, (int)(h >> 60) - 30);
}

/* The sum over `count` virtual ranks from `vrank` on; virtual ranks without real ones are
 * skipped. */
static bool tree(uint32_t nranks, uint32_t nvranks, uint32_t vrank, uint32_t count, size_t i,
                 float *out) {
    if (count == 1) {
        uint32_t own = 2 * nranks - nvranks;
        if (vrank >= own && vrank % 2 == 1)
            return false;
        *out = value_of(vrank < own ? vrank : (vrank + own) / 2, i);
        return true;
    }
    float right;
    bool has_left = tree(nranks, nvranks, vrank, count / 2, i, out);
    bool has_right = tree(nranks, nvranks, vrank + count / 2, count / 2, i, &right);
    if (has_right)
        *out = has_left ? *out + right : right;
    return has_left || has_right;
}

/* -- cases ------------------------------------------------------------------------------------ */

static void sums_have_the_bits_of_the_tree(const tam_plan *plan, size_t count, size_t chunk) {
    job j = open_job(plan, chunk, 0);
    uint32_t n = plan->nranks;
    float *values = calloc(n * count + 1, sizeof *values);
    for (uint32_t r = 0; r < n; r++) {
        for (size_t i = 0; i < count; i++)
            values[r * count + i] = value_of(r, i);
        tam_coll_begin_sum(&j.colls[r], values + r * count, count, NULL);
    }
    assert_int_equal(run(&j), TAMIS_OK);
    for (size_t i = 0; i < count; i++) {
        float sum;
        tree(n, plan->nvranks, 0, plan->nvranks, i, &sum);
        for (uint32_t r = 0; r < n; r++) {
            if (memcmp(&values[r * count + i], &sum, sizeof sum) != 0)
                fail_msg("P %u, %u stages: rank %u, element %zu: %a, not %a", n, plan->nstages, r,
                         i, (double)values[r * count + i], (double)sum);
        }
    }
    free(values);
    close_job(&j);
}

static void gathers_bring_all_to_all(const tam_plan *plan, size_t bytes, size_t chunk) {
    job j = open_job(plan, chunk, 0);
    uint32_t n = plan->nranks;
    unsigned char *sent = calloc(n, bytes + 1), *came = calloc((size_t)n * n, bytes + 1);
    for (size_t i = 0; i < n * bytes; i++)
        sent[i] = (unsigned char)mix(i);
    for (uint32_t r = 0; r < n; r++)
        tam_coll_begin_gather(&j.colls[r], sent + r * bytes, bytes, came + r * n * bytes);
    assert_int_equal(run(&j), TAMIS_OK);
    for (uint32_t r = 0; r < n; r++)
        assert_memory_equal(came + r * n * bytes, sent, n * bytes);
    free(sent);
    free(came);
    close_job(&j);
}

static size_t run_length(uint32_t from, uint32_t to) {
    return (from * 7 + to * 3) % 5 * 37;
}

static void runs_reach_whom_they_are_for(const tam_plan *plan, size_t chunk) {
    job j = open_job(plan, chunk, 0);
    uint32_t n = plan->nranks;
    enum { MOST = 160 };
    size_t *at = calloc(2 * n * (n + 1), sizeof *at);
    unsigned char *memory = calloc(2 * (size_t)n * n, MOST);
    for (uint32_t r = 0; r < n; r++) {
        size_t *send_at = at + 2 * r * (n + 1), *recv_at = send_at + n + 1;
        unsigned char *send = memory + 2 * (size_t)r * n * MOST, *recv = send + n * MOST;
        for (uint32_t q = 0; q < n; q++) {
            send_at[q + 1] = send_at[q] + run_length(r, q);
            recv_at[q + 1] = recv_at[q] + run_length(q, r);
            memset(send + send_at[q], (int)(r * 16 + q), run_length(r, q));
        }
        tam_coll_begin_runs(&j.colls[r], send, send_at, recv, recv_at);
    }
    assert_int_equal(run(&j), TAMIS_OK);
    for (uint32_t r = 0; r < n; r++) {
        const size_t *recv_at = at + 2 * r * (n + 1) + n + 1;
        const unsigned char *recv = memory + (2 * (size_t)r + 1) * n * MOST;
        for (uint32_t q = 0; q < n; q++) {
            for (size_t i = recv_at[q]; i < recv_at[q + 1]; i++)
                assert_int_equal(recv[i], (unsigned char)(q * 16 + r));
        }
    }
    free(at);
    free(memory);
    close_job(&j);
}

static void all_plans(uint32_t nranks, void (*body)(const tam_plan *plan)) {
    static const uint32_t radices[] = {2, 4, 8, 32};
    tam_plan plan = tam_plan_linear(nranks);
    body(&plan);
    for (size_t i = 0; i < sizeof radices / sizeof radices[0]; i++) {
        plan = tam_plan_make(nranks, 1, radices[i]);
        body(&plan);
        plan = tam_plan_make(nranks, 4, radices[i]);
        body(&plan);
    }
}

static void try_all(const tam_plan *plan) {
    uint32_t n = plan->nranks;
    sums_have_the_bits_of_the_tree(plan, 40 * n + 3, 128); /* several chunks */
    sums_have_the_bits_of_the_tree(plan, 1, 128);          /* most shards are empty */
    gathers_bring_all_to_all(plan, 24, 128);
    gathers_bring_all_to_all(plan, 300, 128); /* longer than a chunk */
    gathers_bring_all_to_all(plan, 0, 128);
    if (plan->nstages < 2)
        return;
    tam_plan fused = *plan;
    fused.fused_bytes = 1024;
    sums_have_the_bits_of_the_tree(&fused, 40 * n + 3, 1 << 14);
    sums_have_the_bits_of_the_tree(&fused, 1, 1 << 14);
}

static void every_plan_gives_the_bits_of_the_tree(void **state) {
    (void)state;
    for (uint32_t p = 1; p <= 40; p += p < 20 ? 1 : 4)
        if (p < 8 || test_drawn(3))
            all_plans(p, try_all);
    for (uint32_t p = 41; p <= 130; p += p < 64 ? 3 : 11) {
        tam_plan plan = tam_plan_make(p, 1, 8);
        try_all(&plan);
    }
}

/* -- fused at the border ---------------------------------------------------------------------- */

static void seal_tag(tam_tag *tag, uint32_t rank, uint64_t step, uint64_t counter) {
    *tag = (tam_tag){.rank = rank, .step = step, .counter = counter};
    tam_tag_seal(tag);
}

/* Sums one after the other over the same ranks, each of which adds a counter. */
static void tagged_sums_in_turn(const tam_plan *plan, size_t chunk, size_t least, size_t most) {
    job j = open_job(plan, chunk, 0);
    uint32_t n = plan->nranks;
    float *values = calloc(n * most + 1, sizeof *values);
    tam_tag *tags = calloc(n, sizeof *tags);
    for (size_t count = least; count <= most; count++) {
        uint64_t counters = 0;
        for (uint32_t r = 0; r < n; r++) {
            for (size_t i = 0; i < count; i++)
                values[r * count + i] = value_of(r, i);
            seal_tag(&tags[r], r, count, 1 + r * r);
            counters += 1 + r * r;
            tam_coll_begin_sum(&j.colls[r], count > 0 ? values + r * count : NULL, count, &tags[r]);
        }
        assert_int_equal(run(&j), TAMIS_OK);
        for (uint32_t r = 0; r < n; r++)
            assert_int_equal(j.colls[r].counter, counters);
        for (size_t i = 0; i < count; i++) {
            float sum;
            tree(n, plan->nvranks, 0, plan->nvranks, i, &sum);
            for (uint32_t r = 0; r < n; r++)
                assert_memory_equal(&values[r * count + i], &sum, sizeof sum);
        }
    }
    free(tags);
    free(values);
    close_job(&j);
}

/* Around the longest sum whose last stage is fused, with the longest parts that a chunk allows; and
 * of fewer values than ranks, or of none. */
static void tagged_sums_at_the_border(void **state) {
    enum { CHUNK = 512 };
    (void)state;
    for (uint32_t p = 3; p <= 36; p += p < 20 ? 1 : 5)
        for (uint32_t radix = 2; radix <= 8; radix *= 2) {
            tam_plan plan = tam_plan_make(p, 1, radix);
            if (plan.nstages < 2)
                continue;
            plan.fused_bytes = CHUNK / 4 / (plan.nvranks == p ? 1 : 2);
            uint32_t stride = plan.nvranks / plan.radix[plan.nstages - 1];
            size_t border = ((plan.fused_bytes + 1) * stride - 1) / sizeof(float);
            assert_true(tam_plan_fuses(&plan, border * sizeof(float)));
            assert_false(tam_plan_fuses(&plan, (border + 1) * sizeof(float)));
            tagged_sums_in_turn(&plan, CHUNK, 0, 9);
            tagged_sums_in_turn(&plan, CHUNK, border - 2, border + 2);
        }
}

/* A rank that sums for two virtual ranks receives one in a message by itself, the other in
 * the header. */
static void shards_may_end_at_a_chunk(void **state) {
    (void)state;
    enum { CHUNK = 512, FLOATS = CHUNK / 2 / sizeof(float) }; /* of each of two streams */
    static const uint32_t sizes[] = {3, 6, 11, 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        tam_plan plans[] = {tam_plan_linear(sizes[i]), tam_plan_make(sizes[i], 1, 4)};
        uint32_t shards = 2 * sizes[i]; /* of one length, but for a rank with one virtual rank */
        for (size_t p = 0; p < 2; p++)
            for (uint32_t more = 0; more < shards; more++)
                sums_have_the_bits_of_the_tree(&plans[p], shards * FLOATS + more, CHUNK);
    }
}

static void runs_arrive(void **state) {
    (void)state;
    for (uint32_t p = 1; p <= 33; p++) {
        tam_plan plan = tam_plan_make(p, 1, 8);
        runs_reach_whom_they_are_for(&plan, 128);
        runs_reach_whom_they_are_for(&plan, 1 << 12);
    }
}

/* -- values in another form ------------------------------------------------------------------- */

typedef struct encoded {
    size_t count, up_bytes, down_bytes;
    float *values;       /* [ranks][count] */
    unsigned char *up;   /* [ranks] encoded values */
    unsigned char *down; /* [ranks] encoded sums: own shards, then all */
    unsigned char *all;  /* the list of all sums */
} encoded;

/* Encoded values, and their encoded sums by the definition. */
static encoded make_encoded(const tam_plan *plan, const tam_value_codec *up,
                            const tam_value_codec *down, size_t count) {
    uint32_t n = plan->nranks;
    encoded l = {.count = count,
                 .up_bytes = tam_value_bytes(up, count),
                 .down_bytes = tam_value_bytes(down, count)};
    float *sums = calloc(count + 1, sizeof *sums), *given = calloc(count + 1, sizeof *given);
    l.values = calloc(n * count + 1, sizeof *l.values);
    l.up = calloc(n, l.up_bytes + 1);
    l.down = calloc(n, l.down_bytes + 1);
    l.all = calloc(1, l.down_bytes + 1);
    for (uint32_t r = 0; r < n; r++) {
        for (size_t i = 0; i < count; i++)
            given[i] = value_of(r, i);
        tam_value_encode(up, given, count, l.up + r * l.up_bytes, NULL);
        assert_true(tam_value_decode(up, l.up + r * l.up_bytes, count, l.values + r * count));
    }
    tam_tree_add_up(l.values, count, n, count, sums);
    tam_value_encode(down, sums, count, l.all, NULL);
    free(given);
    free(sums);
    return l;
}

static void free_encoded(encoded *l) {
    free(l->values);
    free(l->up);
    free(l->down);
    free(l->all);
}

/* The owners' shards of all ranks cover the vector once. */
static void encode_own(encoded *l, uint32_t nranks, uint32_t rank, const tam_value_codec *down,
                       unsigned *owners) {
    tam_owned own[2];
    uint32_t nown = tam_shards_of(l->count, TAM_VALUE_BLOCK, nranks, rank, own);
    for (uint32_t i = 0; i < nown; i++) {
        unsigned char *to = l->down + rank * l->down_bytes + tam_value_bytes(down, own[i].begin);
        tam_value_encode(down, l->values + rank * l->count + own[i].begin, own[i].length, to, NULL);
        for (size_t at = own[i].begin; at < own[i].begin + own[i].length; at++)
            owners[at]++;
    }
}

static void encoded_are_summed(const tam_plan *plan, tamis_value_codec up, tamis_value_codec down,
                               size_t count, size_t chunk) {
    const tam_value_codec *u = tam_value_codec_of(up), *d = tam_value_codec_of(down);
    uint32_t n = plan->nranks;
    job j = open_job(plan, chunk, 0);
    encoded l = make_encoded(plan, u, d, count);
    unsigned *owners = calloc(count + 1, sizeof *owners);
    for (uint32_t r = 0; r < n; r++)
        tam_coll_begin_scatter(&j.colls[r], u, l.up + r * l.up_bytes, l.values + r * count, count,
                               NULL);
    assert_int_equal(run(&j), TAMIS_OK);
    for (uint32_t r = 0; r < n; r++)
        encode_own(&l, n, r, d, owners);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(owners[i], 1);
    for (uint32_t r = 0; r < n; r++)
        tam_coll_begin_spread(&j.colls[r], d, l.down + r * l.down_bytes, count);
    assert_int_equal(run(&j), TAMIS_OK);
    for (uint32_t r = 0; r < n; r++) {
        if (memcmp(l.down + r * l.down_bytes, l.all, l.down_bytes) != 0)
            fail_msg("P %u, %u stages, %s to %s: rank %u has other sums", n, plan->nstages, u->name,
                     d->name, r);
    }
    free(owners);
    free_encoded(&l);
    close_job(&j);
}

static void try_encoded(const tam_plan *plan) {
    uint32_t n = plan->nranks;
    encoded_are_summed(plan, TAMIS_VALUE_FP4, TAMIS_VALUE_INT8, 256 * n + 77, 128);
    encoded_are_summed(plan, TAMIS_VALUE_FP2, TAMIS_VALUE_FP4, 100, 512);
}

static void every_plan_sums_values_in_another_form(void **state) {
    static const uint32_t large[] = {64, 100, 255, 257};
    (void)state;
    for (uint32_t p = 1; p <= 20; p++)
        if (p < 8 || test_drawn(3))
            all_plans(p, try_encoded);
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        if (!test_drawn(2))
            continue;
        tam_plan plan = tam_plan_make(large[i], 8, 8);
        try_encoded(&plan);
    }
    for (tamis_value_codec t = TAMIS_VALUE_FLOAT32; t < TAMIS_VALUE_END; t++)
        for (uint32_t p = 5; p <= 8; p += 3) {
            tam_plan plan = tam_plan_make(p, 1, 4);
            encoded_are_summed(&plan, t, TAMIS_VALUE_BFLOAT16, 20000, 2048); /* several chunks */
            encoded_are_summed(&plan, TAMIS_VALUE_INT8, t, 20000, 8192);     /* by themselves */
            encoded_are_summed(&plan, t, t, 0, 2048);
        }
}

/* -- large jobs ------------------------------------------------------------------------------- */

static void sums_of_large_jobs_have_the_same_bits(void **state) {
    (void)state;
    static const uint32_t sizes[] = {192, 255, 256, 257, 1000, 1024, 4096};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (!test_drawn(2))
            continue;
        tam_plan plan = tam_plan_make(sizes[i], 8, 8);
        sums_have_the_bits_of_the_tree(&plan, 1500, 512);
        plan.fused_bytes = 64;
        sums_have_the_bits_of_the_tree(&plan, 1500, 512);
    }
}

typedef struct count {
    uint64_t messages, bytes; /* of the rank that sends most */
    double seconds;
} count;

/* An all-gather and a sum, of which no byte is read or written. */
static count count_step(const tam_plan *plan, size_t gathered, size_t summed) {
    uint32_t nranks = plan->nranks;
    job j = open_job_of(plan, TAM_COLL_CHUNK, &(tam_sim_config){.held = sizeof(tam_envelope)});
    count c = {0};
    double seconds;
    for (int part = 0; part < 2; part++) {
        for (uint32_t r = 0; r < nranks; r++) {
            if (part == 0)
                tam_coll_begin_gather(&j.colls[r], NULL, gathered, NULL);
            else
                tam_coll_begin_sum(&j.colls[r], NULL, summed, NULL);
        }
        assert_int_equal(tam_sim_run(j.sim, advance, &j, &seconds), TAMIS_OK);
    }
    c.seconds = seconds;
    for (uint32_t r = 0; r < nranks; r++) {
        const tam_coll *coll = &j.colls[r];
        c.messages = coll->messages > c.messages ? coll->messages : c.messages;
        c.bytes = coll->wire_bytes > c.bytes ? coll->wire_bytes : c.bytes;
    }
    close_job(&j);
    return c;
}

/* Three phases, of which each stage sends radix - 1 messages. All-gather and sum of so many bytes
 * reach all others once, or twice: plus an envelope a message. */
static void few_messages_are_sent(void **state) {
    (void)state;
    static const struct {
        uint32_t nranks, most;
    } cases[] = {{64, 42}, {256, 51}, {1024, 66}, {4096, 84}};
    enum { K = 4096 * 16 };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t p = cases[i].nranks;
        tam_plan plan = tam_plan_make(p, 8, 8);
        count c = count_step(&plan, 40, K);
        uint64_t content = 40 * (p - 1) + 2 * (K * sizeof(float) / p) * (p - 1);
        assert_int_equal(c.messages, cases[i].most);
        assert_int_equal(c.bytes, content + c.messages * sizeof(tam_envelope));
    }
}

/* The last stage has one message a peer where it had two, each of the part that all share. */
static void small_sums_cross_the_last_stage_once(void **state) {
    (void)state;
    enum { P = 512, RADIX = 8, EACH = 4 * RADIX, K = P * EACH }; /* parts of the last: 1 KiB */
    tam_plan plan = tam_plan_usual(P, 8);
    count fused = count_step(&plan, 40, K), not = count_step(&plan, 40, K + P / RADIX);
    uint64_t each = EACH * sizeof(float);
    assert_int_equal(fused.messages + RADIX - 1, not .messages);
    uint64_t content = 40 * (P - 1) + 2 * each * (P - RADIX) + each * RADIX * (RADIX - 1);
    assert_int_equal(fused.bytes, content + fused.messages * sizeof(tam_envelope));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_gives_the_bits_of_the_tree),
        cmocka_unit_test(tagged_sums_at_the_border),
        cmocka_unit_test(shards_may_end_at_a_chunk),
        cmocka_unit_test(every_plan_sums_values_in_another_form),
        cmocka_unit_test(runs_arrive),
        cmocka_unit_test(sums_of_large_jobs_have_the_same_bits),
        cmocka_unit_test(few_messages_are_sent),
        cmocka_unit_test(small_sums_cross_the_last_stage_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
