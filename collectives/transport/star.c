/* SPDX-License-Identifier: MIT */
#include "collectives/transport/star.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define STAR_MAGIC UINT64_C(0x74616d6973737461)
#define RETRY_NS UINT64_C(50000000)

enum { STRANGERS = 64, STRANGER_MS = 5000, HOST = 256 };

/* What a rank says first. */
typedef struct greeting {
    uint64_t magic;
    uint32_t rank, nranks;
} greeting;

/* What rank 0 answers. */
typedef struct answer {
    uint64_t magic;
    uint32_t status, nranks; /* of rank 0 */
} answer;

static tamis_status star_late(const tam_star *star, const char *what) {
    return tam_fail(TAMIS_E_TIMEOUT, "rank %u: %s by the deadline", star->rank, what);
}

static int left_ms(uint64_t until_ns) {
    uint64_t now_ns = tam_clock_ns();
    return now_ns < until_ns ? (int)((until_ns - now_ns) / 1000000u) + 1 : 0;
}

/* -- bytes ------------------------------------------------------------------------------------ */

/* @return how many moved; -1: the connection has ended; 0: none can now */
static ssize_t move_some(int socket, void *bytes, size_t length, bool sends) {
    ssize_t moved = sends ? send(socket, bytes, length, MSG_NOSIGNAL | MSG_DONTWAIT)
                          : recv(socket, bytes, length, MSG_DONTWAIT);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    return moved > 0 ? moved : -1;
}

/* @return 1: all moved; 0: not by the deadline; -1: the connection has ended */
static int move_all(int socket, void *bytes, size_t length, bool sends, uint64_t until_ns) {
    size_t at = 0;
    while (at < length) {
        ssize_t moved = move_some(socket, (char *)bytes + at, length - at, sends);
        if (moved < 0)
            return -1;
        at += (size_t)moved;
        if (moved > 0)
            continue;
        if (left_ms(until_ns) == 0)
            return 0;
        struct pollfd one = {.fd = socket, .events = sends ? POLLOUT : POLLIN};
        poll(&one, 1, left_ms(until_ns));
    }
    return 1;
}

static tamis_status star_exchange(const tam_star *star, uint32_t with, void *bytes, size_t length,
                                  bool sends) {
    int done = move_all(star->sockets[with], bytes, length, sends, star->deadline_ns);
    if (done > 0)
        return TAMIS_OK;
    return tam_fail(done < 0 ? TAMIS_E_TRANSPORT : TAMIS_E_TIMEOUT,
                    "rank %u: rank %u %s while the ranks found each other", star->rank, with,
                    done < 0 ? "has ended its connection" : "did not answer by the deadline");
}

/* -- rank 0 ----------------------------------------------------------------------------------- */

/* Connections that have not said who they are. */
typedef struct strangers {
    int sockets[STRANGERS];
    greeting said[STRANGERS];
    size_t bytes[STRANGERS];
    uint64_t until_ns[STRANGERS];
    uint32_t count;
} strangers;

static void leave_stranger(strangers *s, uint32_t i) {
    uint32_t last = --s->count;
    s->sockets[i] = s->sockets[last];
    s->said[i] = s->said[last];
    s->bytes[i] = s->bytes[last];
    s->until_ns[i] = s->until_ns[last];
}

/* @return whether it is a rank that was missing */
static bool admit(tam_star *star, int socket, const greeting *said, tamis_status *verdict) {
    answer reply = {STAR_MAGIC, TAMIS_OK, star->nranks};
    bool known = said->magic == STAR_MAGIC, same = known && said->nranks == star->nranks;
    bool missing =
        same && said->rank > 0 && said->rank < star->nranks && star->sockets[said->rank] < 0;
    if (known && !same)
        *verdict = tam_fail(TAMIS_E_MISMATCH, "rank %u says that there are %u ranks, rank 0 %u",
                            said->rank, said->nranks, star->nranks);
    else if (same && !missing)
        *verdict = tam_fail(TAMIS_E_MISMATCH, "two processes say that they are rank %u of %u",
                            said->rank, star->nranks);
    reply.status = known ? (uint32_t)*verdict : TAMIS_E_PROTOCOL;
    if (known)
        move_some(socket, &reply, sizeof reply, true);
    if (!missing) {
        close(socket);
        return false;
    }
    star->sockets[said->rank] = socket;
    return true;
}

static void accept_one(int listener, strangers *s) {
    int one = 1, socket = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0)
        return;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (s->count == STRANGERS) { /* the one that has been silent longest goes */
        close(s->sockets[0]);
        leave_stranger(s, 0);
    }
    s->sockets[s->count] = socket;
    s->bytes[s->count] = 0;
    s->until_ns[s->count++] = tam_clock_ns() + STRANGER_MS * UINT64_C(1000000);
}

