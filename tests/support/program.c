/* SPDX-License-Identifier: MIT
 *
 *     test_FOLDER NAME [ARGUMENT...]     runs that test; without a name: lists them
 */
#include "tests/support/program.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    for (const test_program *p = test_programs; p->name; p++) {
        if (argc < 2)
            puts(p->name);
        else if (strcmp(p->name, argv[1]) == 0)
            return ((int (*)(int, char **))p->main)(argc - 1, argv + 1);
    }
    if (argc < 2)
        return 0;
    fprintf(stderr, "%s: there is no test %s\n", argv[0], argv[1]);
    return 2;
}
