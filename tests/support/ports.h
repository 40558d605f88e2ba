/* SPDX-License-Identifier: MIT
 *
 * A rendezvous of this host for tests, by the environment.
 */
#ifndef TEST_PORTS_H
#define TEST_PORTS_H

#include <stdint.h>

/** What processes say first to who listens. */
#define TEST_GREETING UINT64_C(0x74616d6973737461)

/** Set TAMIS_RENDEZVOUS to a port that was free a moment ago. @return the port */
uint16_t test_port_choose(void);

/** Set RANK and WORLD_SIZE. */
void test_port_place(uint32_t rank, uint32_t nranks);

/** Connect to it. @return -1: nobody listens */
int test_port_try(void);

/** Tries for a while. */
int test_port_connect(void);

#endif
