/* SPDX-License-Identifier: MIT
 *
 * Values that come to the owner of a shard damaged: only the owner sees it, and all ranks refuse
 * the sums, in the same step and without anybody's abort.
 */
#include "collectives/transport/faulty.h"
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { N = 4000, RANKS = 3, BAD = 1, TO_OWNERS = 1, BIT = 77 }; /* after the packets */

static void refuse(test_rank *self) {
    const tamis_value_codec *value_codec = self->shared;
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *reducer = NULL;
    float gradient[N];
    const tamis_step step = data_step(gradient);
    config.scheme = "cyclic+global+exact+union";
    config.density = 0.5;
    config.value_codec = *value_codec;
    RANK_OK(self, data_reducer(self->comm, N, &config, &reducer));
    if (self->id == BAD)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_FLIP, TO_OWNERS, BIT));
    data_fill(DATA_HEAVY, self->id, 0, N, gradient);
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reducer_wait(reducer));
    RANK_CHECK(self,
               strstr(tamis_last_error(), self->id == BAD ? "as received by rank 1, were refused"
                                                          : "values of rank 1, as received by"),
               "it says: %s", tamis_last_error());
    tamis_reducer_destroy(reducer);
}

static void test_what_one_owner_refuses_all_refuse(void **state) {
    static tamis_value_codec value_codecs[] = {TAMIS_VALUE_BFLOAT16, TAMIS_VALUE_INT8,
                                               TAMIS_VALUE_FP4};
    (void)state;
    for (size_t w = 0; w < sizeof value_codecs / sizeof value_codecs[0]; w++) {
        test_context("value codec %d", (int)value_codecs[w]);
        ranks_run(RANKS, 0, refuse, &value_codecs[w]);
    }
}

/* -- a packing -------------------------------------------------------------------------------- */

/* Rank 0 packs for all in the first step, and gives its largest group to rank 0: a bit makes that
 * 2, of two ranks. */
static void pack_for_nobody(test_rank *self) {
    static const tamis_segment segments[] = {{"a", 100}, {"b", 60}, {"c", 40}};
    enum { BIT_OF_2 = 1 };
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_layout *layout = NULL;
    tamis_reducer *reducer = NULL;
    float gradient[200];
    const tamis_step step = data_step(gradient);
    config.scheme = "deft";
    config.density = 0.1;
    RANK_OK(self, tamis_layout_create(segments, 3, &layout));
    RANK_OK(self, tamis_reducer_create(self->comm, layout, &config, &reducer));
    tamis_layout_destroy(layout);
    if (self->id == 0)
        RANK_OK(self, tam_faulty_install(self->comm, TAM_FAULT_SPOIL, 0, BIT_OF_2));
    for (size_t i = 0; i < 200; i++)
        gradient[i] = 1.0f;
    RANK_OK(self, tamis_reducer_start(reducer, &step));
    RANK_STATUS(self, TAMIS_E_PROTOCOL, tamis_reducer_wait(reducer));
    RANK_CHECK(self, strstr(tamis_last_error(), "part 2 is out of range"), "it says: %s",
               tamis_last_error());
    tamis_reducer_destroy(reducer);
}

static void test_a_packing_for_a_rank_that_there_is_not_is_refused(void **state) {
    (void)state;
    test_context("a packing for rank 2 of 2");
    ranks_run(2, 0, pack_for_nobody, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_one_owner_refuses_all_refuse),
        cmocka_unit_test(test_a_packing_for_a_rank_that_there_is_not_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
