/* SPDX-License-Identifier: MIT */
#include "collectives/transport/star.h"

#include "collectives/transport/rendezvous.h"
#include "collectives/transport/sockets.h"
#include "collectives/transport/strangers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define RETRY_NS UINT64_C(50000000)

/* What rank 0 answers. */
typedef struct answer {
    uint64_t magic;
    uint32_t status, nranks; /* of rank 0 */
} answer;

static tamis_status star_late(const tam_star *star, const char *what) {
    return tam_fail(TAMIS_E_TIMEOUT, "rank %u: %s by the deadline", star->rank, what);
}

static tamis_status star_exchange(const tam_star *star, uint32_t with, void *bytes, size_t length,
                                  bool sends) {
    int done = tam_socket_move(star->sockets[with], bytes, length, sends, star->deadline_ns);
    if (done > 0)
        return TAMIS_OK;
    return tam_fail(done < 0 ? TAMIS_E_TRANSPORT : TAMIS_E_TIMEOUT,
                    "rank %u: rank %u %s while the ranks found each other", star->rank, with,
                    done < 0 ? "has ended its connection" : "did not answer by the deadline");
}

/* -- rank 0 ----------------------------------------------------------------------------------- */

/* Rank 0 while the others come. */
typedef struct center {
    tam_star *star;
    uint32_t missing;
    tamis_status verdict;
} center;

static tamis_status judge_greeting(const tam_star *star, const tam_greeting *said) {
    if (said->nranks != star->nranks)
        return tam_fail(TAMIS_E_MISMATCH, "rank %u says that there are %u ranks, rank 0 %u",
                        said->rank, said->nranks, star->nranks);
    bool missing = said->rank > 0 && said->rank < star->nranks && star->sockets[said->rank] < 0;
    return missing ? TAMIS_OK
                   : tam_fail(TAMIS_E_MISMATCH, "two processes say that they are rank %u of %u",
                              said->rank, star->nranks);
}

/* Newcomers to a job come again when it has begun. */
static void admit(void *arg, int socket, const tam_greeting *said) {
    center *c = arg;
    answer reply = {TAM_GREETING_MAGIC, TAMIS_OK, c->star->nranks};
    bool rank = said->magic == TAM_GREETING_MAGIC && said->nranks > 0;
    tamis_status status = rank ? judge_greeting(c->star, said) : TAMIS_OK;
    reply.status = (uint32_t)status;
    if (rank)
        tam_socket_move_some(socket, &reply, sizeof reply, true);
    if (!rank || status != TAMIS_OK) {
        c->verdict = rank ? status : c->verdict;
        close(socket);
        return;
    }
    c->star->sockets[said->rank] = socket;
    c->missing--;
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
    tam_strangers s = {.count = 0};
    center c = {star, star->nranks - 1, TAMIS_OK};
    while (c.missing > 0 && c.verdict == TAMIS_OK && tam_socket_left_ms(star->deadline_ns) > 0) {
        tam_strangers_await(&s, listener, star->deadline_ns);
        tam_strangers_read(&s, listener, admit, &c);
    }
    tam_strangers_close(&s);
    return c.verdict != TAMIS_OK ? c.verdict : c.missing > 0 ? name_missing(star) : TAMIS_OK;
}

static tamis_status open_center(tam_star *star, const char *address) {
    int listener;
    TAM_TRY(tam_rendezvous_listen(address, &listener));
    tamis_status status = receive_all(star, listener);
    close(listener);
    return status;
}

/* -- the others ------------------------------------------------------------------------------- */

static tamis_status judge_answer(const tam_star *star, const answer *reply) {
    if (reply->magic != TAM_GREETING_MAGIC)
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
static tamis_status try_center(tam_star *star, const char *address, bool *made) {
    tam_greeting mine = {TAM_GREETING_MAGIC, star->rank, star->nranks};
    answer reply;
    int s;
    *made = false;
    TAM_TRY(tam_rendezvous_dial(address, star->deadline_ns, &s));
    if (s < 0)
        return TAMIS_OK;
    if (tam_socket_move(s, &mine, sizeof mine, true, star->deadline_ns) <= 0 ||
        tam_socket_move(s, &reply, sizeof reply, false, star->deadline_ns) <= 0) {
        close(s);
        return TAMIS_OK;
    }
    *made = true;
    star->sockets[0] = s;
    return judge_answer(star, &reply);
}

static tamis_status join_center(tam_star *star, const char *address) {
    tamis_status status = TAMIS_OK;
    for (bool made = false; status == TAMIS_OK && !made;) {
        status = try_center(star, address, &made);
        if (status == TAMIS_OK && !made && tam_socket_left_ms(star->deadline_ns) == 0)
            status = star_late(star, "rank 0 did not listen at TAMIS_RENDEZVOUS");
        if (status == TAMIS_OK && !made)
            tam_sleep(RETRY_NS);
    }
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
