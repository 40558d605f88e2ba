/* SPDX-License-Identifier: MIT
 *
 * docs/cuda.md says of every exchange how a device runs it.
 */
#include "collectives/exchange/table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

static const char *const ways[TAM_ON_DEVICE_ROW_COUNT] = {
    [TAM_ON_DEVICE_NOT] = "none: the host drives",
    [TAM_ON_DEVICE_DENSE] = "dense",
    [TAM_ON_DEVICE_PACKETS] = "packets",
    [TAM_ON_DEVICE_ROWS] = "rows",
    [TAM_ON_DEVICE_NODES] = "nodes",
};

static char *read_document(void) {
    FILE *file = fopen(TAM_TREE "/docs/cuda.md", "rb");
    enum { MOST = 1 << 20 };
    char *text = calloc(1, MOST);
    assert_true(file && text);
    size_t length = fread(text, 1, MOST - 1, file);
    assert_true(length > 0 && length < MOST - 1);
    fclose(file);
    return text;
}

static void test_the_document_has_every_exchange(void **state) {
    (void)state;
#define NAME(NAME, name, word) word,
    static const char *const names[] = {TAM_EXCHANGES(NAME)};
    char *text = read_document(), line[128], table[1024];
    size_t at = 0;
    for (tam_exchange_kind kind = 0; kind < TAM_EXCHANGE_KINDS; kind++)
        at += (size_t)snprintf(table + at, sizeof table - at, "| `%s` | %s |\n", names[kind],
                               ways[tam_exchange_flat(kind)->on_device]);
    snprintf(line, sizeof line, "| hierarchical | %s |\n\n",
             ways[tam_exchange_hierarchical.on_device]);
    at += (size_t)snprintf(table + at, sizeof table - at, "%s", line);
    assert_true(at < sizeof table);
    if (!strstr(text, table))
        fail_msg("docs/cuda.md, Who drives a step, lacks\n%s", table);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_document_has_every_exchange),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
