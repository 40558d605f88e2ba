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

/* -- status.c: whoever finds the cause records one sentence, callers pass the status on ------- */

/** Store the sentence for tamis_last_error, return `status`. It is logged at level error, unless
 * this thread logged it recently: then at level debug. */
tamis_status tam_fail(tamis_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Store the sentence of a failure that was logged where it occurred, perhaps on another thread. */
tamis_status tam_pass(tamis_status status, const char *sentence);

/** Whether failures on this thread are expected from here on: they are then logged at level debug.
 * @return the previous setting, to be restored afterwards */
bool tam_errors_quiet(bool on);

/** For Python, at start-up: all failures become exceptions that hold the sentence. */
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
    TAM_SETTING_FLIGHT,
    TAM_SETTING_GRAPHS,
    TAM_SETTING_LOG,
    TAM_SETTING_LOG_FILE,
    TAM_SETTING_MESSAGE_GIB,
    TAM_SETTING_NVML_PATH,
    TAM_SETTING_PLAN,
    TAM_SETTING_RENDEZVOUS,
    TAM_SETTING_SYSFS_ROOT,
    TAM_SETTING_THREADS,
    TAM_SETTING_TIMEOUT_MS,
    TAM_SETTING_TRANSPORT,
    TAM_SETTING_WAIT,
    TAM_SETTINGS
} tam_setting_id;

/** Value in force as text; read from the environment once per process. */
const char *tam_setting_text(tam_setting_id id);
struct tamis_setting;
/** The index-th setting, for tamis_setting_list (structs.c). */
bool tam_setting_at(size_t index, struct tamis_setting *out);

/** Value in force of a whole-number setting, or the index of a choice in its list of values. */
uint32_t tam_setting_number(tam_setting_id id);

/* -- memory.c: every allocation of the library ------------------------------------------------ */

/** `bytes` bytes (0: 1 byte), zeroed, 64-byte aligned; NULL if there is no memory. */
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

/** Give the processor away between two polls, the first with tries 0: yields and then short sleeps;
 * on threads of the library sleeps that grow with the wait. */
void tam_back_off(unsigned tries);

/** Sleep for an eighth of the time waited so far, 2 to 200 us. */
void tam_sleep_backoff(uint64_t waited_ns);
void tam_sleep(uint64_t ns);

/* -- thread.c --------------------------------------------------------------------------------- */

/** Mark the calling thread as the library's own: its current device may change, and it waits in
 * short sleeps. */
void tam_thread_claim(void);
bool tam_thread_ours(void);

/* -- structs.c -------------------------------------------------------------------------------- */

/**
 * Copy a caller's size-first struct over our defaults. Older callers give fewer bytes, newer ones
 * more; the bytes that we do not know must be zero.
 *
 * @param  name      [in]  for the sentence
 * @param  required  [in]  bytes of the first version of the struct
 */
tamis_status tam_struct_copy(const char *name, void *ours, size_t our_size, size_t required,
                             const void *theirs);

/** Fill a caller's size-first struct, which may be longer than ours: the rest becomes zero. */
tamis_status tam_struct_return(const char *name, const void *ours, size_t our_size, void *theirs);

/** Fill a struct that has grown: older callers, which give at least `required` bytes, get
 * the part that they know. */
tamis_status tam_struct_return_part(const char *name, const void *ours, size_t our_size,
                                    size_t required, void *theirs);

/** Fill an entry of a list. @return 1; 0 and a sentence if the caller's size is too small */
int tam_struct_list(const char *name, const void *ours, size_t our_size, void *theirs);

/* -- sort.c ----------------------------------------------------------------------------------- */

typedef struct tam_pair {
    uint64_t key;
    uint64_t value;
} tam_pair;

/** Sort ascending by key, then value, in place. Not qsort: that may allocate. */
void tam_sort(tam_pair *pairs, size_t count);

/** The median, the upper one of two. Sorts a few values in place. @param count  at least 1 */
double tam_median(double *values, uint32_t count);

/** The first position in an ascending list, from `first` on, that holds at least `value`; else
 * `end`. */
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

/** Whether low <= x <= high, or 0 < x <= most. False for NaN; a quiet NaN raises no floating-point
 * exception. */
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
