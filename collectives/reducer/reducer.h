/* SPDX-License-Identifier: MIT
 *
 * Inside a reducer: policies, kernels, exchange and transport come together here and nowhere else.
 *
 * A reducer is a row of buckets, each with its own division, thresholds, packets and job. They
 * share the residual, the step number and the end of a step.
 *
 *     residual   0 ........................................................ n-1
 *     buckets    |     3     |      2      |     1     |         0         |
 *     a step     jobs run in the order 0 1 2 3; the last of them ends the step for all
 */
#ifndef TAM_REDUCER_REDUCER_H
#define TAM_REDUCER_REDUCER_H

#include "collectives/reducer/addresses.h"
#include "collectives/transport/handshake.h"
#include "collectives/transport/comm.h"
#include "collectives/transport/calibrate_costs.h"
#include "lib/contracts/exchange.h"
#include "lib/base/options.h"
#include "lib/policy/bucket.h"
#include "lib/policy/control.h"
#include "lib/policy/norm_matching.h"
#include "lib/policy/slowdown.h"
#include "lib/policy/node_shard.h"

#include <tamis/stats.h>

/** What all ranks must have in common: facts, named in config_handshake.c; the options follow
 * them. */
typedef enum tam_fact {
    TAM_FACT_VERSION,
    TAM_FACT_LENGTH,
    TAM_FACT_NSEGMENTS,
    TAM_FACT_SEGMENTS,
    TAM_FACT_ROWS,
    TAM_FACT_SCHEME,
    TAM_FACT_UPDATE, /* whether there is one */
    TAM_FACT_GRAPHS,
    TAM_FACT_DRIVER,
    TAM_FACT_CUDA,          /* of dense and auto: what they do in a step depends on the device */
    TAM_FACT_DENSE_BUCKETS, /* a bit for each; what exchange auto chose */
    TAM_FACT_BUCKET_CODECS, /* a hash; what exchange auto chose */
    TAM_FACTS
} tam_fact;

enum {
    TAM_FIELDS_OF_CONFIG = TAM_FACTS,
    TAM_FIELDS_OF_UPDATE = TAM_FIELDS_OF_CONFIG + TAM_CONFIG_COUNT,
    TAM_FIELDS = TAM_FIELDS_OF_UPDATE + TAM_UPDATE_COUNT
};

enum { TAM_SKEW_STEPS = 16 }; /* after so many late steps a rank is expected to be late */

typedef struct tam_config_handshake {
    tam_handshake_header header;
    uint64_t fields[TAM_FIELDS];
} tam_config_handshake;

typedef struct tam_inflight_ring tam_inflight_ring; /* inflight.h */

typedef struct tam_rollback tam_rollback; /* rollback.h */

/** config.slowdown: of the step before, on this rank; 0: unknown. */
typedef struct tam_step_times {
    uint64_t ended_ns;
    uint32_t computing_us, waited_us;
} tam_step_times;

/** Seconds that a bucket has taken in the step under way. */
typedef struct tam_bucket_times {
    double accumulate_s, select_s, skew_s, exchange_s;
} tam_bucket_times;

