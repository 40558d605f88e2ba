/* SPDX-License-Identifier: MIT
 *
 * tamis_comm_allgather and tamis_comm_broadcast: whatever the number of bytes; what ranks do not
 * agree on is named, and nothing is lost by it.
 */
#include "tests/support/data.h"
#include "tests/support/ranks.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

struct scene {
    size_t bytes;
    uint32_t root;
};

static unsigned char value(uint32_t rank, size_t at) {
    return (unsigned char)data_mix(rank * UINT64_C(1000003) + at);
}

static unsigned char *filled(uint32_t rank, size_t bytes) {
    unsigned char *memory = malloc(bytes + 1);
    for (size_t i = 0; memory && i < bytes; i++)
        memory[i] = value(rank, i);
    if (memory)
        memory[bytes] = 0xa5;
    return memory;
}

/* @return the first wrong byte, or `bytes`; one more if what follows was written to */
static size_t find_wrong(const unsigned char *memory, uint32_t rank, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (memory[i] != value(rank, i))
            return i;
    return bytes;
}

static void run_scene(test_rank *self) {
    const struct scene *scene = self->shared;
    size_t bytes = scene->bytes;
    unsigned char *own = filled(self->id, bytes), *all = calloc(self->nranks, bytes + 1);
    RANK_CHECK(self, own && all, "no memory");
    RANK_OK(self, tamis_comm_allgather(self->comm, own, bytes, all));
    for (uint32_t r = 0; r < self->nranks; r++)
        RANK_CHECK(self, find_wrong(all + r * bytes, r, bytes) == bytes, "byte %zu of rank %u",
                   find_wrong(all + r * bytes, r, bytes), r);
    RANK_OK(self, tamis_comm_broadcast(self->comm, scene->root, own, bytes));
    RANK_CHECK(self, find_wrong(own, scene->root, bytes) == bytes && own[bytes] == 0xa5,
               "broadcast: byte %zu", find_wrong(own, scene->root, bytes));
    free(own);
    free(all);
}

static void bytes_arrive(void **state) {
    static const size_t sizes[] = {0, 1, 319, 320, 321, 4096, 100003, (1 << 22) + 1, 9000000};
    (void)state;
    for (uint32_t nranks = 1; nranks <= 5; nranks++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            struct scene scene = {sizes[i], (uint32_t)i % nranks};
            test_context("%u ranks, %zu bytes", nranks, sizes[i]);
            ranks_run(nranks, 0, run_scene, &scene);
        }
    }
}

static void run_wrong(test_rank *self) {
    unsigned char own[1000] = {0}, all[3000];
    bool odd = self->id == 1;
    size_t other = odd ? 999 : 1000;
    uint32_t root = odd ? 2 : 0;
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_allgather(NULL, own, 1, all));
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_broadcast(NULL, 0, own, 1));
    RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_comm_allgather(self->comm, own, other, all));
    RANK_CHECK(self, has_word(tamis_last_error(), "the number of bytes differs"), "%s",
               tamis_last_error());
    RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_comm_broadcast(self->comm, root, own, 1000));
    RANK_CHECK(self, has_word(tamis_last_error(), "the root differs"), "%s", tamis_last_error());
    RANK_STATUS(self, TAMIS_E_ARGUMENT, tamis_comm_broadcast(self->comm, 3, own, 1000));
    RANK_STATUS(self, TAMIS_E_ARGUMENT,
                tamis_comm_allgather(self->comm, odd ? NULL : own, 1000, all));
    RANK_CHECK(self, has_word(tamis_last_error(), "rank 1"), "%s", tamis_last_error());
    RANK_OK(self, tamis_comm_allgather(self->comm, NULL, 0, NULL));
    RANK_OK(self, tamis_comm_broadcast(self->comm, 0, NULL, 0));
    if (odd)
        RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_comm_check_equal(self->comm, own, 10));
    else
        RANK_STATUS(self, TAMIS_E_MISMATCH, tamis_comm_broadcast(self->comm, 0, own, 10));
    RANK_OK(self, tamis_comm_check_equal(self->comm, "unharmed", 8));
}

static void what_differs_is_named(void **state) {
    (void)state;
    test_context("wrong");
    ranks_run(3, 0, run_wrong, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_arrive),
        cmocka_unit_test(what_differs_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
