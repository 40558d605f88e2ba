/* SPDX-License-Identifier: MIT
 *
 * The status table (docs/errors.md is made from it) and the last sentence of each thread.
 */
#include "lib/base/base.h"

#include <stdio.h>
#include <tamis/lists.h>

typedef struct status_row {
    tamis_status status;
    const char *name, *text, *remedy;
} status_row;

static const status_row rows[] = {
    {TAMIS_OK, "TAMIS_OK", "The call succeeded.", "Nothing."},
    {TAMIS_E_ARGUMENT, "TAMIS_E_ARGUMENT",
     "An argument is NULL, out of range, misaligned or overlapping.",
     "Correct the call and retry."},
    {TAMIS_E_STATE, "TAMIS_E_STATE", "The call was made out of order.",
     "Correct the order of calls: initialise MPI first, pair every "
     "start with one wait, save and load between steps."},
    {TAMIS_E_NOMEM, "TAMIS_E_NOMEM", "Memory could not be allocated.",
     "Free memory, use fewer ranks per node or a smaller capacity, and repeat the call."},
    {TAMIS_E_UNSUPPORTED, "TAMIS_E_UNSUPPORTED",
     "The request is valid, but this build or this combination of options does not support it.",
     "tamis_info lists what was built and which schemes exist."},
    {TAMIS_E_MISMATCH, "TAMIS_E_MISMATCH",
     "The ranks were configured differently; every rank got this status.",
     "Make what the message names the same on all ranks: options, steps, or parameters, which one "
     "rank broadcasts at the start."},
    {TAMIS_E_IO, "TAMIS_E_IO", "A file could not be read or written.",
     "Check the path, the permissions and the free space; a file that existed before is intact."},
    {TAMIS_E_FORMAT, "TAMIS_E_FORMAT",
     "A state file is damaged, truncated, or belongs to another reducer.",
     "Use an older file, or one that matches this rank, layout, scheme and number of ranks."},
    {TAMIS_E_NONFINITE, "TAMIS_E_NONFINITE",
     "The gradient of at least one rank held NaN or Inf; every rank got this status and none "
     "applied the step.",
     "Find the cause (learning rate, loss scale, input); training can continue with the next "
     "step."},
    {TAMIS_E_TIMEOUT, "TAMIS_E_TIMEOUT", "A rank did not answer before the deadline.",
     "Check the rank that most error messages name: it died, makes fewer steps than the others, or "
     "is slow (TAMIS_TIMEOUT_MS). Save the state and exit, or go on with the ranks that are left "
     "(tamis_comm_shrink; Python: tamis.run_elastic)."},
    {TAMIS_E_TRANSPORT, "TAMIS_E_TRANSPORT",
     "The underlying transport (MPI, NCCL, the caller's callback) reported an error.",
     "Save the state and exit; the error message includes that of the transport."},
    {TAMIS_E_PROTOCOL, "TAMIS_E_PROTOCOL",
     "A message was refused (wrong step, wrong hash, damaged), or the results of the ranks differ.",
     "Save the state and exit; the ranks made different calls, or the network corrupts data."},
    {TAMIS_E_ABORTED, "TAMIS_E_ABORTED", "The communicator was aborted.",
     "Save the state and exit; the rank that aborted reports why."},
    {TAMIS_E_DEVICE, "TAMIS_E_DEVICE", "The accelerator reported an error.",
     "Save the state and exit. After some errors (an illegal address, a device that fell off the "
     "bus) the device's memory is lost and saving fails: resume from the last state file."},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static _Thread_local char last_error[512];
static _Thread_local bool errors_quiet;
static bool raised;

/* Hashes of the sentences that this thread logged last: a loop that continues despite a failure
 * would log the same few again and again. */
enum { RECENT = 4 };
static _Thread_local uint64_t recent[RECENT];
static _Thread_local unsigned next_recent;

static const status_row *status_find(tamis_status status) {
    for (size_t i = 0; i < ROWS; i++) {
        if (rows[i].status == status)
            return &rows[i];
    }
    return NULL;
}

int tamis_version(void) {
    return TAMIS_VERSION;
}

const char *tamis_status_name(tamis_status status) {
    const status_row *row = status_find(status);
    return row ? row->name : "unknown status";
}

const char *tamis_status_text(tamis_status status) {
    const status_row *row = status_find(status);
    return row ? row->text : "A status that this version of the library does not know.";
}

const char *tamis_status_remedy(tamis_status status) {
    const status_row *row = status_find(status);
    return row ? row->remedy : "Treat the communicator as lost.";
}

tamis_loss tamis_status_loss(tamis_status status) {
    if (!status_find(status) || (int)status >= 64)
        return TAMIS_LOST_COMM;
    return (int)status >= 32 ? TAMIS_LOST_STEP : TAMIS_LOST_NOTHING;
}

int tamis_status_list(size_t index, tamis_status *out) {
    if (index >= ROWS || !out)
        return 0;
    *out = rows[index].status;
    return 1;
}

const char *tamis_last_error(void) {
    return last_error;
}

static bool is_new(const char *sentence) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (const char *at = sentence; *at; at++)
        hash = (hash ^ (unsigned char)*at) * UINT64_C(0x100000001b3);
    for (int i = 0; i < RECENT; i++) {
        if (recent[i] == hash)
            return false;
    }
    recent[next_recent++ % RECENT] = hash;
    return true;
}

tamis_status tam_fail(tamis_status status, const char *format, ...) {
    char sentence[sizeof last_error]; /* the arguments may point into last_error */
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    memcpy(last_error, sentence, sizeof last_error);
    bool loud = !errors_quiet && !raised && is_new(sentence);
    tam_log(loud ? TAM_ERROR : TAM_DEBUG, "%s: %s", tamis_status_name(status), sentence);
    return status;
}

tamis_status tam_pass(tamis_status status, const char *sentence) {
    snprintf(last_error, sizeof last_error, "%s", sentence);
    is_new(sentence);
    return status;
}

bool tam_errors_quiet(bool on) {
    bool before = errors_quiet;
    errors_quiet = on;
    return before;
}

void tam_failures_are_raised(void) {
    raised = true;
}
