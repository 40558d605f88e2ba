/* SPDX-License-Identifier: MIT
 *
 * What a host's network carries, read from folders that look like the kernel's.
 */
#include "lib/base/nic.h"
#include "tests/support/scratch.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

static char sys[SCRATCH_PATH];

static void put(const char *folder, const char *name, const char *text) {
    char command[2 * SCRATCH_PATH + 256];
    (void)snprintf(command, sizeof command,
                   "mkdir -p '%s/class/%s' && printf -- '%s' > '%s/class/%s/%s'", sys, folder, text,
                   sys, folder, name);
    assert_int_equal(system(command), 0);
}

static void put_port(const char *folder, const char *state, const char *rate) {
    put(folder, "state", state);
    put(folder, "rate", rate);
}

static void put_ethernet(const char *folder, const char *state, const char *speed) {
    put(folder, "device", "");
    put(folder, "operstate", state);
    put(folder, "speed", speed);
}

static void nothing_is_known_without_devices(void **state) {
    (void)state;
    scratch_path("nic_none", sys);
    assert_true(tam_nic_gbit(sys) == 0.0);
    put_ethernet("net/eth0", "up\\n", "-1\\n"); /* of a virtual machine */
    put_ethernet("net/eth1", "down\\n", "100000\\n");
    put("net/bridge", "operstate", "up\\n");
    put("net/bridge", "speed", "40000\\n");
    put_ethernet("net/odd", "up\\n", "fast");
    put_ethernet("net/empty", "up\\n", "");
    assert_true(tam_nic_gbit(sys) == 0.0);
}

static void the_fastest_ethernet_counts_unless_there_is_infiniband(void **state) {
    (void)state;
    scratch_path("nic_some", sys);
    put_ethernet("net/eth0", "up\\n", "1000\\n");
    put_ethernet("net/eth1", "up\\n", "25000\\n");
    assert_true(tam_nic_gbit(sys) == 25.0);
    put_port("infiniband/mlx5_0/ports/1", "1: DOWN\\n", "400 Gb/sec (4X NDR)\\n");
    assert_true(tam_nic_gbit(sys) == 25.0);
    put_port("infiniband/mlx5_1/ports/1", "4: ACTIVE\\n", "400 Gb/sec (4X NDR)\\n");
    put_port("infiniband/mlx5_2/ports/2", "4: ACTIVE\\n", "2.5 Gb/sec (1X SDR)\\n");
    assert_true(tam_nic_gbit(sys) == 402.5);
}

static int remove_folders(void **state) {
    char command[SCRATCH_PATH + 16];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -r '%s'", sys);
    return system(command);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(nothing_is_known_without_devices, remove_folders),
        cmocka_unit_test_teardown(the_fastest_ethernet_counts_unless_there_is_infiniband,
                                  remove_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