/* @return whether it is a rank now, or is gone */
static bool listen_to(tam_star *star, strangers *s, uint32_t i, uint32_t *missing,
                      tamis_status *verdict) {
    char *said = (char *)&s->said[i];
    ssize_t moved =
        move_some(s->sockets[i], said + s->bytes[i], sizeof s->said[i] - s->bytes[i], false);
    s->bytes[i] += moved > 0 ? (size_t)moved : 0;
    if (s->bytes[i] == sizeof s->said[i])
        *missing -= admit(star, s->sockets[i], &s->said[i], verdict);
    else if (moved < 0 || tam_clock_ns() > s->until_ns[i])
        close(s->sockets[i]);
    else
        return false;
    leave_stranger(s, i);
    return true;
}

static void await_strangers(int listener, const strangers *s, uint64_t until_ns) {
    struct pollfd all[STRANGERS + 1] = {{.fd = listener, .events = POLLIN}};
    for (uint32_t i = 0; i < s->count; i++)
        all[i + 1] = (struct pollfd){.fd = s->sockets[i], .events = POLLIN};
    int most = left_ms(until_ns);
    poll(all, s->count + 1, most < 100 ? most : 100);
}

static tamis_status name_missing(const tam_star *star) {
    char text[128];
    size_t used = 0;
    for (uint32_t r = 1; r < star->nranks && used + 16 < sizeof text; r++)
        if (star->sockets[r] < 0)
            used += (size_t)snprintf(text + used, sizeof text - used, " %u", r);
    return tam_fail(TAMIS_E_TIMEOUT,
                    "rank 0: rank(s)%s did not come to the rendezvous by the "
                    "deadline",
                    text);
}

static tamis_status receive_all(tam_star *star, int listener) {
    strangers s = {.count = 0};
    uint32_t missing = star->nranks - 1;
    tamis_status verdict = TAMIS_OK;
    while (missing > 0 && verdict == TAMIS_OK && left_ms(star->deadline_ns) > 0) {
        await_strangers(listener, &s, star->deadline_ns);
        accept_one(listener, &s);
        for (uint32_t i = 0; i < s.count;)
            i += !listen_to(star, &s, i, &missing, &verdict);
    }
    for (uint32_t i = 0; i < s.count; i++)
        close(s.sockets[i]);
    return verdict != TAMIS_OK ? verdict : missing > 0 ? name_missing(star) : TAMIS_OK;
}

/* -- addresses -------------------------------------------------------------------------------- */

/* "host:port" or "[address]:port". */
static tamis_status find_address(const char *address, bool listens, struct addrinfo **out) {
    char host[HOST];
    const char *colon = strrchr(address, ':');
    size_t length = colon ? (size_t)(colon - address) : 0;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_NUMERICSERV | (listens ? AI_PASSIVE : 0)};
    if (!colon || length == 0 || length >= sizeof host || colon[1] == '\0')
        return tam_fail(TAMIS_E_ARGUMENT, "TAMIS_RENDEZVOUS=%.200s is not host:port", address);
    bool brackets = address[0] == '[' && colon[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(length - 2 * brackets), address + brackets);
    int code = getaddrinfo(host, colon + 1, &hints, out);
    if (code == 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_ARGUMENT, "TAMIS_RENDEZVOUS=%.200s: %s", address, gai_strerror(code));
}

static int listen_at(const struct addrinfo *at) {
    int one = 1, listener = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return -1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, at->ai_addr, at->ai_addrlen) == 0 && listen(listener, 128) == 0)
        return listener;
    int why = errno;
    close(listener);
    errno = why;
    return -1;
}

static tamis_status open_center(tam_star *star, const char *address) {
    struct addrinfo *found;
    TAM_TRY(find_address(address, true, &found));
    int listener = listen_at(found), why = errno;
    freeaddrinfo(found);
    if (listener < 0)
        return tam_fail(TAMIS_E_TRANSPORT,
                        "rank 0 cannot listen at TAMIS_RENDEZVOUS=%.200s: %s; give an address of "
                        "its host and a free port",
                        address, strerror(why));
    tamis_status status = receive_all(star, listener);
    close(listener);
    return status;
}

/* -- the others ------------------------------------------------------------------------------- */

static int connect_to(const struct addrinfo *at, uint64_t until_ns) {
    int code = 0, one = 1;
    socklen_t length = sizeof code;
    int s = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s < 0)
        return -1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(s, at->ai_addr, at->ai_addrlen) == 0)
        return s;
    struct pollfd waits = {.fd = s, .events = POLLOUT};
    if (errno == EINPROGRESS && poll(&waits, 1, left_ms(until_ns)) > 0 &&
        getsockopt(s, SOL_SOCKET, SO_ERROR, &code, &length) == 0 && code == 0)
        return s;
    close(s);
    return -1;
}

