/* SPDX-License-Identifier: MIT
 *
 * Sets of states in a folder: a manifest says what was written, and no other bytes pass for one;
 * files are whole or not there; what is older goes, and nothing else does.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

#include "bench/train/sets.h"

static char folder[] = "/tmp/tamis_sets_XXXXXX";

static const char *in_folder(const char *name) {
    static char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *bytes, size_t length) {
    FILE *file = fopen(in_folder(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static size_t get(const char *name, char *bytes, size_t capacity) {
    FILE *file = fopen(in_folder(name), "rb");
    assert_non_null(file);
    size_t length = fread(bytes, 1, capacity, file);
    fclose(file);
    return length;
}

static void write_set(uint64_t step) {
    sets_entry entries[3] = {{10, 0xa}, {UINT64_MAX, UINT64_MAX}, {0, 0}};
    const sets_manifest m = {step, 3, 0x1234, entries};
    files_why why;
    assert_true(sets_write_manifest(folder, &m, &why));
}

static int clear(void **state) {
    (void)state;
    sets_remove_before(folder, SETS_NONE);
    return 0;
}

static void manifests_say_what_was_written(void **state) {
    (void)state;
    sets_manifest m;
    files_why why;
    struct stat about;
    write_set(120);
    assert_true(sets_read_manifest(folder, 120, &m, &why));
    assert_int_equal(m.step, 120);
    assert_int_equal(m.nranks, 3);
    assert_int_equal(m.data_hash, 0x1234);
    assert_int_equal(m.entries[0].bytes, 10);
    assert_true(m.entries[1].hash == UINT64_MAX && m.entries[1].bytes == UINT64_MAX);
    free(m.entries);
    assert_int_equal(stat(in_folder("step000000000120.set"), &about), 0);
    assert_int_equal(about.st_mode & 0777, 0600);
    assert_int_equal(access(in_folder("step000000000120.set.part"), F_OK), -1);
}

/* Every byte changed, in two ways, every length, and the manifest of another step. */
static void other_bytes_are_no_manifest(void **state) {
    (void)state;
    char text[1000], damaged[1000];
    sets_manifest m;
    files_why why;
    write_set(7);
    size_t length = get("step000000000007.set", text, sizeof text);
    for (size_t i = 0; i + 1 < length; i++) { /* without the last newline nothing is lost */
        for (int flip = 1; flip <= 0x80; flip += 0x7f) {
            memcpy(damaged, text, length);
            damaged[i] = (char)(damaged[i] ^ flip);
            put("step000000000007.set", damaged, length);
            assert_false(sets_read_manifest(folder, 7, &m, &why));
            assert_non_null(strstr(why.text, "is damaged"));
        }
        put("step000000000007.set", text, i);
        assert_false(sets_read_manifest(folder, 7, &m, &why));
    }
    put("step000000000008.set", text, length);
    assert_false(sets_read_manifest(folder, 8, &m, &why));
    assert_false(sets_read_manifest(folder, 9, &m, &why));
    assert_non_null(strstr(why.text, "No such file"));
}

static void lists_begin_with_the_newest(void **state) {
    (void)state;
    size_t count;
    assert_int_equal(sets_newest(folder), SETS_NONE);
    write_set(5);
    write_set(900);
    put("step000000000900.rank0.state", "x", 1);
    put("step000000001000.rank11.state", "x", 1);
    put("step000000001001.rank0.state.part", "x", 1);
    put("step5.set", "x", 1); /* not names of ours */
    put("step000000002000.sets", "x", 1);
    put("step000000002000.rank0.state.old", "x", 1);
    sets_found *all = sets_list(folder, &count);
    assert_int_equal(count, 4);
    static const sets_found wanted[] = {{1001, false}, {1000, false}, {900, true}, {5, true}};
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(all[i].step, wanted[i].step);
        assert_int_equal(all[i].manifest, wanted[i].manifest);
    }
    free(all);
    assert_int_equal(sets_newest(folder), 900);
}

static void only_older_sets_are_removed(void **state) {
    (void)state;
    size_t count;
    write_set(5);
    write_set(6);
    put("step000000000005.rank0.state", "x", 1);
    put("step000000000005.rank0.state.part", "x", 1);
    put("step000000000006.rank0.state", "x", 1);
    put("notes", "x", 1);
    sets_remove_before(folder, 6);
    sets_found *all = sets_list(folder, &count);
    assert_int_equal(count, 1);
    assert_int_equal(all[0].step, 6);
    free(all);
    assert_int_equal(access(in_folder("step000000000006.rank0.state"), F_OK), 0);
    assert_int_equal(access(in_folder("notes"), F_OK), 0);
    assert_int_equal(access(in_folder("step000000000005.rank0.state"), F_OK), -1);
    assert_int_equal(access(in_folder("step000000000005.rank0.state.part"), F_OK), -1);
}

/* Neither the target of a link nor a file that was there changes when a new one replaces it. */
static void files_replace_links(void **state) {
    (void)state;
    char bytes[8];
    files_why why;
    const files_piece pieces[] = {{"ab", 2}, {NULL, 0}, {"c", 1}};
    char link_path[200], victim[200];
    put("victim", "kept", 4);
    snprintf(victim, sizeof victim, "%s", in_folder("victim"));
    snprintf(link_path, sizeof link_path, "%s", in_folder("file.part"));
    assert_int_equal(symlink(victim, link_path), 0);
    assert_true(files_write(in_folder("file"), pieces, 3, &why));
    assert_int_equal(get("victim", bytes, sizeof bytes), 4);
    assert_int_equal(get("file", bytes, sizeof bytes), 3);
    assert_memory_equal(bytes, "abc", 3);
    assert_true(files_check(in_folder("file"), 3, files_hash(pieces, 3), &why));
    assert_false(files_check(in_folder("file"), 4, files_hash(pieces, 3), &why));
    assert_non_null(strstr(why.text, "truncated"));
    assert_false(files_check(in_folder("file"), 2, files_hash(pieces, 3), &why));
    assert_false(files_check(in_folder("file"), 3, files_hash(pieces, 1), &why));
    assert_non_null(strstr(why.text, "damaged"));
    assert_false(files_write(in_folder("none/file"), pieces, 3, &why));
    assert_non_null(strstr(why.text, "No such file"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(manifests_say_what_was_written, clear),
        cmocka_unit_test_teardown(other_bytes_are_no_manifest, clear),
        cmocka_unit_test_teardown(lists_begin_with_the_newest, clear),
        cmocka_unit_test_teardown(only_older_sets_are_removed, clear),
        cmocka_unit_test_teardown(files_replace_links, clear),
    };
    if (!mkdtemp(folder))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    char command[100];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command) != 0 || failed;
}
