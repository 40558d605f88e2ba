/* SPDX-License-Identifier: MIT
 *
 * A thread that reads the domains of one source. A driver that hangs holds up this thread alone.
 */
#ifndef TAM_ENERGY_SAMPLER_H
#define TAM_ENERGY_SAMPLER_H

#include "lib/energy/source/domain.h"

typedef struct tam_sampler tam_sampler;

/**
 * Begin a thread that lets the source find its domains and then reads them. One that hangs in a
 * driver until then is left behind: a sampler whose one domain says so comes out.
 */
tamis_status tam_sampler_open(const tam_energy_source *source, const tamis_energy_config *config,
                              uint64_t until_ns, tam_sampler **out);

uint32_t tam_sampler_count(const tam_sampler *s);

/** A copy of a domain, aged until now; never waits for a read. */
void tam_sampler_look(tam_sampler *s, uint32_t index, tam_energy_domain *out);

/** The oldest gain of a domain that was not taken yet. When nobody takes them the newest are merged
 * into one, so that no joule is lost. @return false: there is none */
bool tam_sampler_take(tam_sampler *s, uint32_t index, tam_energy_gain *out);

/** Read all domains now, and wait for it until then at most. @return false: it takes longer */
bool tam_sampler_hurry(tam_sampler *s, uint64_t until_ns);

/** Ends the thread. One that hangs in a driver is left behind with its memory. */
void tam_sampler_close(tam_sampler *s);

#endif
