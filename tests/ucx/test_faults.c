/* SPDX-License-Identifier: MIT
 * test: waits slow
 *
 * Each call of UCX goes wrong, one at a time: it fails, is lost, late or damaged, or its process is
 * killed or stopped in it. Every rank ends by its deadline, with the right results or with an error
 * in words, and no step that was said to be done has other results than without the fault.
 */
#include "collectives/transport/ucx_library.c"

#include "tests/support/data.h"
#include "tests/support/processes.h"
#include "tests/support/ranks.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <tamis/ucx.h>
#include <unistd.h>

enum { RANKS = 3, STEPS = 3, N = 200000, VICTIM = 1, WRONG = 9, REFUSED = 3 };

typedef enum action { NONE, FAIL, LOSE, DELAY, FLIP, KILL, STOP, ACTIONS } action;
typedef enum target { SEND, RECEIVE, ENDPOINT, WORKER, ADDRESS, TARGETS } target;

static const char *const action_names[] = {"none", "fail", "lose", "delay", "flip", "kill", "stop"};
static const char *const target_names[] = {"send", "receive", "endpoint", "worker", "address"};

/* What processes share. */
typedef struct record {
    uint64_t hash[STEPS];    /* of the results without a fault */
    unsigned calls[TARGETS]; /* that the victim makes without a fault */
} record;

typedef struct fault {
    action action;
    target target;
    unsigned nth;
    record *seen;
    const tam_ucx_library *real;
    unsigned calls[TARGETS];
} fault;

static fault now;
static tam_ucx_library real;

/* -- the library's functions, with a fault ---------------------------------------------------- */

/* @return whether this is the call that goes wrong */
static bool strikes(target t) {
    bool it = now.calls[t]++ == now.nth && now.target == t;
    if (it && now.action == KILL)
        raise(SIGKILL);
    if (it && now.action == STOP)
        raise(SIGSTOP);
    if (it && now.action == DELAY)
        sleep_ms(300);
    return it && now.action != NONE && now.action != DELAY;
}

static ucs_status_ptr_t faulty_send(ucp_ep_h endpoint, const void *bytes, size_t length,
                                    ucp_tag_t tag, const ucp_request_param_t *how) {
    bool it = strikes(SEND);
    if (it && now.action == FAIL)
        return UCS_STATUS_PTR(UCS_ERR_IO_ERROR);
    if (it && now.action == LOSE)
        return NULL;
    if (it && now.action == FLIP && length > 0)
        ((unsigned char *)(uintptr_t)bytes)[length / 2] ^= 0x20;
    return real.ucp_tag_send_nbx(endpoint, bytes, length, tag, how);
}

static ucs_status_ptr_t faulty_receive(ucp_worker_h worker, void *bytes, size_t length,
                                       ucp_tag_t tag, ucp_tag_t mask,
                                       const ucp_request_param_t *how) {
    if (strikes(RECEIVE) && now.action == FAIL)
        return UCS_STATUS_PTR(UCS_ERR_NO_MEMORY);
    return real.ucp_tag_recv_nbx(worker, bytes, length, tag, mask, how);
}

static ucs_status_t faulty_endpoint(ucp_worker_h worker, const ucp_ep_params_t *params,
                                    ucp_ep_h *out) {
    if (strikes(ENDPOINT) && now.action == FAIL)
        return UCS_ERR_UNREACHABLE;
    return real.ucp_ep_create(worker, params, out);
}

static ucs_status_t faulty_worker(ucp_context_h context, const ucp_worker_params_t *params,
                                  ucp_worker_h *out) {
    if (strikes(WORKER) && now.action == FAIL)
        return UCS_ERR_NO_DEVICE;
    return real.ucp_worker_create(context, params, out);
}

static ucs_status_t faulty_address(ucp_worker_h worker, ucp_address_t **address, size_t *bytes) {
    if (strikes(ADDRESS) && now.action == FAIL)
        return UCS_ERR_NO_MEMORY;
    return real.ucp_worker_get_address(worker, address, bytes);
}

static void put_faults(void) {
    const tam_ucx_library *library;
    if (tam_ucx_load(&library) != TAMIS_OK)
        _exit(1);
    real = loaded;
    loaded.ucp_tag_send_nbx = faulty_send;
    loaded.ucp_tag_recv_nbx = faulty_receive;
    loaded.ucp_ep_create = faulty_endpoint;
    loaded.ucp_worker_create = faulty_worker;
    loaded.ucp_worker_get_address = faulty_address;
}

/* -- a rank ----------------------------------------------------------------------------------- */

