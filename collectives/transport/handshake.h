/* SPDX-License-Identifier: MIT
 *
 * The records of a communicator: all ranks show each other a few words and judge them by the same
 * rules. The records are memory of the communicator, so a rank that is out of memory can still
 * report it, and an exchange that outlives its call keeps its memory.
 */
#ifndef TAM_TRANSPORT_HANDSHAKE_H
#define TAM_TRANSPORT_HANDSHAKE_H

#include "collectives/transport/comm.h"

/** The begin of every rank's record. */
typedef struct tam_handshake_header {
    uint64_t status; /* of this rank so far */
    char
        call[32]; /* the public call that it is in, "tamis_..."; rounds of one call look the same */
} tam_handshake_header;

/** Judges by the records of all ranks and by nothing else, so all ranks get the same answer. */
typedef tamis_status (*tam_handshake_judge)(const unsigned char *records, uint32_t nranks);

/**
 * Show this rank's record, receive the others', judge. Ranks that are in different calls all get
 * TAMIS_E_MISMATCH with the names of both. A rank that is in a step sends no record: that gives
 * TAMIS_E_PROTOCOL.
 *
 * @param  mine         [in]  begins with a tam_handshake_header
 * @param  bytes        [in]  at most TAM_RECORD_BYTES
 * @param  deadline_ns  [in]  as for a job
 * @return                    this rank's own failure, with its sentence; else that of the exchange;
 *                            else the verdict of `judge`. comm->records then holds all records
 */
tamis_status tam_handshake_run(tamis_comm *comm, const void *mine, size_t bytes,
                               tam_handshake_judge judge, uint64_t deadline_ns);

/** For judges: the first failure, "rank 2 could not <what>: TAMIS_E_NOMEM". */
tamis_status tam_handshake_failure(const unsigned char *records, uint32_t nranks, const char *what);

/** A 64-bit word of a record. */
typedef struct tam_handshake_field {
    const char *name; /* for the sentence */
    size_t at;        /* byte of the record */
    enum { TAM_SHOWS_NUMBER, TAM_SHOWS_REAL, TAM_SHOWS_HASH } shows;
} tam_handshake_field;

/** For judges: MISMATCH if two ranks show another word, "<name> differs: rank 0 has 16, rank 2 has
 * 32". */
tamis_status tam_handshake_compare(const unsigned char *records, uint32_t a, uint32_t b,
                                   const tam_handshake_field *field);

/** Compare several fields of all ranks. */
tamis_status tam_handshake_same(const unsigned char *records, uint32_t nranks,
                                const tam_handshake_field *fields, uint32_t nfields);

static inline const void *tam_handshake_record(const unsigned char *records, uint32_t rank) {
    return records + (size_t)rank * TAM_RECORD_BYTES;
}

#endif
