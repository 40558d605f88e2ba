/* SPDX-License-Identifier: MIT
 *
 * Texts as numbers: the order of tokens, lengths around the buffers of the reader, and what is no
 * text.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#include "bench/train/text.h"

static char path[] = "/tmp/tamis_text_XXXXXX";

static void put(const void *bytes, size_t length, size_t times) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    for (size_t i = 0; i < times; i++)
        assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static void tokens_follow_the_order_of_bytes(void **state) {
    (void)state;
    const char bytes[] = "ba\nc\xff"
                         "ab\0"
                         "c";
    const uint8_t tokens[] = {3, 2, 1, 4, 5, 2, 3, 0, 4}, characters[] = "\0\nabc\xff";
    char error[200];
    text t;
    put(bytes, sizeof bytes - 1, 1);
    assert_true(text_load(path, &t, error, sizeof error));
    assert_int_equal(t.length, sizeof tokens);
    assert_int_equal(t.vocabulary, 6);
    assert_memory_equal(t.tokens, tokens, sizeof tokens);
    assert_memory_equal(t.characters, characters, 6);
    text_free(&t);
}

/* The reader's buffer has 2^20 bytes at first. */
static void long_texts_are_read_to_their_end(void **state) {
    (void)state;
    char error[200], line[1024];
    text t;
    memset(line, 'x', sizeof line);
    line[sizeof line - 1] = '.';
    for (size_t lines = 1023; lines <= 2049; lines += lines == 1025 ? 1023 : 1) {
        put(line, sizeof line, lines);
        assert_true(text_load(path, &t, error, sizeof error));
        assert_int_equal(t.length, lines * sizeof line);
        assert_int_equal(t.tokens[t.length - 1], 0);
        assert_int_equal(t.tokens[t.length - 2], 1);
        text_free(&t);
    }
}

static void what_is_no_file_is_named(void **state) {
    (void)state;
    char error[200] = "";
    text t;
    assert_false(text_load("/nowhere/at/all", &t, error, sizeof error));
    assert_string_equal(error, "/nowhere/at/all: No such file or directory");
    assert_false(text_load("/tmp", &t, error, sizeof error));
    assert_string_equal(error, "/tmp: Is a directory");
}

/* Ten windows of 9 and the characters after them are the least: one of them is for validation. */
static void too_short_texts_are_refused_with_what_is_needed(void **state) {
    (void)state;
    train_settings settings = {.data = path, .context = 8};
    workload_data data;
    char error[400] = "";
    put("ab", 2, 44);
    assert_false(workload_lm.load(&settings, &data, error, sizeof error));
    assert_non_null(strstr(error, "88 bytes"));
    assert_non_null(strstr(error, "needs 90 bytes"));
    put("", 0, 1);
    assert_false(workload_lm.load(&settings, &data, error, sizeof error));
    put("a", 1, 500);
    assert_false(workload_lm.load(&settings, &data, error, sizeof error));
    assert_non_null(strstr(error, "two different values"));
    put("ab", 2, 45);
    assert_true(workload_lm.load(&settings, &data, error, sizeof error));
    assert_int_equal(data.count[WORKLOAD_VALIDATE], 1);
    assert_int_equal(data.count[WORKLOAD_TRAIN], 10);
    workload_lm.unload(&data);
}

static int make_path(void **state) {
    int file = mkstemp(path);
    (void)state;
    return file < 0 ? -1 : close(file);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_follow_the_order_of_bytes),
        cmocka_unit_test(long_texts_are_read_to_their_end),
        cmocka_unit_test(what_is_no_file_is_named),
        cmocka_unit_test(too_short_texts_are_refused_with_what_is_needed),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