static int end_refused(tamis_comm *comm, tamis_status status) {
    if (tamis_last_error()[0] == '\0' || status == TAMIS_OK)
        return WRONG;
    tamis_comm_destroy(comm);
    return REFUSED;
}

static tamis_status make_step(tamis_reducer *r, uint32_t rank, uint32_t number, uint64_t *hash) {
    static float grad[N];
    const tamis_step step = data_step(grad);
    data_fill_real(rank, number, N, grad);
    tamis_status status = tamis_reducer_start(r, &step);
    if (status == TAMIS_OK)
        status = tamis_reducer_wait(r);
    *hash = data_hash(0, grad, sizeof grad);
    return status;
}

static int make_steps(tamis_comm *comm, uint32_t rank, bool clean, record *seen) {
    tamis_reducer_config config = TAMIS_REDUCER_CONFIG_INIT;
    tamis_reducer *r = NULL;
    config.density = 0.05;
    tamis_status status = data_reducer(comm, N, &config, &r);
    for (uint32_t i = 0; i < STEPS && status == TAMIS_OK; i++) {
        uint64_t hash;
        status = make_step(r, rank, i, &hash);
        if (status == TAMIS_OK && clean && rank == 0)
            seen->hash[i] = hash;
        if (status == TAMIS_OK && !clean && seen->hash[i] != hash)
            return WRONG;
    }
    tamis_reducer_destroy(r);
    if (status != TAMIS_OK)
        return end_refused(comm, status);
    tamis_comm_destroy(comm);
    return 0;
}

static int run_rank(const tamis_callbacks *rendezvous, void *arg) {
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *comm = NULL;
    now = *(const fault *)arg;
    bool clean = now.action == NONE, victim = rendezvous->rank == VICTIM;
    if (!victim)
        now.action = NONE;
    put_faults();
    config.timeout_ms = clean ? test_long_ms() : test_short_ms();
    tamis_status status = tamis_comm_create_ucx(rendezvous, &config, &comm);
    if (status != TAMIS_OK)
        return end_refused(comm, status);
    int code = make_steps(comm, rendezvous->rank, clean, now.seen);
    if (clean && victim)
        memcpy(now.seen->calls, now.calls, sizeof now.calls);
    return code;
}

/* -- all faults ------------------------------------------------------------------------------- */

typedef struct outcomes {
    unsigned runs, right, refused, failures;
} outcomes;

static void try_fault(fault *f, outcomes *o) {
    int statuses[RANKS];
    bool right = true, sound = true;
    processes_run(RANKS, 60, run_rank, f, statuses);
    for (uint32_t r = 0; r < RANKS; r++) {
        bool ends = r == VICTIM && (f->action == KILL || f->action == STOP);
        right = right && statuses[r] == 0;
        sound = sound && (statuses[r] == 0 || statuses[r] == REFUSED ||
                          (ends && statuses[r] == 128 + SIGKILL));
    }
    o->runs++;
    o->right += right;
    o->refused += !right && sound;
    o->failures += !sound;
    if (!sound)
        printf("%s of %s %u: exit statuses%s\n", action_names[f->action], target_names[f->target],
               f->nth, processes_text(statuses, RANKS));
}

/* Losing and flipping are for messages. While ranks find each other, a process that is gone is
 * waited for by the rendezvous, whose deadline is the caller's. */
static bool applies(action a, target t) {
    bool messages = t == SEND || t == RECEIVE;
    return t == SEND || a == FAIL || a == DELAY || (messages && a != LOSE && a != FLIP);
}

static outcomes try_calls(record *seen, action a, target t) {
    outcomes o = {0};
    for (unsigned nth = 0; nth < seen->calls[t]; nth++) {
        fault f = {.action = a, .target = t, .nth = nth, .seen = seen};
        if (test_drawn(5))
            try_fault(&f, &o);
    }
    return o;
}

int main(void) {
    record *seen =
        mmap(NULL, sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    fault none = {.action = NONE, .seen = seen};
    outcomes clean = {0};
    unsigned failures = 0;
    try_fault(&none, &clean);
    failures += clean.right != 1;
    for (action a = FAIL; a < ACTIONS; a++)
        for (target t = SEND; t < TARGETS; t++) {
            outcomes o = applies(a, t) ? try_calls(seen, a, t) : (outcomes){0};
            failures += o.failures;
            if (o.runs > 0)
                printf("%-6s %-9s %3u runs: %3u right, %3u refused, %u FAILED\n", action_names[a],
                       target_names[t], o.runs, o.right, o.refused, o.failures);
            fflush(stdout);
        }
    return failures != 0;
}
