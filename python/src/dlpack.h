/* SPDX-License-Identifier: MIT
 *
 * The records of DLPack, as published (dmlc/dlpack, dlpack.h), in our own words. There are two: the
 * one from before version 1, in capsules named "dltensor", and the one that carries its version, in
 * capsules named "dltensor_versioned". Their layout is an ABI and does not change within a major
 * version.
 */
#ifndef TAM_PYTHON_DLPACK_H
#define TAM_PYTHON_DLPACK_H

#include <stddef.h>
#include <stdint.h>

enum { DLPACK_MAJOR = 1 };

enum { /* device types */
       DLPACK_CPU = 1,
       DLPACK_CUDA = 2,
       DLPACK_CUDA_HOST = 3,    /* pinned memory */
       DLPACK_CUDA_MANAGED = 13 /* host and device may use it */
};

enum { /* codes of element types */
       DLPACK_INT = 0,
       DLPACK_UINT = 1,
       DLPACK_FLOAT = 2,
       DLPACK_BFLOAT = 4,
       DLPACK_COMPLEX = 5,
       DLPACK_BOOL = 6
};

enum { /* flags */
       DLPACK_READ_ONLY = 1,
       DLPACK_COPIED = 2
};

typedef struct dlpack_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape;   /* [ndim] */
    int64_t *strides; /* [ndim] in elements; NULL: compact, the last axis fastest */
    uint64_t byte_offset;
} dlpack_tensor;

typedef struct dlpack_legacy {
    dlpack_tensor tensor;
    void *context;
    void (*deleter)(struct dlpack_legacy *self);
} dlpack_legacy;

typedef struct dlpack_versioned {
    uint32_t major, minor; /* check them before reading anything else */
    void *context;
    void (*deleter)(struct dlpack_versioned *self);
    uint64_t flags;
    dlpack_tensor tensor;
} dlpack_versioned;

_Static_assert(sizeof(void *) != 8 ||
                   (sizeof(dlpack_tensor) == 48 && offsetof(dlpack_tensor, ndim) == 16 &&
                    offsetof(dlpack_tensor, code) == 20 && offsetof(dlpack_tensor, shape) == 24 &&
                    offsetof(dlpack_tensor, byte_offset) == 40),
               "DLTensor");
_Static_assert(sizeof(void *) != 8 ||
                   (sizeof(dlpack_legacy) == 64 && offsetof(dlpack_legacy, deleter) == 56),
               "DLManagedTensor");
_Static_assert(sizeof(void *) != 8 ||
                   (sizeof(dlpack_versioned) == 80 && offsetof(dlpack_versioned, flags) == 24 &&
                    offsetof(dlpack_versioned, tensor) == 32),
               "DLManagedTensorVersioned");

#endif
