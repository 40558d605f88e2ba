/* SPDX-License-Identifier: MIT */
#include "collectives/transport/bootstrap.h"

#include <stdio.h>

enum {
    SENTENCE = TAM_RECORD_BYTES - sizeof(tam_handshake_header) - sizeof(uint64_t) - TAM_TOKEN_BYTES
};

typedef struct record {
    tam_handshake_header header;
    uint64_t status; /* not the header's: a rank that timed out must not hide the one that failed */
    unsigned char token[TAM_TOKEN_BYTES];
    char sentence[SENTENCE];
} record;

_Static_assert(sizeof(record) == TAM_RECORD_BYTES, "one rank's record fits");

static const record *find_failure(const unsigned char *records, uint32_t nranks) {
    const record *late = NULL;
    for (uint32_t r = 0; r < nranks; r++) {
        const record *c = tam_handshake_record(records, r);
        if (c->status != TAMIS_OK && c->status != TAMIS_E_TIMEOUT)
            return c;
        if (c->status == TAMIS_E_TIMEOUT && !late)
            late = c;
    }
    return late;
}

static tamis_status bootstrap_accept(const unsigned char *records, uint32_t nranks) {
    (void)records;
    (void)nranks;
    return TAMIS_OK;
}

tamis_status tam_bootstrap(tamis_comm *bootstrap, const char *call, tamis_status status,
                           void *token) {
    record mine = {.status = (uint64_t)status};
    snprintf(mine.header.call, sizeof mine.header.call, "%s", call);
    memcpy(mine.token, token, TAM_TOKEN_BYTES);
    if (status != TAMIS_OK)
        snprintf(mine.sentence, sizeof mine.sentence, "%s", tamis_last_error());
    TAM_TRY(tam_handshake_run(bootstrap, &mine, sizeof mine, bootstrap_accept, 0));
    const record *failure = find_failure(bootstrap->records, bootstrap->nranks);
    if (failure)
        return tam_fail((tamis_status)failure->status, "%s: %.*s", call,
                        (int)sizeof failure->sentence - 1, failure->sentence);
    memcpy(token, ((const record *)tam_handshake_record(bootstrap->records, 0))->token,
           TAM_TOKEN_BYTES);
    return TAMIS_OK;
}
