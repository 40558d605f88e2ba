/* SPDX-License-Identifier: MIT
 *
 * tamis._core: libtamis for Python, on CPython's limited API of 3.9. One file per kind of object.
 *
 * Rules of the files here
 *
 * GIL          Released around every library call that may block or take long. Counters of calls in
 *              progress change only with the GIL held, so a call at the wrong time (close while
 *              another thread waits) is refused and does not crash.
 * Exceptions   A function that returns NULL or false has raised one. tam_py_raise raises a library
 *              status, on the thread that got it and before any other Python code runs, for the
 *              library keeps its message per thread.
 * Interpreter  One per process: callbacks take the GIL by PyGILState_Ensure, which knows only the
 *              main one. Builds without a GIL load no abi3 module, so there is nothing to declare
 *              for them (Py_mod_gil is not part of 3.9's limited API).
 */
#ifndef TAM_PYTHON_CORE_H
#define TAM_PYTHON_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <tamis/energy.h>
#include <tamis/stats.h>

/** A function as the value of a slot. ISO C has no such cast, and POSIX needs it (dlsym). */
#define TAM_PY_SLOT(function) ((void *)(uintptr_t)(function))

/* -- error.c ---------------------------------------------------------------------------------- */

/** Raise tamis.Error with the message of tamis_last_error. @return NULL */
PyObject *tam_py_raise(tamis_status status);

/** Raise tamis.Error with our own message and remedy; remedy NULL: the status' own. An exception
 * that is set becomes its cause. @return NULL */
PyObject *tam_py_raise_own(tamis_status status, const char *remedy, const char *format, ...);

/** A callback of this thread has raised: the next tam_py_raise here makes it the cause. */
void tam_py_cause_keep(void);

/** Clear the frames in the traceback of the kept exception, and so release their variables. */
void tam_py_cause_clear_frames(void);

/** Drop the kept exception: it will not be raised. */
void tam_py_cause_drop(void);

bool tam_py_error_open(PyObject *module);

/* -- module.c --------------------------------------------------------------------------------- */

/** Make a type, once per process, and put it into the module. */
bool tam_py_type_open(PyObject *module, const char *name, PyType_Spec *spec, PyTypeObject **type);

/* -- options.c -------------------------------------------------------------------------------- */

/** Names of a library enum in the order of its numbers; ends with NULL. */
typedef const char *const tam_py_words[];

/** @param what  [in]  name of the option, for the message */
bool tam_py_as_word(PyObject *value, const char *what, const char *const *words, int *out);
bool tam_py_as_u32(PyObject *value, const char *what, uint32_t *out);
bool tam_py_as_u64(PyObject *value, const char *what, uint64_t *out);
bool tam_py_as_real(PyObject *value, const char *what, double *out);

/** UTF-8 of a str without NUL inside. Lives as long as `*out_owner`, a new reference. */
bool tam_py_as_text(PyObject *value, const char *what, PyObject **out_owner, const char **out);

/** The keywords of Reducer() as read. */
typedef struct tam_py_options {
    tamis_reducer_config config; /* points to the other two */
    tamis_update update;
    PyObject *owner; /* keeps texts alive; NULL or a new reference */
    PyObject *meter; /* NULL, or borrowed from the keywords */
} tam_py_options;

/** Read names and ranges from the library, when the module is loaded. */
bool tam_py_options_open(void);
bool tam_py_options_read(PyObject *keywords, tam_py_options *out);

/* -- tensor.c --------------------------------------------------------------------------------- */

/** What a tensor must be. */
typedef struct tam_py_want {
    const char *what; /* "the gradient of fc1.weight" */
    tamis_dtype type;
    tamis_device device;
    bool writable;
    uint64_t length; /* elements */
} tam_py_want;

/** Borrow a tensor by DLPack, without a copy. `*out_capsule`, a new reference, keeps its memory. */
bool tam_py_tensor_borrow(PyObject *tensor, const tam_py_want *want, PyObject **out_capsule,
                          void **out_data);