static tamis_status judge_answer(const tam_star *star, const answer *reply) {
    if (reply->magic != STAR_MAGIC)
        return tam_fail(TAMIS_E_PROTOCOL, "rank %u: what listens at the rendezvous is not rank 0",
                        star->rank);
    if (reply->nranks != star->nranks)
        return tam_fail(TAMIS_E_MISMATCH, "rank %u says that there are %u ranks, rank 0 %u",
                        star->rank, star->nranks, reply->nranks);
    if (reply->status != TAMIS_OK)
        return tam_fail(TAMIS_E_MISMATCH,
                        "rank %u: rank 0 has refused it: two processes say that "
                        "they are one rank, or another number of ranks",
                        star->rank);
    return TAMIS_OK;
}

/* @param  made  [out]  false: nobody listens yet, or it was full */
static tamis_status try_center(tam_star *star, const struct addrinfo *at, bool *made) {
    greeting mine = {STAR_MAGIC, star->rank, star->nranks};
    answer reply;
    *made = false;
    int s = connect_to(at, star->deadline_ns);
    if (s < 0)
        return TAMIS_OK;
    if (move_all(s, &mine, sizeof mine, true, star->deadline_ns) <= 0 ||
        move_all(s, &reply, sizeof reply, false, star->deadline_ns) <= 0) {
        close(s);
        return TAMIS_OK;
    }
    *made = true;
    star->sockets[0] = s;
    return judge_answer(star, &reply);
}

static tamis_status join_center(tam_star *star, const char *address) {
    struct addrinfo *found;
    TAM_TRY(find_address(address, false, &found));
    tamis_status status = TAMIS_OK;
    for (bool made = false; status == TAMIS_OK && !made;) {
        status = try_center(star, found, &made);
        if (status == TAMIS_OK && !made && left_ms(star->deadline_ns) == 0)
            status = star_late(star, "rank 0 did not listen at TAMIS_RENDEZVOUS");
        if (status == TAMIS_OK && !made)
            tam_sleep(RETRY_NS);
    }
    freeaddrinfo(found);
    return status;
}

/* -- all -------------------------------------------------------------------------------------- */

tamis_status tam_star_open(const char *address, uint32_t rank, uint32_t nranks,
                           uint64_t deadline_ns, tam_star *out) {
    tam_star star = {.rank = rank, .nranks = nranks, .deadline_ns = deadline_ns};
    star.sockets = tam_alloc_array(nranks, sizeof star.sockets[0]);
    if (!star.sockets)
        return tam_fail(TAMIS_E_NOMEM, "no memory for the connections of %u ranks", nranks);
    memset(star.sockets, -1, nranks * sizeof star.sockets[0]);
    tamis_status status = nranks == 1 ? TAMIS_OK
                          : rank == 0 ? open_center(&star, address)
                                      : join_center(&star, address);
    if (status != TAMIS_OK)
        tam_star_close(&star);
    *out = star;
    return status;
}

tamis_status tam_star_gather(void *context, const void *send, void *recv, size_t bytes) {
    const tam_star *star = context;
    char *all = recv;
    memcpy(all + star->rank * bytes, send, bytes);
    if (star->rank > 0) {
        TAM_TRY(star_exchange(star, 0, all + star->rank * bytes, bytes, true));
        return star_exchange(star, 0, all, star->nranks * bytes, false);
    }
    for (uint32_t r = 1; r < star->nranks; r++)
        TAM_TRY(star_exchange(star, r, all + r * bytes, bytes, false));
    for (uint32_t r = 1; r < star->nranks; r++)
        TAM_TRY(star_exchange(star, r, all, star->nranks * bytes, true));
    return TAMIS_OK;
}

void tam_star_close(tam_star *star) {
    for (uint32_t r = 0; star->sockets && r < star->nranks; r++)
        if (star->sockets[r] >= 0)
            close(star->sockets[r]);
    tam_free(star->sockets);
    star->sockets = NULL;
}

/* -- the place of a process ------------------------------------------------------------------- */

/* The inner launcher first: torchrun may run in a job of MPI, and that in a step of Slurm. */
static const struct {
    const char *rank, *nranks;
} launchers[] = {
    {"RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"PMI_RANK", "PMI_SIZE"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
};

static bool read_number(const char *text, uint32_t *out) {
    char *end;
    errno = 0;
    unsigned long number = strtoul(text, &end, 10);
    *out = (uint32_t)number;
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0 && number <= UINT32_MAX;
}

tamis_status tam_star_place(uint32_t *rank, uint32_t *nranks) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const char *own = getenv(launchers[i].rank), *all = getenv(launchers[i].nranks);
        if (!own || !all)
            continue;
        if (!read_number(own, rank) || !read_number(all, nranks) || *rank >= *nranks)
            return tam_fail(TAMIS_E_ARGUMENT,
                            "%s=%.40s and %s=%.40s are not a rank and a number "
                            "of ranks",
                            launchers[i].rank, own, launchers[i].nranks, all);
        return TAMIS_OK;
    }
    return tam_fail(TAMIS_E_UNSUPPORTED, "no launcher says which rank this process is; set RANK "
                                         "and WORLD_SIZE");
}
