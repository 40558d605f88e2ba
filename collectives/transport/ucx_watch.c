/* SPDX-License-Identifier: MIT */
#include "collectives/transport/ucx_watch.h"

#include "lib/base/host.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LOOKS_AT_ONCE = 64 };

/* When a process began, in ticks since the host did; 0: unknown. Its name, in brackets, may hold
 * anything. */
static uint64_t started_at(uint64_t process) {
    char path[64], text[1024];
    unsigned long long ticks = 0;
    snprintf(path, sizeof path, "/proc/%llu/stat", (unsigned long long)process);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    size_t length = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[length] = '\0';
    const char *behind = strrchr(text, ')');
    for (int field = 2; behind && field < 22; field++)
        behind = strchr(behind + 1, ' ');
    return behind && sscanf(behind, "%llu", &ticks) == 1 ? ticks : 0;
}

tam_identity tam_identity_own(void) {
    struct stat about = {0};
    uint64_t process = (uint64_t)getpid();
    bool known = stat("/proc/self/ns/pid", &about) == 0;
    return (tam_identity){.host = tam_host_id(),
                          .namespace = known ? (uint64_t)about.st_ino : 0,
                          .process = process,
                          .started = started_at(process)};
}

int tam_watch_open(const tam_identity *own, const tam_identity *other, bool *ended) {
    *ended = false;
    if (other->host != own->host || other->namespace != own->namespace || own->namespace == 0 ||
        other->started == 0)
        return -1;
#ifdef SYS_pidfd_open
    int watch = (int)syscall(SYS_pidfd_open, (pid_t)other->process, 0);
    *ended = watch < 0 && errno == ESRCH;
    uint64_t started = watch >= 0 ? started_at(other->process) : 0;
    if (started != 0 && started != other->started) { /* a later process */
        close(watch);
        watch = -1;
        *ended = true;
    }
    return watch;
#else
    return -1;
#endif
}

static void look_at(const int *watches, uint32_t n, bool *ended) {
    struct pollfd polled[LOOKS_AT_ONCE];
    for (uint32_t i = 0; i < n; i++)
        polled[i] = (struct pollfd){.fd = watches[i], .events = POLLIN}; /* below 0: left out */
    int found = poll(polled, n, 0);
    for (uint32_t i = 0; i < n; i++)
        ended[i] = found > 0 && (polled[i].revents & (POLLIN | POLLHUP));
}

void tam_watch_look(const int *watches, uint32_t n, bool *ended) {
    for (uint32_t at = 0; at < n; at += LOOKS_AT_ONCE)
        look_at(watches + at, n - at < LOOKS_AT_ONCE ? n - at : LOOKS_AT_ONCE, ended + at);
}