/** A tuple of new references, which it takes over. NULL: an exception is set, and they are gone. */
PyObject *tam_py_tuple_take(PyObject **items, Py_ssize_t count);

/** Borrow a tensor of any type and length, in host memory, for reading. */
bool tam_py_tensor_bytes(PyObject *tensor, const char *what, PyObject **out_capsule,
                         const void **out_data, size_t *out_bytes);

/* -- equal.c ---------------------------------------------------------------------------------- */

/** tamis.check_equal. */
PyObject *tam_py_check_equal(PyObject *module, PyObject *args, PyObject *keywords);
PyObject *tam_py_digest(PyObject *module, PyObject *data);

/** Borrow bytes, or a tensor in host memory.
 * @param  out_keeper  [out]  a new reference that keeps them alive */
bool tam_py_bytes_borrow(PyObject *data, PyObject **out_keeper, const void **out,
                         size_t *out_bytes);

/* -- comm.c ----------------------------------------------------------------------------------- */

typedef struct tam_py_comm {
    PyObject_HEAD PyObject *weak;
    tamis_comm *handle;    /* NULL: closed */
    PyObject *allgather;   /* callback only */
    const char *transport; /* the library's, static */
    uint32_t rank, nranks;
    tamis_status last;  /* status when it was closed */
    const char *inside; /* name of the call in progress, or NULL */
    unsigned aborting;  /* calls of abort in progress */
    unsigned reducers;  /* not yet closed */
    bool mpi;
} tam_py_comm;

extern PyTypeObject *tam_py_comm_type;

/** The all-gather of Comm.callback; `context` is the Comm. In callback.c. */
tamis_status tam_py_callback(void *context, const void *send, void *recv, size_t bytes);

/** A call that uses the communicator begins and ends. Only one at a time. */
bool tam_py_comm_enter(tam_py_comm *self, const char *call);
void tam_py_comm_leave(tam_py_comm *self);

/** Whether it is lost and a transport thread may still write to memory lent to a step (mpi.h). */
bool tam_py_comm_buffers_in_flight(const tam_py_comm *self);

/** Wrap a handle, which is destroyed on failure. */
tam_py_comm *tam_py_comm_wrap(tamis_comm *handle);

/** A Comm without a handle yet; `allgather` NULL: none. In its destructor nothing is destroyed. */
tam_py_comm *tam_py_comm_alloc(PyObject *allgather);
void tam_py_comm_adopt(tam_py_comm *self, tamis_comm *handle);

bool tam_py_comm_type_open(PyObject *module);

/** Raise that there is no UCX. @return NULL */
PyObject *tam_py_no_ucx(const char *call);

/* -- bytes.c ---------------------------------------------------------------------------------- */

PyObject *tam_py_comm_allgather(PyObject *comm, PyObject *data);
PyObject *tam_py_comm_broadcast(PyObject *comm, PyObject *args, PyObject *keywords);

/* -- grow.c ----------------------------------------------------------------------------------- */

PyObject *tam_py_comm_grow(PyObject *comm, PyObject *args, PyObject *keywords);
PyObject *tam_py_comm_join_ucx(PyObject *none, PyObject *args, PyObject *keywords);

/* -- shrink.c --------------------------------------------------------------------------------- */

PyObject *tam_py_comm_shrink(PyObject *comm, PyObject *args, PyObject *keywords);
PyObject *tam_py_comm_rank_before(PyObject *comm, PyObject *rank);

/* -- loader.c --------------------------------------------------------------------------------- */

PyObject *tam_py_loader_mpi(PyObject *type, PyObject *args, PyObject *keywords);
PyObject *tam_py_loader_nccl(PyObject *type, PyObject *args, PyObject *keywords);
PyObject *tam_py_loader_mpi_state(PyObject *module, PyObject *none);
PyObject *tam_py_loader_mpi_finalize(PyObject *module, PyObject *none);

/** Record that a communicator over MPI has been made by another way than tam_py_loader_mpi. */
void tam_py_loader_mpi_opened(void);

