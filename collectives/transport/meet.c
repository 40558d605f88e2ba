/* SPDX-License-Identifier: MIT */
#include "collectives/transport/meet.h"

#include <stdio.h>

typedef struct card {
    uint32_t status;
    unsigned char token[TAM_TOKEN_BYTES];
    char sentence[TAM_BOARD_BYTES - TAM_TOKEN_BYTES - sizeof(uint32_t)];
} card;

typedef struct meeting {
    tam_job job;
    card mine;
    card *all; /* [nranks] */
} meeting;

_Static_assert(sizeof(card) == TAM_BOARD_BYTES, "a card fits the board");
_Static_assert(sizeof(meeting) <= TAM_DESK_BYTES, "a meeting fits the desk");

static tamis_status run(tam_job *job, tam_link *link) {
    meeting *m = (meeting *)(void *)job;
    return link->transport->allgather(link->self, &m->mine, sizeof m->mine, m->all, &link->call);
}

static const card *find_failure(const card *all, uint32_t nranks) {
    const card *late = NULL;
    for (uint32_t r = 0; r < nranks; r++) {
        if (all[r].status != TAMIS_OK && all[r].status != TAMIS_E_TIMEOUT)
            return &all[r];
        if (all[r].status == TAMIS_E_TIMEOUT && !late)
            late = &all[r];
    }
    return late;
}

tamis_status tam_meet(tamis_comm *bootstrap, const char *what, tamis_status status, void *token) {
    meeting *m = (meeting *)(void *)bootstrap->desk;
    *m = (meeting){.job = {.run = run}, .all = (card *)(void *)bootstrap->board};
    m->mine.status = status;
    memcpy(m->mine.token, token, TAM_TOKEN_BYTES);
    if (status != TAMIS_OK)
        snprintf(m->mine.sentence, sizeof m->mine.sentence, "%s", tamis_last_error());
    TAM_TRY(tam_comm_run(bootstrap, &m->job));
    const card *failure = find_failure(m->all, bootstrap->nranks);
    if (failure)
        return tam_fail((tamis_status)failure->status, "no %s: %.*s", what,
                        (int)sizeof failure->sentence - 1, failure->sentence);
    memcpy(token, m->all[0].token, TAM_TOKEN_BYTES);
    return TAMIS_OK;
}