/** A run of segments that is exchanged on its own. Elements are counted from its begin. */
typedef struct tam_bucket {
    tam_job job; /* first: the exchange of the step under way */
    tamis_reducer *reducer;
    const tam_exchange *exchange;
    void *exchanged; /* state of the exchange; NULL: a device runs the steps */
    tam_bucket_view view;
    tam_scheme scheme; /* of this bucket; may differ from the reducer's */
    uint32_t first_segment;
    tamis_layout *layout;      /* of its segments alone */
    tam_node_shard node_shard; /* what this rank holds of it, */
    uint64_t residual_begin;   /* from this element of the residual on */
    tam_division division;
    tam_control control;
    uint32_t *never;    /* [ngroups] thresholds that nothing reaches: only accumulate */
    double predicted_s; /* exchange auto: the exchange by the cost model; else 0 */

    double *min_keys;         /* [nranks] */
    uint32_t *group_selected; /* [ngroups] */
    uint32_t bad_segment; /* of its layout, with the first entry of this step that is NaN or Inf */
    size_t rollback_at;   /* byte of reducer->rollback where its list begins */
    size_t rollback_capacity; /* entries that the list can hold */
    void *rollback_long;      /* in place of it, for a step with more; grows as needed, or NULL */
    size_t rollback_long_capacity;
    bool rollback_is_long; /* the last step is recorded there */

    uint32_t unready;        /* segments of this step that are not ready yet */
    bool begun;              /* the residual has decayed and holds micro-batches of the next step */
    tam_optimizer optimizer; /* update mode, of the step under way */
    uint64_t pass;           /* its number, from 1 */
    double early_s;          /* of micro-batches before the step */
    tam_bucket_times now;

    uint32_t skew_us[TAM_SKEW_STEPS]; /* ring buffer: wait for the last rank in recent steps */
    uint32_t nskew;                   /* steps recorded */
} tam_bucket;

/** What drives the steps: the host, phase by phase, or the device by itself. */
typedef struct tam_driver {
    const char *name;
    bool by_host;                          /* the host sees every phase of a step */
    tamis_status (*open)(tam_bucket *b);   /* what it needs beside residual and kernels */
    tamis_status (*arm)(tamis_reducer *r); /* collective: all ranks have opened */
    void (*close)(tam_bucket *b);          /* free what open took, even if it failed half way */

    /** b->target is set and checked. @param stream  of the caller */
    tamis_status (*launch)(tam_bucket *b, void *stream);
    /** Only add the gradient to the residual. */
    tamis_status (*accumulate)(tam_bucket *b, void *stream);
    /** Whether wait would return at once. */
    bool (*test)(tamis_reducer *r);
    /** End the step. Buckets 0 to r->launched - 1, at least one, were launched. Advances r->step
     * unless the comm is lost. @param begin_ns  when the caller began to wait */
    tamis_status (*wait)(tamis_reducer *r, uint64_t begin_ns, uint64_t until_ns);
    tamis_status (*join)(tamis_reducer *r, void *stream, uint64_t begin_ns, uint64_t until_ns);

    /** Wait for the end of the joined step that is `back` before the last one, 0 to 7. */
    tamis_status (*outcome)(tamis_reducer *r, uint32_t back, int *applied);
    /** Retire joined steps that have ended; never waits. */
    void (*look)(tamis_reducer *r);
    /** quiesce waits for joined steps and copies their state to the host; reload copies it back. */
    tamis_status (*quiesce)(tamis_reducer *r);
    tamis_status (*reload)(tamis_reducer *r);
    void (*result)(const tamis_reducer *r, tamis_result *out);
} tam_driver;

extern const tam_driver tam_driver_host;   /* host.c */
extern const tam_driver tam_driver_stream; /* stream.c, with CUDA */

struct tamis_reducer {
    tamis_comm *comm;
    uint64_t serial; /* among the reducers of the communicator, from 1 */
    uint64_t
        origin; /* that of the reducer that it was migrated from; or its own, which no other has */
    tamis_layout *layout;
    tamis_reducer_config config; /* defaults resolved */
    tam_scheme scheme;
    tam_config_handshake handshake;
    tam_cost_calibration *calibration; /* exchange auto, while it is created */
    double density;                    /* of the next step */
    uint64_t k, k_max;                 /* entries of a step of all buckets together */
    tam_slowdown slowdown;
    double slowdown_least; /* density that suits the update */
    tam_step_times times;
    uint32_t rank, nranks; /* that select: of the comm, or of an inter-node group */

