/* SPDX-License-Identifier: MIT */
#include "lib/base/nic.h"

#include <glob.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 512, TEXT_BYTES = 64 };

static bool read_text(const char *folder, const char *name, char text[TEXT_BYTES]) {
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= PATH_BYTES)
        return false;
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool read = fgets(text, TEXT_BYTES, file) != NULL; /* fails where a device has no speed */
    fclose(file);
    return read;
}

static double not_negative(const char *text) {
    double value = strtod(text, NULL);
    return value > 0.0 && value < 1e9 ? value : 0.0;
}

/* "4: ACTIVE" and "400 Gb/sec (4X NDR)". */
static double port_gbit(const char *port) {
    char state[TEXT_BYTES], rate[TEXT_BYTES];
    bool active = read_text(port, "state", state) && strstr(state, "ACTIVE");
    return active && read_text(port, "rate", rate) ? not_negative(rate) : 0.0;
}

/* "up" and Mbit/s. A bridge or a tunnel has no device, and its speed is made up. */
static double ethernet_gbit(const char *net) {
    char device[PATH_BYTES], state[TEXT_BYTES], speed[TEXT_BYTES];
    if (snprintf(device, sizeof device, "%s/device", net) >= PATH_BYTES || access(device, F_OK))
        return 0.0;
    bool up = read_text(net, "operstate", state) && strncmp(state, "up", 2) == 0;
    return up && read_text(net, "speed", speed) ? not_negative(speed) / 1000.0 : 0.0;
}

typedef struct rates {
    double sum, most;
} rates;

static rates nic_look(const char *sys, const char *pattern, double (*gbit_of)(const char *folder)) {
    char all[PATH_BYTES];
    glob_t found;
    rates r = {0.0, 0.0};
    if (snprintf(all, sizeof all, "%s/%s", sys, pattern) >= PATH_BYTES)
        return r;
    if (glob(all, 0, NULL, &found) == 0)
        for (size_t i = 0; i < found.gl_pathc; i++) {
            double gbit = gbit_of(found.gl_pathv[i]);
            r.sum += gbit;
            r.most = gbit > r.most ? gbit : r.most;
        }
    globfree(&found);
    return r;
}

double tam_nic_gbit(const char *sys) {
    rates ports = nic_look(sys, "class/infiniband/*/ports/*", port_gbit);
    return ports.sum > 0.0 ? ports.sum : nic_look(sys, "class/net/*", ethernet_gbit).most;
}