/** Record that a communicator over MPI has been destroyed. */
void tam_py_loader_mpi_closed(tamis_status last);

/* -- meter.c ---------------------------------------------------------------------------------- */

typedef struct tam_py_meter {
    PyObject_HEAD tamis_energy *handle; /* NULL: closed */
    unsigned reducers;                  /* not yet closed; their phases go to the handle */
    bool reporting;                     /* report is in progress, without the GIL */
} tam_py_meter;

extern PyTypeObject *tam_py_meter_type;
bool tam_py_meter_type_open(PyObject *module);

/** Whether a call may use the handle; the GIL is then held until it returns. */
bool tam_py_meter_enter(tam_py_meter *self, const char *call);
PyObject *tam_py_totals_as_dict(const tamis_energy_totals *totals);

/* -- windows.c -------------------------------------------------------------------------------- */

PyObject *tam_py_window_begin(PyObject *meter, PyObject *name);
PyObject *tam_py_window_end(PyObject *meter, PyObject *window);
PyObject *tam_py_window_result(PyObject *meter, PyObject *window);
PyObject *tam_py_window_drop(PyObject *meter, PyObject *window);

/* -- governor.c ------------------------------------------------------------------------------- */

bool tam_py_governor_type_open(PyObject *module);

/* -- layout.c --------------------------------------------------------------------------------- */

typedef struct tam_py_layout {
    PyObject_HEAD tamis_layout *handle;
    PyObject *names, *lengths; /* tuples */
    uint64_t *sizes;           /* [count] elements */
    uint32_t count;
} tam_py_layout;

extern PyTypeObject *tam_py_layout_type;
bool tam_py_layout_type_open(PyObject *module);

/* -- plan.c ----------------------------------------------------------------------------------- */

typedef struct tam_py_plan {
    PyObject_HEAD PyObject *capsules; /* tuple: they keep the memory of the tensors */
    PyObject *segments;               /* tuple */
    uint64_t owner;                   /* serial of the reducer that it was made for */
    uint32_t count;
    uint32_t *index; /* [count] */
    void **data;     /* [count] */
    void **befores;  /* [count] parameters before a step; NULL: the plan has gradients */
} tam_py_plan;

extern PyTypeObject *tam_py_plan_type;

/** Reducer.plan. */
PyObject *tam_py_plan_make(PyObject *reducer, PyObject *args, PyObject *keywords);

bool tam_py_plan_type_open(PyObject *module);

/* -- reducer.c, step.c, state.c, moments.c, migrate.c ----------------------------------------- */

/** What a call does, and so which calls may run at the same time. */
typedef enum tam_py_call {
    TAM_PY_LOOK,  /* alone in the reducer */
    TAM_PY_STEP,  /* alone in the reducer and in its communicator */
    TAM_PY_WAIT,  /* the same, except for ready */
    TAM_PY_READY, /* alone, except for wait */
} tam_py_call;

typedef struct tam_py_reducer {
    PyObject_HEAD PyObject *weak;
    tamis_reducer *handle; /* NULL: closed */
    tam_py_comm *comm;
    tam_py_layout *layout;
    tam_py_meter *meter; /* NULL: none */
    tamis_device device;
    tamis_dtype type;
    tamis_op op;
    bool writes;  /* dense output: gradients must be writable */
    bool updates; /* update mode, by `update` */
    tamis_update update;
    double density, residual_decay;
    uint64_t residual_length; /* elements; for scheme dense, without residual, the layout's */
    uint64_t serial;          /* number of this object in the process */
    const char *inside;       /* name of the call in progress, other than ready, or NULL */
    bool waiting;             /* that call is wait */
    bool readying;            /* ready is in progress */
    void **grads;             /* [segments] of the step under way */
    const float **befores;    /* [segments] the same, of plans that have them; */
    float *rates;             /* [segments] and what ready was given beside them */
    bool *marked;             /* [segments] ready in this step */
    PyObject **held;          /* [segments + 1] keep the tensors of this step alive */
    uint32_t nheld;
    PyObject *before; /* the same for the step before, see step.c */
    unsigned locals;  /* Local objects above it that are not closed */
    bool migrated;    /* another has taken its state over */
} tam_py_reducer;

