/* SPDX-License-Identifier: MIT */
#include "collectives/transport/board.h"

#include <stdio.h>

typedef struct board_job {
    tam_job job;
    unsigned char mine[TAM_BOARD_BYTES];
    unsigned char *board; /* [nranks * TAM_BOARD_BYTES] */
    tam_board_judge judge;
} board_job;

_Static_assert(sizeof(board_job) <= TAM_DESK_BYTES, "what is shown fits the desk");

static tamis_status run(tam_job *job, tam_link *link) {
    board_job *b = (board_job *)(void *)job;
    TAM_TRY(link->transport->allgather(link->self, b->mine, sizeof b->mine, b->board, &link->call));
    return b->judge(b->board, link->nranks);
}

tamis_status tam_board_show(tamis_comm *comm, const void *mine, size_t bytes, tam_board_judge judge,
                            uint64_t deadline_ns) {
    char sentence[512];
    uint64_t own;
    memcpy(&own, mine, sizeof own);
    snprintf(sentence, sizeof sentence, "%s", own != TAMIS_OK ? tamis_last_error() : "");

    board_job *b = (board_job *)(void *)comm->desk;
    *b = (board_job){
        .job = {.run = run, .deadline_ns = deadline_ns}, .board = comm->board, .judge = judge};
    memcpy(b->mine, mine, bytes);
    tamis_status status = tam_comm_run(comm, &b->job);
    return own != TAMIS_OK ? tam_fail((tamis_status)own, "%s", sentence) : status;
}

tamis_status tam_board_failure(const unsigned char *board, uint32_t nranks, const char *what) {
    for (uint32_t r = 0; r < nranks; r++) {
        uint64_t status;
        memcpy(&status, tam_board_entry(board, r), sizeof status);
        if (status != TAMIS_OK)
            return tam_fail((tamis_status)status, "rank %u could not %s: %s", r, what,
                            tamis_status_name((tamis_status)status));
    }
    return TAMIS_OK;
}
