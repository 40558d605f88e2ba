/* SPDX-License-Identifier: MIT
 *
 * Planned buckets of real models on the links of docs/overlap.md, and the capacity of their
 * messages.
 */
#include "lib/policy/bucket.h"
#include "lib/policy/cost.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SEGMENTS_MOST = 300 };

/* GPT-2 with so many blocks of that width, 148 or 292 segments. */
static size_t fill_gpt2(uint64_t nblocks, uint64_t width, tamis_segment *out) {
    const uint64_t block[] = {1, 1, 3 * width, 3, width, 1, 1, 1, 4 * width, 4, 4 * width, 1};
    size_t count = 0;
    out[count++] = (tamis_segment){NULL, 50257 * width};
    out[count++] = (tamis_segment){NULL, 1024 * width};
    for (uint64_t b = 0; b < nblocks; b++)
        for (size_t i = 0; i < sizeof block / sizeof block[0]; i++)
            out[count++] = (tamis_segment){NULL, block[i] * width};
    out[count++] = (tamis_segment){NULL, width};
    out[count++] = (tamis_segment){NULL, width};
    return count;
}

/* Eight ranks, as docs/overlap.md says of nccl's links. */
static void models_get_few_buckets_on_fast_links(void **state) {
    static const struct {
        uint64_t nblocks, width;
        double density, gbit, latency_s;
        uint32_t expected;
    } cases[] = {
        {12, 768, 0.01, 25, 20e-6, 5},    {12, 768, 0.01, 400, 20e-6, 1},
        {12, 768, 0.01, 2400, 10e-6, 1},  {12, 768, 0.03, 400, 20e-6, 1},
        {24, 1024, 0.01, 25, 20e-6, 15},  {24, 1024, 0.01, 400, 20e-6, 2},
        {24, 1024, 0.01, 2400, 10e-6, 1}, {24, 1024, 0.03, 400, 20e-6, 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tamis_segment segments[SEGMENTS_MOST];
        tam_bucket_range ranges[TAM_BUCKETS_MAX];
        size_t count = fill_gpt2(cases[i].nblocks, cases[i].width, segments);
        tamis_layout *layout;
        assert_int_equal(tamis_layout_create(segments, count, &layout), TAMIS_OK);
        const tam_link_model link = {cases[i].latency_s, 8.0 / (cases[i].gbit * 1e9)};
        const tam_bucket_rule rule = {.length = TAMIS_BUCKETS_PLANNED,
                                      .density = cases[i].density,
                                      .beside_s = 60e-6,
                                      .net = tam_net_of_link(&link, 8, 1),
                                      .plan = tam_plan_usual(8, 1)};
        assert_int_equal(tam_bucket_plan(layout, &rule, ranges), cases[i].expected);
        tamis_layout_destroy(layout);
    }
}

/* All of it travels where a device fixes the sizes of messages. */
static void buckets_have_room_for_a_tenth_more_than_k(void **state) {
    (void)state;
    const uint64_t n = 124439808, k = n / 100;
    for (uint32_t nbuckets = 2; nbuckets <= TAM_BUCKETS_MAX; nbuckets++) {
        uint64_t capacity = nbuckets * tam_bucket_budget_max(k, n / nbuckets, n,
                                                             TAMIS_BUCKET_BUDGET_NORM, nbuckets);
        assert_true(capacity >= k && capacity <= k + k / 10 + nbuckets);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_get_few_buckets_on_fast_links),
        cmocka_unit_test(buckets_have_room_for_a_tenth_more_than_k),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