extern PyTypeObject *tam_py_reducer_type;

/** Begin a call, unless those in progress forbid it; end it. */
bool tam_py_reducer_enter(tam_py_reducer *self, tam_py_call kind, const char *call);
void tam_py_reducer_leave(tam_py_reducer *self, tam_py_call kind);

/** None, or the exception of a status. */
PyObject *tam_py_reducer_answer(tamis_status status);

/** Release what the step was lent. */
void tam_py_reducer_release(tam_py_reducer *self);

/** Borrow the gradient of a segment. */
bool tam_py_gradient_borrow(const tam_py_reducer *self, PyObject *tensor, uint32_t segment,
                            PyObject **out_capsule, void **out_data);

/** Borrow what a segment was before a step. */
bool tam_py_before_borrow(const tam_py_reducer *self, PyObject *tensor, uint32_t segment,
                          PyObject **out_capsule, void **out_data);

/** A reducer like another one, of a handle that is made later, with tensors of its own; the meter
 * is the same. Counts as a user of `comm` and of the meter from tam_py_reducer_adopt on. */
tam_py_reducer *tam_py_reducer_like(const tam_py_reducer *other, tam_py_comm *comm);
void tam_py_reducer_adopt(tam_py_reducer *self, tamis_reducer *handle);

PyObject *tam_py_reducer_migrate(PyObject *reducer, PyObject *comm);

PyObject *tam_py_step_start(PyObject *reducer, PyObject *args, PyObject *keywords);
PyObject *tam_py_step_ready(PyObject *reducer, PyObject *args, PyObject *keywords);
PyObject *tam_py_step_accumulate(PyObject *reducer, PyObject *args, PyObject *keywords);
PyObject *tam_py_step_test(PyObject *reducer, PyObject *none);
PyObject *tam_py_step_wait(PyObject *reducer, PyObject *none);
PyObject *tam_py_step_join(PyObject *reducer, PyObject *args, PyObject *keywords);
PyObject *tam_py_step_outcome(PyObject *object, PyObject *args, PyObject *keywords);

/** What a tensor for one of the vectors of the state must be. */
tam_py_want tam_py_state_wanted(const tam_py_reducer *self, const char *what, bool writable);

PyObject *tam_py_state_result(PyObject *reducer, PyObject *none);
PyObject *tam_py_state_residual(PyObject *reducer, PyObject *out);
PyObject *tam_py_state_control(PyObject *reducer, PyObject *none);
PyObject *tam_py_state_restore(PyObject *reducer, PyObject *args, PyObject *keywords);
PyObject *tam_py_state_save(PyObject *reducer, PyObject *path);
PyObject *tam_py_state_load(PyObject *reducer, PyObject *path);
PyObject *tam_py_state_resync(PyObject *reducer, PyObject *none);
PyObject *tam_py_state_set_density(PyObject *reducer, PyObject *value);
PyObject *tam_py_state_stats(PyObject *reducer, PyObject *none);

/** Read figures in the form of stats(); missing ones are 0. */
bool tam_py_stats_read(PyObject *dict, tamis_stats *out);

PyObject *tam_py_state_buckets(PyObject *reducer, PyObject *none);

PyObject *tam_py_moments_save(PyObject *reducer, PyObject *args, PyObject *keywords);
PyObject *tam_py_moments_restore(PyObject *reducer, PyObject *args, PyObject *keywords);
PyObject *tam_py_moments_update(PyObject *reducer, void *none);

bool tam_py_reducer_type_open(PyObject *module);

/* -- local.c ---------------------------------------------------------------------------------- */

PyObject *tam_py_local_presets(PyObject *module, PyObject *none);

bool tam_py_local_type_open(PyObject *module);

#endif
