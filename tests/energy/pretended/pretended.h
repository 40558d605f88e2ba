/* SPDX-License-Identifier: MIT
 *
 * A pretended NVML: a shared object that does what the test writes into its state. The test loads
 * it as well (dlopen gives the same copy) and finds the state by name.
 */
#ifndef TEST_PRETENDED_H
#define TEST_PRETENDED_H

#include <stdatomic.h>
#include <stdint.h>

enum { PRETENDED_GPUS = 8 };

/** Codes are what the library's functions return. */
typedef struct pretended_gpu {
    char uuid[96], bus[32];
    atomic_int board; /* a partition (MIG) of this one; itself: no partition */
    atomic_int handle_code, energy_code, power_code;
    atomic_int module_code;  /* of fields for the scope "module" */
    atomic_int scoped_code;  /* of the counter with a scope */
    _Atomic uint64_t cpu_mj; /* of the module, in that counter */
    atomic_int field_type;
    _Atomic uint64_t mj;
    _Atomic uint32_t mw;
    _Atomic uint32_t watts, tick_ms; /* not 0: the counter grows by itself */
} pretended_gpu;

typedef struct pretended {
    atomic_int init_code, count_code;
    _Atomic uint32_t ngpus; /* by index; partitions may follow */
    atomic_int hang;        /* while set, counters do not answer */
    atomic_int hang_init;
    _Atomic uint64_t fast_ns; /* asked again sooner, counters answer 0 */
    _Atomic uint64_t calls;   /* of counters and power */
    atomic_int begun;         /* inits less shutdowns */
    pretended_gpu gpus[PRETENDED_GPUS];
} pretended;

/** Name of the object, of type pretended. */
#define PRETENDED_STATE "pretended_state"

#endif
