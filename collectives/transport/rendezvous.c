/* SPDX-License-Identifier: MIT */
#include "collectives/transport/rendezvous.h"

#include "collectives/transport/sockets.h"

#include <dirent.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <unistd.h>

#define ATTEMPT_NS UINT64_C(2000000000)

enum { HOST = 256, LINE = 80, TEXT = 64 * LINE, PATH = 4096 };

static bool is_folder(const char *place) {
    return strchr(place, '/') != NULL;
}

/* -- host:port -------------------------------------------------------------------------------- */

/* @param  out  [out]  for freeaddrinfo */
static tamis_status rendezvous_look_up(const char *place, bool listens, struct addrinfo **out) {
    char host[HOST];
    const char *colon = strrchr(place, ':');
    size_t length = colon ? (size_t)(colon - place) : 0;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0)};
    if (!colon || length == 0 || length >= sizeof host || colon[1] == '\0')
        return tam_fail(TAMIS_E_ARGUMENT,
                        "TAMIS_RENDEZVOUS=%.200s is neither host:port nor a folder "
                        "(./name, /path)",
                        place);
    bool brackets = place[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(length - 2 * brackets), place + brackets);
    int code = getaddrinfo(host, colon + 1, &hints, out);
    if (code == 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT, "TAMIS_RENDEZVOUS=%.200s: %s", place, gai_strerror(code));
}

static tamis_status listen_at(const char *place, int *listener) {
    struct addrinfo *found;
    TAM_TRY(rendezvous_look_up(place, true, &found));
    *listener = tam_socket_listen(found);
    int why = errno;
    freeaddrinfo(found);
    if (*listener >= 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_TRANSPORT,
                    "cannot listen at TAMIS_RENDEZVOUS=%.200s: %s; give an address of its host and "
                    "a free port, or a folder",
                    place, strerror(why));
}

static tamis_status dial_at(const char *place, uint64_t until_ns, int *out) {
    struct addrinfo *found;
    uint64_t soon_ns = tam_clock_ns() + ATTEMPT_NS;
    TAM_TRY(rendezvous_look_up(place, false, &found));
    *out = tam_socket_connect(found, soon_ns < until_ns ? soon_ns : until_ns);
    freeaddrinfo(found);
    return TAMIS_OK;
}

/* -- a folder --------------------------------------------------------------------------------- */

static bool path_in(const char *folder, const char *suffix, char *path) {
    return snprintf(path, PATH, "%s/tamis.rendezvous%s", folder, suffix) < PATH;
}

static bool is_reached(const struct ifaddrs *one, int family, bool loopback) {
    return one->ifa_addr && one->ifa_addr->sa_family == family && (one->ifa_flags & IFF_UP) &&
           !!(one->ifa_flags & IFF_LOOPBACK) == loopback;
}

/* A line for each address of this host. @param text [out] [TEXT] */
static void write_addresses(const struct ifaddrs *all, int family, bool loopback, const char *port,
                            char *text) {
    char host[HOST];
    size_t used = 0;
    text[0] = '\0';
    for (const struct ifaddrs *one = all; one && used + LINE < TEXT; one = one->ifa_next)
        if (is_reached(one, family, loopback) &&
            getnameinfo(one->ifa_addr,
                        family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                           : sizeof(struct sockaddr_in),
                        host, sizeof host, NULL, 0, NI_NUMERICHOST) == 0)
            used += (size_t)snprintf(text + used, LINE, "[%.64s]:%s\n", host, port);
}

/* Loopback only where there is no other. @param text [out] [TEXT] */
static void describe_listener(int listener, char *text) {
    struct sockaddr_storage own;
    socklen_t length = sizeof own;
    struct ifaddrs *all = NULL;
    char port[16] = "0";
    text[0] = '\0';
    if (getsockname(listener, (struct sockaddr *)&own, &length) != 0 ||
        getnameinfo((struct sockaddr *)&own, length, NULL, 0, port, sizeof port, NI_NUMERICSERV) ||
        getifaddrs(&all) != 0)
        return;
    write_addresses(all, own.ss_family, false, port, text);
    if (text[0] == '\0')
        write_addresses(all, own.ss_family, true, port, text);
    freeifaddrs(all);
}

static bool rendezvous_write(const char *path, const char *text) {
    FILE *file = fopen(path, "we");
    if (!file)
        return false;
    bool written = fputs(text, file) >= 0;
    return fclose(file) == 0 && written;
}

/* Others see the whole file or none. */
static tamis_status publish(const char *folder, const char *text) {
    char path[PATH], draft[PATH], suffix[32];
    snprintf(suffix, sizeof suffix, ".%ld", (long)getpid());
    if (!path_in(folder, "", path) || !path_in(folder, suffix, draft))
        return tam_fail(TAMIS_E_ARGUMENT, "TAMIS_RENDEZVOUS=%.200s... is too long", folder);
    if (rendezvous_write(draft, text) && rename(draft, path) == 0)
        return TAMIS_OK;
    int why = errno;
    unlink(draft);
    return tam_fail(TAMIS_E_TRANSPORT, "cannot write %.200s: %s; TAMIS_RENDEZVOUS names the folder",
                    path, strerror(why));
}

/* NFS asks the server again for what is in a folder when that is opened.
 * @param  text  [out]  [TEXT], empty: nothing is written there */
static tamis_status read_addresses(const char *folder, char *text) {
    char path[PATH];
    DIR *fresh = opendir(folder);
    text[0] = '\0';
    if (!fresh)
        return tam_fail(TAMIS_E_ARGUMENT, "TAMIS_RENDEZVOUS=%.200s: %s", folder, strerror(errno));
    closedir(fresh);
    FILE *file = path_in(folder, "", path) ? fopen(path, "re") : NULL;
    if (!file)
        return TAMIS_OK;
    text[fread(text, 1, TEXT - 1, file)] = '\0';
    fclose(file);
    return TAMIS_OK;
}

static tamis_status listen_in(const char *folder, int *listener) {
    char text[TEXT];
    int own;
    TAM_TRY(listen_at("0.0.0.0:0", &own));
    describe_listener(own, text);
    tamis_status status = publish(folder, text);
    if (status != TAMIS_OK)
        close(own);
    else
        *listener = own;
    return status;
}

/* What another program left there is no address, and nobody listens at it. */
static tamis_status dial_in(const char *folder, uint64_t until_ns, int *out) {
    char text[TEXT], *rest = text;
    *out = -1;
    TAM_TRY(read_addresses(folder, text));
    bool was_quiet = tam_errors_quiet(true);
    for (char *line = strsep(&rest, "\n"); line && *out < 0; line = strsep(&rest, "\n"))
        if (line[0] == '[')
            (void)dial_at(line, until_ns, out);
    tam_errors_quiet(was_quiet);
    return TAMIS_OK;
}

/* -- either ----------------------------------------------------------------------------------- */

tamis_status tam_rendezvous_listen(const char *place, int *listener) {
    return is_folder(place) ? listen_in(place, listener) : listen_at(place, listener);
}

tamis_status tam_rendezvous_dial(const char *place, uint64_t until_ns, int *socket) {
    return is_folder(place) ? dial_in(place, until_ns, socket) : dial_at(place, until_ns, socket);
}

void tam_rendezvous_end(const char *place, int listener) {
    char path[PATH], own[TEXT], text[TEXT];
    if (is_folder(place) && path_in(place, "", path)) {
        describe_listener(listener, own);
        if (read_addresses(place, text) == TAMIS_OK && strcmp(own, text) == 0)
            unlink(path);
    }
    close(listener);
}