    const tam_device *device;
    const tam_driver *driver;
    tam_inflight_ring *inflight; /* driver stream */
    tam_bucket *buckets;         /* [nbuckets] in the order of the exchange */
    uint32_t nbuckets;
    uint32_t traits;          /* common to the exchanges of all buckets */
    bool on_device;           /* a device can run the steps of all buckets by itself */
    uint32_t *bucket_of;      /* [nsegments] */
    uint64_t residual_length; /* elements of the residual: n; hierarchical: of this rank's shards */
    float *acc;               /* residual between steps */
    tamis_update update;      /* config.update points here, or is NULL */
    bool scale_open;          /* update.scale is not given; momentum's follows the density */
    bool matching_open;       /* update.norm_matching follows the density */
    tam_norm_matching norm_matching; /* update.norm_matching: what the scale follows from */
    float *first, *second;           /* update mode: moments that the rule has, else NULL */
    uint64_t passes;                 /* that the moments have seen */
    float *staging;    /* [most that any bucket's exchange needs] buckets take turns */
    uint32_t *indices; /* [sum of result_max] joined result of several buckets; else NULL */
    float *values;
    uint64_t *lengths,
        *budgets;       /* [nbuckets] of those that share k; the latter twice, as scratch */
    double *norms;      /* [nbuckets] of the last step */
    uint64_t *selected; /* [nranks] scratch of the statistics */

    /* The step under way. One thread may call ready while another waits, so both take the lock. */
    pthread_mutex_t lock;
    pthread_cond_t progress; /* a bucket was launched, or could not be */
    bool started;            /* a step is under way, */
    bool all_ready;          /* and start has been called for it */
    bool *ready;             /* [nsegments] */
    tam_addresses addresses; /* of gradients given by segment */
    uint32_t launched;       /* buckets */
    bool launching;          /* a thread is about to launch the next one; waiters wait for it */
    bool given_up;           /* the waiter has stopped waiting: no bucket may begin */
    tamis_step given;        /* what the first call of the step gave */

    /* Steps in a row that no rank applied, for NaN or Inf: what to say when they do not end. */
    uint64_t bad_steps, bad_since;
    char bad_where[128]; /* of the first of them */

    bool abandoned, has_result, has_norms;
    bool in_graph; /* a graph of the caller holds a step */
    uint64_t step;
    tam_rollback *rollback; /* how to roll the last step back */
    uint64_t synced_ns;     /* end of the previous exchange, at about the same time on all ranks */
    uint64_t ended_ns;      /* end of the previous step's last exchange; 0: unknown */
    uint32_t busy_us;       /* from there to the launch of the last bucket; 0: unknown */
    size_t count;           /* of the result */
    tamis_stats now;        /* of the step under way */
    tamis_stats stats;      /* of the last finished step */
};

/** Whether the job accumulates the gradient, not the launch before it. */
static inline bool tam_bucket_waits(const tam_bucket *b) {
    return b->exchange->traits & TAM_TRAIT_COLLECTS ||
           b->reducer->config.worker == TAMIS_WORKER_THREAD;
}

/** The number of entries that thresholds are learned for. A shard may get none of a small k; it
 * then learns for one. */
static inline uint64_t tam_bucket_threshold_k(const tam_bucket *b) {
    return b->view.k > 0 ? b->view.k : 1;
}

/** Buckets that share k. */
static inline uint32_t tam_ordinary_buckets(const tamis_reducer *r) {
    return r->nbuckets - r->layout->nrow_segments;
}

/** Entries that a bucket is to send in the next step. */
static inline uint64_t tam_bucket_target(const tam_bucket *b) {
    return b->exchange->traits & TAM_TRAIT_SELECTS ? b->view.whole_k : b->layout->length;
}

/** Whether exchange auto makes buckets dense where that should be faster; else all are sparse. */
static inline bool tam_reducer_chooses(const tamis_reducer *r) {
    return tam_scheme_auto(r->scheme) && r->config.output == TAMIS_OUTPUT_DENSE &&
           r->config.device == TAMIS_DEVICE_CPU && !r->config.update;
}

