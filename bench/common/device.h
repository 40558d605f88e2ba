/* SPDX-License-Identifier: MIT
 *
 * Where gradients lie and kernels run: host memory, or a CUDA device. No other part of bench calls
 * the CUDA runtime. If one of its calls fails, the program ends with a message.
 */
#ifndef TAMIS_BENCH_DEVICE_H
#define TAMIS_BENCH_DEVICE_H

#include <stdint.h>
#include <tamis/tamis.h>

#include "bench/common/group.h"

#define BENCH_DEVICES "cpu|cuda" /* in the order of tamis_device */

/** Refuse a device or transport that cannot run here (status 2), with the library's reason. */
void bench_device_check(int device, int transport);

/** Choose this rank's device: ranks of one machine take its devices round robin. */
void bench_device_use(bench_group *group, tamis_device device);

/** The device in use, "NVIDIA H200"; "cpu". Valid until the next call on this thread. */
const char *bench_device_name(tamis_device device);

/** Zeroed memory. Ends the program when there is none. */
void *bench_device_alloc(tamis_device device, size_t bytes);
void bench_device_free(tamis_device device, void *memory);

/** Host to device, device to host, device to device; complete on return. */
void bench_device_write(tamis_device device, const void *host, size_t bytes, void *memory);
void bench_device_read(tamis_device device, const void *memory, size_t bytes, void *host);
void bench_device_copy(tamis_device device, const void *from, size_t bytes, void *to);

/* -- measurements on a CUDA device; never called for a CPU ------------------------------------ */

/** Bytes read and written per second, in 1e9, by copies of 1 GiB (less if memory is short): the
 * median of 20. */
double bench_device_copy_gb_s(void);

/** What `body` enqueues on `stream`, captured once as a graph. */
typedef struct bench_replay bench_replay;
typedef void (*bench_enqueue)(void *context, void *stream);

/** @param direct  enqueue each time anew instead of replaying a graph */
bench_replay *bench_replay_open(bench_enqueue body, void *context, bool direct);
void bench_replay_close(bench_replay *replay);

/** Seconds that one round takes on the device, by events. */
double bench_replay_time(bench_replay *replay);

/** CUDA runtime calls of this process. Counted only if the library of bench/lab/gpu/syncs.c is
 * preloaded. */
typedef struct bench_calls {
    bool known;
    uint64_t blocking, queries; /* queries: a host that polls them waits without blocking */
} bench_calls;

/** Run one round and measure only its enqueueing: the host's time and calls. */
void bench_replay_watch(bench_replay *replay, double *host_s, bench_calls *out);

/** Enqueue a copy between device buffers, for use in a round. */
void bench_device_enqueue_copy(const void *from, size_t bytes, void *to, void *stream);

#endif
