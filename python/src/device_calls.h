/* SPDX-License-Identifier: MIT
 *
 * The functions of kernels/cuda that the rest of the library calls. _cuda.so exports a table of
 * them; in _core functions of the same names pass on what they are called with. CALL(result, name,
 * parameters, arguments) for each; what is missing here does not link.
 */
#ifndef TAM_PYTHON_DEVICE_CALLS_H
#define TAM_PYTHON_DEVICE_CALLS_H

#include "kernels/cuda/cuda.h"

#define TAM_CUDA_CALLS(CALL)                                                                       \
    CALL(tamis_status, tam_cuda_step_open,                                                         \
         (void *device, const tam_cuda_plan *plan, float *acc, tam_cuda_step **out),               \
         (device, plan, acc, out))                                                                 \
    CALL(tamis_status, tam_cuda_step_load,                                                         \
         (tam_cuda_step * step, uint64_t config, const tam_cuda_past *past), (step, config, past)) \
    CALL(tamis_status, tam_cuda_step_save, (tam_cuda_step * step, tam_cuda_past * past),           \
         (step, past))                                                                             \
    CALL(tamis_status, tam_cuda_step_warm_up,                                                      \
         (tam_cuda_step * step, tam_cuda_enqueue enqueue, void *context),                          \
         (step, enqueue, context))                                                                 \
    CALL(tamis_status, tam_cuda_step_capture,                                                      \
         (tam_cuda_step * step, tam_cuda_enqueue enqueue, void *context),                          \
         (step, enqueue, context))                                                                 \
    CALL(tamis_status, tam_cuda_step_resize,                                                       \
         (tam_cuda_step * step, const tam_cuda_capacity *capacity), (step, capacity))              \
    CALL(tamis_status, tam_cuda_step_announce,                                                     \
         (tam_cuda_step * step, void *caller, const tam_header_due *due), (step, caller, due))     \
    CALL(tamis_status, tam_cuda_step_check_announced,                                              \
         (tam_cuda_step * step, const tam_header_due *due), (step, due))                           \
    CALL(tamis_status, tam_cuda_step_run,                                                          \
         (tam_cuda_step * step, const tam_accumulate *target, void *stream,                        \
          tam_cuda_enqueue enqueue, void *context, uint64_t *serial),                              \
         (step, target, stream, enqueue, context, serial))                                         \
    CALL(tamis_status, tam_cuda_step_accumulate,                                                   \
         (tam_cuda_step * step, const tam_accumulate *target, void *stream),                       \
         (step, target, stream))                                                                   \
    CALL(tamis_status, tam_cuda_step_union, (tam_cuda_step * step), (step))                        \
    CALL(tamis_status, tam_cuda_step_add, (tam_cuda_step * step), (step))                          \
    CALL(const tam_cuda_comm_buffers *, tam_cuda_step_buffers, (const tam_cuda_step *step),        \
         (step))                                                                                   \
    CALL(tamis_status, tam_cuda_step_find_capture,                                                 \
         (const tam_cuda_step *first, void *stream, bool *captured), (first, stream, captured))    \
    CALL(bool, tam_cuda_step_halfway, (const tam_cuda_step *first), (first))                       \
    CALL(tamis_status, tam_cuda_step_poll,                                                         \
         (tam_cuda_step * step, uint64_t serial, bool *done, tam_cuda_report *out),                \
         (step, serial, done, out))                                                                \
    CALL(tamis_status, tam_cuda_step_follow, (tam_cuda_step * step, const tam_cuda_step *other),   \
         (step, other))                                                                            \
    CALL(tamis_status, tam_cuda_step_join, (tam_cuda_step * step, void *stream), (step, stream))   \
    CALL(tam_cuda_result, tam_cuda_step_result, (const tam_cuda_step *first), (first))             \
    CALL(tamis_status, tam_cuda_dense_open,                                                        \
         (void *device, const tam_cuda_plan *plan, uint32_t piece, tam_cuda_step **out),           \
         (device, plan, piece, out))                                                               \
    CALL(uint32_t, tam_cuda_dense_pieces, (const tam_cuda_step *step), (step))                     \
    CALL(tam_cuda_comm_buffers, tam_cuda_dense_buffers,                                            \
         (const tam_cuda_step *step, uint32_t piece), (step, piece))                               \
    CALL(tamis_status, tam_cuda_dense_reduce,                                                      \
         (tam_cuda_step * step, tam_cuda_enqueue_comm enqueue_comm, void *context),                \
         (step, enqueue_comm, context))                                                            \
    CALL(tamis_status, tam_cuda_dense_warm_up,                                                     \
         (tam_cuda_step * step, tam_cuda_enqueue_comm enqueue_comm, void *context),                \
         (step, enqueue_comm, context))                                                            \
    CALL(tamis_status, tam_cuda_node_exchange,                                                     \
         (tam_cuda_step * step, tam_cuda_enqueue_comm enqueue_comm, tam_cuda_enqueue inter,        \
          void *context),                                                                          \
         (step, enqueue_comm, inter, context))                                                     \
    CALL(tamis_status, tam_cuda_node_warm_up,                                                      \
         (tam_cuda_step * step, tam_cuda_enqueue_comm enqueue_comm, tam_cuda_enqueue inter,        \
          void *context),                                                                          \
         (step, enqueue_comm, inter, context))                                                     \
    CALL(uint64_t, tam_cuda_node_bytes, (const tam_cuda_step *step), (step))

#define TAM_CUDA_MEMBER(result, name, parameters, arguments) result(*name) parameters;

typedef struct tam_python_cuda {
    size_t size;                 /* sizeof(tam_python_cuda) */
    int version;                 /* TAMIS_VERSION */
    const char *(*reason)(void); /* as tam_cuda_reason */
    const tam_device *row;
    const char *(*tam_cuda_version)(void);
    void (*tam_cuda_step_close)(tam_cuda_step *step);
    TAM_CUDA_CALLS(TAM_CUDA_MEMBER)
} tam_python_cuda;

/* _cuda.so defines TAMIS_API const tam_python_cuda tam_python_cuda_table. */
#define TAM_PYTHON_CUDA_SYMBOL "tam_python_cuda_table"

#endif