/** Whether that choice uses measured times, as no link was configured. */
static inline bool tam_reducer_calibrates(const tamis_reducer *r) {
    const tamis_reducer_config *c = &r->config;
    return tam_reducer_chooses(r) && (c->link_latency_us == 0.0 || c->link_gbit == 0.0);
}

/** What is between the ranks, as far as their transport knows. */
static inline tam_usual_link tam_comm_usual_link(const tamis_comm *comm) {
    const tam_transport *t = comm->transport;
    return t->usual ? *t->usual(comm->self)
                    : (tam_usual_link){.latency_us = 50.0, .gbit = 1.0, .bucket_us = 0.0};
}

/** The link that was given, else what is usual: with exchange auto it may have to be measured. */
static inline tam_link_model tam_reducer_link(const tamis_reducer *r) {
    double latency_us = r->config.link_latency_us, gbit = r->config.link_gbit;
    const tam_usual_link usual = tam_comm_usual_link(r->comm);
    return (tam_link_model){(latency_us != 0.0 ? latency_us : usual.latency_us) * 1e-6,
                            8.0 / ((gbit != 0.0 ? gbit : usual.gbit) * 1e9)};
}

/** What planned buckets and costs of a given link assume. It follows from the number of ranks and
 * the link (buckets also from the transport: bucket_us): bits depend on buckets, and shall not on
 * nodes or measurements. */
typedef struct tam_model {
    tam_net net;
    tam_plan plan;
} tam_model;

static inline tam_model tam_reducer_model(const tamis_reducer *r) {
    tam_link_model link = tam_reducer_link(r);
    uint32_t nranks = r->comm->nranks;
    return (tam_model){tam_net_of_link(&link, nranks, 1), tam_plan_usual(nranks, 1)};
}

static inline const tam_bucket *tam_last_bucket(const tamis_reducer *r) {
    return &r->buckets[r->nbuckets - 1];
}

/** update.c: fill in the options that the caller left open, by what the residual accumulates. */
void tam_update_complete(tamis_reducer *r, tamis_reducer_config *config);
/** byte_share.c: density and codecs, where config.byte_share is given.
 * Errors: ARGUMENT (a density too; a scheme of which bytes are not known; too little) */
tamis_status tam_byte_share_complete(const tamis_reducer *r, const tamis_layout *layout,
                                     tamis_reducer_config *config);
/** What is left open follows k, which all ranks compare in every step. */
void tam_update_follow(tamis_reducer *r);
/** How many options its rule uses: they come first in the table. */
uint32_t tam_update_used(const tamis_update *update);
/** refuse.c: UNSUPPORTED if the reducer's options do not go together, or not with the call. */
tamis_status tam_refuse(const tamis_reducer *r, const char *call);
/** Whether momentum is cleared where entries leave the residual (DGC's factor masking), lest old
 * entries count twice. Where everything leaves in every step there are no old ones. */
bool tam_update_masks(const tamis_reducer *r);
/** Update mode: set what the rule needs in the next pass, and this bucket's moments, in the
 * bucket's target, which is otherwise complete. */
void tam_update_set_target(tam_bucket *b);
/** Whether there is an update.norm_matching. */
bool tam_update_has_norm_matching(const tamis_reducer *r);
/** update.norm_matching: what the norms of this step, whose sums are there, make of
 * r->norm_matching; and the scale that follows. Without it that of the update, or 1. */
tam_norm_matching tam_update_learn(const tamis_reducer *r);
double tam_update_scale(const tamis_reducer *r, const tam_norm_matching *norm_matching);
double tam_update_scale_most(const tamis_reducer *r);

/** config_handshake.c: fill in what this reducer compares, except what its buckets choose. */
void tam_config_handshake_fill(tamis_reducer *r, const tamis_layout *layout);
/** config_handshake.c: all ranks compare, and all report the first difference. */
tamis_status tam_config_handshake_run(tamis_comm *comm, const tam_config_handshake *mine,
                                      const tamis_layout *layout, uint64_t deadline_ns);
