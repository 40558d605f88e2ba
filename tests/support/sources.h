/* SPDX-License-Identifier: MIT
 *
 * What tests of energy sources share: open one, find a domain by its id, check what it says.
 */
#ifndef TEST_SOURCES_H
#define TEST_SOURCES_H

#include "lib/energy/source/domain.h"

typedef tam_energy_found opened;

opened source_open(const tam_energy_source *source, const tamis_energy_config *config);
void source_close(opened *o);

bool source_has(const opened *o, const char *id);

/** These fail the test if there is no such domain. */
tam_energy_place source_place(const opened *o, const char *id);
tam_energy_reading source_read(const opened *o, const char *id);

/** The place, or a reading, has this status, and its sentence these words; "": no sentence. */
void source_expect_place(const opened *o, const char *id, tamis_energy_status status,
                         const char *words);
void source_expect_read(const opened *o, const char *id, tamis_energy_status status,
                        const char *words);

/** It answers this. */
void source_expect_value(const opened *o, const char *id, uint64_t value);

/** Open with one allocation fewer at a time: NOMEM with a sentence, and nothing left behind. */
void source_check_memory(const tam_energy_source *source, const tamis_energy_config *config);

#endif
