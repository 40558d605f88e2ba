/* SPDX-License-Identifier: MIT
 *
 * What every file of the library may use: errors, log, settings, memory, clock, numbers.
 */
#ifndef TAM_BASE_BASE_H
#define TAM_BASE_BASE_H

#include "lib/base/numbers.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <tamis/tamis.h>

/* -- status.c: who knows the cause says one sentence, the rest pass the status on ------------- */

/** Remember the sentence for tamis_last_error, return `status`. It is logged at level error, unless
 * it is one of the last few of this thread. */
tamis_status tam_fail(tamis_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Remember the sentence of a failure that was logged where it was found, perhaps on another
 * thread. */
tamis_status tam_pass(tamis_status status, const char *sentence);

/** From here on failures on this thread are expected and handled, or not: they are logged at level
 * debug.
 * @return what it was before, for the end of the trial */
bool tam_hush(bool on);

/** For Python, at the beginning: all failures become exceptions, which hold the sentence. */
void tam_failures_are_raised(void);

#define TAM_TRY(call)                                                                              \
    do {                                                                                           \
        tamis_status tam_try_status_ = (call);                                                     \
        if (tam_try_status_ != TAMIS_OK)                                                           \
            return tam_try_status_;                                                                \
    } while (0)

/* -- log.c: TAMIS_LOG, TAMIS_LOG_FILE --------------------------------------------------------- */

/* As the values of TAMIS_LOG. */
typedef enum tam_log_level { TAM_OFF, TAM_ERROR, TAM_WARN, TAM_INFO, TAM_DEBUG } tam_log_level;

void tam_log(tam_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* -- settings.c: the table of environment variables ------------------------------------------- */

typedef enum tam_setting_id {
    TAM_SETTING_CPU,
    TAM_SETTING_ENERGY,
    TAM_SETTING_GRAPHS,
    TAM_SETTING_LOG,
    TAM_SETTING_LOG_FILE,
    TAM_SETTING_NVML_PATH,
    TAM_SETTING_SYSFS_ROOT,
    TAM_SETTING_THREADS,
    TAM_SETTING_TIMEOUT_MS,
    TAM_SETTING_TRANSPORT,
    TAM_SETTING_WAIT,
    TAM_SETTINGS
} tam_setting_id;

/** Value in force as text; read from the environment once per process. */
const char *tam_setting_text(tam_setting_id id);
/** The index-th, for tamis_setting_list, which may fail: that is in structs.c, above. */
bool tam_setting_at(size_t index, tamis_setting *out);

/** Value in force of a whole-number setting, or the index of a choice in its list of values. */
uint32_t tam_setting_number(tam_setting_id id);

/* -- memory.c: every allocation of the library ------------------------------------------------ */

/** `bytes` bytes, zeroed, 64-byte aligned; NULL if there are none left. bytes 0 gives 1. */
void *tam_alloc(size_t bytes);

/** As tam_alloc for count * size bytes; NULL also when the product overflows. */
void *tam_alloc_array(size_t count, size_t size);

char *tam_strdup(const char *text);
void tam_free(void *memory);

/** For tests: the next `count` allocations succeed, then all fail; negative: no limit. */
void tam_alloc_budget(long count);

/** For tests: allocations made, and allocations not freed, since the process began. */
uint64_t tam_alloc_made(void);
uint64_t tam_alloc_live(void);

/* -- clock.c ---------------------------------------------------------------------------------- */

uint64_t tam_clock_ns(void); /* monotonic */

/** Give the processor away between two looks at what is waited for, the first with tries 0: yields
 * and then short sleeps; on threads of the library naps that grow with the wait. */
void tam_relax(unsigned tries);

/** Sleep for an eighth of the time waited so far, 2 to 200 us. */
void tam_nap(uint64_t waited_ns);
void tam_sleep(uint64_t ns);

/* -- thread.c --------------------------------------------------------------------------------- */

/** The calling thread was made by the library: nobody minds which device is current on it, and it
 * waits in short naps. */
void tam_thread_claim(void);
bool tam_thread_ours(void);

/* -- structs.c -------------------------------------------------------------------------------- */

/**
 * Copy a caller's size-first struct over defaults of ours: older callers give less, newer ones
 * more, of which the part that we do not know must be zero.
 *
 * @param  name      [in]  for the sentence
 * @param  required  [in]  bytes that the first version of the struct had
 */
tamis_status tam_struct_copy(const char *name, void *ours, size_t our_size, size_t required,
                             const void *theirs);

/** Fill a caller's size-first struct, which may be longer than ours: the rest becomes zero. */
tamis_status tam_struct_give(const char *name, const void *ours, size_t our_size, void *theirs);

/** The same of a struct that has grown: older callers, who give `required` bytes or more, get the
 * part that they know. */
tamis_status tam_struct_give_part(const char *name, const void *ours, size_t our_size,
                                  size_t required, void *theirs);

/** The same for entries of a list. @return 1; 0 and a sentence, where the caller's has no size */
int tam_struct_list(const char *name, const void *ours, size_t our_size, void *theirs);

/* -- sort.c ----------------------------------------------------------------------------------- */

typedef struct tam_pair {
    uint64_t key;
    uint64_t value;
} tam_pair;

/** Sort ascending by key, then value, in place. Not qsort: that may allocate. */
void tam_sort(tam_pair *pairs, size_t count);

/** The upper one of two in the middle. Sorts a few values in place. @param count  at least 1 */
double tam_median(double *values, uint32_t count);

/** The first place of an ascending list, from `first` on, that holds `value` or
 * more; else `end`. */
static inline size_t tam_first_from(const uint32_t *list, size_t first, size_t end,
                                    uint64_t value) {
    while (first < end) {
        size_t middle = first + (end - first) / 2;
        if (list[middle] < value)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/** Whether low <= x <= high, or 0 < x <= most. False for NaN, which raises no exception here unless
 * it signals. */
static inline bool tam_within(double x, double low, double high) {
    return isgreaterequal(x, low) && islessequal(x, high);
}

static inline bool tam_positive_upto(double x, double most) {
    return isgreater(x, 0.0) && islessequal(x, most);
}

static inline uint32_t tam_magnitude(float x) {
    return tam_bits(x) & 0x7fffffffu;
}

#endif