/** disagree.c: all ranks look for the first segment in which rank `odd` differs from rank 0.
 * @return TAMIS_E_MISMATCH with a sentence that names it, the same on all ranks */
tamis_status tam_layouts_disagree(tamis_comm *comm, const tamis_layout *layout, uint32_t odd,
                                  uint64_t deadline_ns);
/** The part that a state stores, to know what it belongs to. @param out  [TAM_FIELDS] */
void tam_config_handshake_of_state(const tam_config_handshake *handshake, uint64_t *out);
uint64_t tam_config_handshake_hash(const tam_config_handshake *handshake);
/** Describe in words the first field in which a handshake differs from a state's.
 * @return false if there is none */
bool tam_config_handshake_differs(const tam_config_handshake *ours, const uint64_t *state,
                                  char *text, size_t size);

/** budgets.c: set the density and what depends on it, except the budgets of buckets. */
void tam_reducer_take_density(tamis_reducer *r, double density);
/** slowdown.c: whether config.slowdown is given, and there is what it can change. */
bool tam_slowdown_on(const tamis_reducer *r);
/** A step has ended on this rank, all of which had been launched at launched_ns. */
void tam_slowdown_waited(tamis_reducer *r, uint64_t launched_ns, bool applied);
/** A step is applied, whose headers hold times. */
void tam_slowdown_observe(tamis_reducer *r);
/** Between steps: another density, if a window has ended. */
void tam_slowdown_follow(tamis_reducer *r);
/** Most entries that a bucket gets of k, or of fewer. */
uint64_t tam_bucket_most(const tam_bucket *b, uint64_t k);
/** Entries of a density: at least one, unless the length is 0. */
uint64_t tam_reducer_entries(double density, uint64_t length);
/** Whether k is shared by the norms of buckets. */
bool tam_buckets_by_norm(const tamis_reducer *r);
/** Divide k among the open buckets for the next step; budget_first: before they are open, without
 * norms. */
void tam_buckets_budget(tamis_reducer *r);
void tam_buckets_budget_first(tamis_reducer *r);

/** What a reducer is made from. */
typedef struct tam_recipe {
    const tamis_layout *layout;
    const tamis_reducer_config *config; /* or, in place of it, */
    const tamis_reducer *like;          /* a reducer with these options and buckets */
    tamis_status status; /* of this rank so far: the others must learn of a failure */
    uint64_t deadline_ns;
    tamis_reducer **out;
} tam_recipe;

/** create.c: make a reducer. Collective. */
tamis_status tam_reducer_make(tamis_comm *comm, const tam_recipe *recipe);

/** buckets.c: division of the layout, and all that one bucket needs. @param like  NULL, or a
 * reducer whose buckets begin at the same segments */
tamis_status tam_buckets_open(tamis_reducer *r, const tamis_reducer *like);
void tam_buckets_close(tamis_reducer *r);
/** choose.c: give every bucket its scheme and exchange. Exchange auto chooses the exchange and the
 * index codec that should be fastest, by the model of cost.h from numbers that all ranks share. */
void tam_buckets_choose(tamis_reducer *r);

/** job.c: the job of a bucket, from the gradient to the sums; the last bucket's job ends the step
 * for all. */
tamis_status tam_step_exchange(tam_job *job, tam_link *link);
/** job.c: add a bucket's gradient to the residual, in the job or, where possible, before it. */
tamis_status tam_step_accumulate(tam_bucket *b);

/** finish.c: the end of a step whose buckets have all been exchanged: decide, apply, learn. */
tamis_status tam_step_finish(tamis_reducer *r, tam_job *job);

/** OK if the caller still waits: from here on the job may change what the caller sees. */
tamis_status tam_step_commit(const tamis_reducer *r, tam_job *job);
/** What sums are divided by, with the scale of updates, and without. */
float tam_divisor(const tamis_reducer *r);
static inline double tam_divisor_of_sums(const tamis_reducer *r) {
    return r->config.op == TAMIS_OP_MEAN ? r->comm->nranks : 1.0;
}
/* -- nonfinite.c ------------------------------------------------------------------------------ */

