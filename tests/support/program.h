/* SPDX-License-Identifier: MIT
 *
 * One program of many tests: each is a main of its own, renamed (tam_test_program in
 * tests/CMakeLists.txt, which makes the table).
 */
#ifndef TEST_PROGRAM_H
#define TEST_PROGRAM_H

#pragma GCC diagnostic ignored "-Wstrict-prototypes" /* mains are with or without arguments */

typedef struct test_program {
    const char *name;
    int (*main)();
} test_program;

extern const test_program test_programs[]; /* the last has no name */

#endif
