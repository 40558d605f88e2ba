/* SPDX-License-Identifier: MIT
 *
 * Shared by tests of energy sources: open one, find a domain by its id, check its readings.
 */
#ifndef TEST_SOURCES_H
#define TEST_SOURCES_H

#include "lib/energy/source/domain.h"

typedef tam_energy_found opened;

opened source_open(const tam_energy_source *source, const tamis_energy_config *config);
void source_close(opened *o);

bool source_has(const opened *o, const char *id);

/** These fail the test if there is no such domain. */
tam_energy_sensor source_sensor(const opened *o, const char *id);
tam_energy_reading source_read(const opened *o, const char *id);

/**
 * The sensor as somebody without rights sees it, from within the folder `root`: DENIED cannot be
 * provoked otherwise where the test runs as root. A file of mode 0400 is then closed, else of 0.
 */
tam_energy_sensor source_sensor_unprivileged(const tam_energy_source *source, const char *root,
                                             const char *id);

/** Expect this status of the sensor, or a reading, with these words in its message; "": none. */
void source_expect_sensor(const opened *o, const char *id, tamis_energy_status status,
                          const char *words);
void source_expect_read(const opened *o, const char *id, tamis_energy_status status,
                        const char *words);

/** Expect this reading. */
void source_expect_value(const opened *o, const char *id, uint64_t value);

/** Open with one allocation fewer each time: expect NOMEM with a message, and no leak. */
void source_check_memory(const tam_energy_source *source, const tamis_energy_config *config);

#endif