enum { TAM_NONFINITE_TEXT = 256 };

/** A pass over a bucket has seen that; its segment counts if no pass of the step saw one before. */
void tam_nonfinite_record(tam_bucket *b, const tam_accumulated *seen);

/** The first segment of this step whose gradient here had NaN or Inf; NULL: none, or not known. */
const char *tam_nonfinite_segment(const tamis_reducer *r);

/** A step has ended that no rank applies, the first since one was applied or another in a row: once
 * a step, in their order. @param where  the first entry was */
void tam_nonfinite_count(tamis_reducer *r, uint64_t step, const char *where);

/** NONFINITE with a sentence about it, or OK if the configuration says to skip such steps. Any
 * thread. @param row  the sentence's end: tam_nonfinite_row_text, or "" */
tamis_status tam_nonfinite_say(const tamis_reducer *r, uint64_t step, uint64_t bad,
                               const char *where, const char *row);

/** The reducer goes to another step, by a state or by a rollback. */
void tam_nonfinite_forget(tamis_reducer *r);

/** How many such steps came in a row, to be appended to a sentence; "" if not more than one. */
const char *tam_nonfinite_row_text(const tamis_reducer *r, char text[TAM_NONFINITE_TEXT]);

/** phase.c: a phase that began at `begin_ns` ends now: add it to `seconds` and notify the listener.
 * @param bucket  TAMIS_NO_BUCKET: the whole step. @return now */
uint64_t tam_phase_end(const tamis_reducer *r, tamis_phase phase, uint32_t bucket,
                       uint64_t begin_ns, double *seconds);
/** Record a phase that ended at `end_ns`. */
void tam_phase_record(const tamis_reducer *r, tamis_phase phase, uint32_t bucket, uint64_t begin_ns,
                      uint64_t end_ns, double *seconds);
/** Notify the listener of a phase of any step; adds to no statistics. */
void tam_phase_report(const tamis_reducer *r, tamis_phase phase, uint32_t bucket, uint64_t step,
                      uint64_t begin_ns, uint64_t end_ns);

/** skew.c: microseconds from `since_ns` to `at_ns`, at least 1; 0 if since_ns is 0 (unknown). */
uint32_t tam_skew_us(uint64_t since_ns, uint64_t at_ns);
/** Time before which the last rank is not expected at an exchange that begins now; 0: unknown. */
uint64_t tam_skew_expected_ns(const tam_bucket *b, uint64_t begin_ns);
/** The first part of an exchange, for which ranks wait for each other, has ended and the headers
 * are here. Split its time into waiting for the others and the transfer. */
void tam_skew_report(tam_bucket *b, uint64_t begin_ns, uint64_t end_ns);
/** All ranks end this exchange at about the same time: count from here. */
void tam_skew_synced(tam_bucket *b, uint64_t now_ns);
/** Forget the times known so far: they belong to another run. */
void tam_skew_forget(tamis_reducer *r);
/** From the headers of the last bucket: which rank was last, and by how much. */
void tam_skew_straggler(tamis_reducer *r);

/** Whether the transport may still write to its buffers: such memory is never freed. */
static inline bool tam_reducer_buffers_in_flight(const tamis_reducer *r) {
    return !tam_comm_silence(r->comm);
}

/** Whether the host sees when each rank begins an exchange. */
static inline bool tam_reducer_observes(const tamis_reducer *r) {
    return r->driver->by_host && r->traits & TAM_TRAIT_TIMED;
}

/** devices.c: the row of config.device; UNSUPPORTED says why there is none. */
tamis_status tam_device_find(tamis_device device, const tam_device **out);

/** devices.c: the driver for this device, transport and scheme. */
const tam_driver *tam_driver_find(const tamis_reducer *r);
/** Why the host drives the steps on a device. @return "" where it does not */
const char *tam_driver_reason(const tamis_reducer *r);

#endif
