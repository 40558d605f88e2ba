/* SPDX-License-Identifier: MIT
 *
 * A reducer from inside: policies, kernels, exchange and transport meet here and nowhere else.
 */
#ifndef TAM_REDUCER_REDUCER_H
#define TAM_REDUCER_REDUCER_H

#include "collectives/exchange/slot.h"
#include "collectives/transport/comm.h"
#include "lib/policy/control.h"
#include "lib/policy/grid.h"

/** What all ranks must have in common; names in agree.c. */
typedef enum tam_field {
    TAM_FIELD_VERSION,
    TAM_FIELD_LENGTH,
    TAM_FIELD_NSEGMENTS,
    TAM_FIELD_SEGMENTS,
    TAM_FIELD_SCHEME,
    TAM_FIELD_DENSITY,
    TAM_FIELD_OUTPUT,
    TAM_FIELD_AVERAGE,
    TAM_FIELD_NONFINITE,
    TAM_FIELD_BLOCK,
    TAM_FIELD_OVER,
    TAM_FIELD_CAPACITY,
    TAM_FIELD_THRESHOLD,
    TAM_FIELDS_OF_STATE, /* a state does not depend on what follows */
    TAM_FIELD_DEVICE = TAM_FIELDS_OF_STATE,
    TAM_FIELD_GRAD_TYPE,
    TAM_FIELD_GRAPHS,
    TAM_FIELDS
} tam_field;

enum { TAM_DENSE_PIECE = 1 << 20 }; /* elements that scheme dense moves at a time */

typedef struct tam_agreement {
    uint64_t status; /* of this rank, so far */
    uint64_t fields[TAM_FIELDS];
} tam_agreement;

/** DEFT's plan of the step, made by one rank and sent to all. */
typedef struct tam_packing {
    uint32_t *budgets; /* [ngroups] of this rank, from its own norms */
    uint32_t *parts;   /* [ngroups] as this rank would pack */
    uint32_t *all;     /* [nranks * ngroups] as every rank would; the delegate's counts */
    double *loads;     /* [nranks] scratch */
} tam_packing;

typedef struct tam_flights tam_flights; /* stream.c */

/** Who drives the steps: the host, phase by phase, or the device by itself. */
typedef struct tam_driver {
    const char *name;
    tamis_status (*open)(tamis_reducer *r); /* what it needs beside residual and kernels */
    tamis_status (*arm)(tamis_reducer *r);  /* collective: all ranks have opened */
    void (*close)(tamis_reducer *r);        /* what open took, also if it failed half way */

    /** r->target is set and checked. @param stream  of the caller */
    tamis_status (*start)(tamis_reducer *r, void *stream);
    /** Ends the step that was started. A status that does not lose the comm moves on r->step. */
    tamis_status (*wait)(tamis_reducer *r);
    tamis_status (*join)(tamis_reducer *r, void *stream);

    /** Take note of joined steps that have ended; never waits. */
    void (*look)(tamis_reducer *r);
    /** Let joined steps end; bring control, step number and hash to the host, and back. */
    tamis_status (*settle)(tamis_reducer *r);
    tamis_status (*reload)(tamis_reducer *r);
    void (*result)(const tamis_reducer *r, tamis_result *out);
} tam_driver;

extern const tam_driver tam_driver_host;   /* host.c */
extern const tam_driver tam_driver_stream; /* stream.c, with CUDA */

struct tamis_reducer {
    tam_job job; /* first: the exchange of the step under way */
    tamis_comm *comm;
    tamis_layout *layout;
    tamis_reducer_config config; /* defaults resolved */
    tam_scheme scheme;
    tam_agreement agreement;
    uint64_t config_hash, k;

    const tam_device *device;
    void *kernels;
    tam_division division;
    tam_control control;
    float *acc;    /* residual between steps */
    void *staging; /* dense: float[TAM_DENSE_PIECE] and as much raw; NULL: works in place */
    const tam_driver *driver;
    tam_flights *flights; /* driver stream */

    tam_slots slots;
    uint32_t *owners;  /* [nranks] rank of each part at this step */
    size_t *cursors;   /* [nranks] */
    uint32_t *indices; /* [union_max] */
    uint32_t *scratch; /* [union_max], ownership `all` only */
    float *values;     /* [union_max] */
    size_t union_max;
    double *cuts;           /* [nranks] */
    double *group_means;    /* [ngroups] */
    uint32_t *group_picked; /* [ngroups] */
    tam_packing packing;
    tam_pair *overlaps; /* [nsegments] scratch of the check of step.grads */

    bool started, abandoned, has_result;
    uint64_t step;
    uint64_t last_result; /* hash of the values of the last step */
    tam_accumulate target;
    tam_accumulated accumulated;
    double picked_sum; /* of acc squared over what leaves the residual */
    size_t count;      /* of the result */
    tamis_stats now;   /* of the step under way */
    tamis_stats stats; /* of the last finished step */
};

/** agree.c: all ranks compare; the first difference is said on all. */
tamis_status tam_agree(tamis_comm *comm, const tam_agreement *mine, uint64_t deadline_ns);
uint64_t tam_agreement_hash(const tam_agreement *agreement);
/** First field in which two agreements differ, as words: "density (0.01 here, 0.1 there)".
 * @return false if there is none */
bool tam_agreement_differs(const tam_agreement *a, const tam_agreement *b, char *text, size_t size);

/** exchange.c: the job of a step, from the accumulated gradient to the result. */
tamis_status tam_step_sparse(tam_job *job, tam_link *link);
tamis_status tam_step_dense(tam_job *job, tam_link *link);

/** Whether the transport may still write to what it was given: such memory is never freed. */
static inline bool tam_reducer_lingers(const tamis_reducer *r) {
    return r->comm->transport->capabilities & TAM_CAP_LINGERS &&
           tamis_comm_status(r->comm) != TAMIS_OK;
}

/** devices.c: the row of config.device; UNSUPPORTED says why there is none. */
tamis_status tam_device_find(tamis_device device, const tam_device **out);

/** devices.c: the driver for this device, transport and scheme. */
const tam_driver *tam_driver_find(const tamis_reducer *r);

#endif
