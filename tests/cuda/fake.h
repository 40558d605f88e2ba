/* SPDX-License-Identifier: MIT
 *
 * What tests ask of the fake CUDA runtime and the fake NCCL. Both stand in for the vendor's
 * libraries where there is no GPU: they run the host path, not kernels on a GPU.
 *
 * A stream is a thread that works off a queue, so nothing is complete when a call returns. Device
 * memory is host memory, known to a registry and filled with 0xAB. Kernels come through tam_launch
 * of emulate.hpp. Faithful where code may be wrong: capture and its prohibitions, events across
 * streams, errors that stick, pageable copies and frees that block. Not there: the legacy stream
 * waits for nobody, memory pools, peer access, managed memory that moves.
 *
 * FAKE_CUDA_DEVICES    devices, 8                    FAKE_CUDA_DELAY_US   longest delay of an
 * FAKE_CUDA_SMS        multiprocessors of each, 2                         operation, 20
 *
 * Never to be linked into the library.
 */
#ifndef TEST_CUDA_FAKE_H
#define TEST_CUDA_FAKE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* -- counting --------------------------------------------------------------------------------- */

/** Calls of one function since the last reset, also of NCCL: "cudaMalloc", "ncclAllGather",
 * "kernel"; NULL: all. */
uint64_t fake_cuda_calls(const char *function);

/** Operations that streams have run since the last reset, those of a graph at each of its launches:
 * "kernel", "nccl", "memcpy", "memset". */
uint64_t fake_cuda_runs(const char *kind);

/** Calls that wait for the device, or may: synchronize, memcpy and memset without Async, copies of
 * pageable memory, malloc and free of every kind. */
uint64_t fake_cuda_blocking_calls(void);

/** Calls that no step may make: those that wait, take memory or make a graph. */
uint64_t fake_cuda_forbidden_calls(void);

/** Calls that took memory, device or pinned. */
uint64_t fake_cuda_allocations(void);

/** Bytes of pinned memory that exist. */
size_t fake_cuda_pinned(void);

/** What exists now. All 0: nothing leaked. */
typedef struct fake_cuda_objects {
    unsigned allocations, streams, events, graphs, comms;
} fake_cuda_objects;
fake_cuda_objects fake_cuda_alive(void);

/* -- trouble ---------------------------------------------------------------------------------- */

/** The nth call from now (1: the next) of a function on any thread returns this cudaError_t or
 * ncclResult_t and does nothing. Errors that stick in CUDA also break the device. */
void fake_cuda_fail(const char *function, unsigned nth, int error);

/** The nth operation that any stream begins from now breaks its device, as a kernel that faults:
 * nothing runs there any more and every call returns the error. */
void fake_cuda_fault(unsigned nth, int error);

/** Breaks a device now. */
void fake_cuda_break(int device, int error);

/** Devices that exist; 0: cudaErrorNoDevice. */
void fake_cuda_devices(int count);

/** Bytes that a device has. */
void fake_cuda_memory(size_t bytes);

void fake_cuda_multiprocessors(int count);

/** A device that is not connected to others by NVLink, as all are. */
void fake_cuda_without_nvlink(int device);

/** One operation in four begins after a random time up to this. */
void fake_cuda_delay_us(unsigned us);

/** 1: no operation begins; 0: they go on. */
void fake_cuda_hold(int on);

/** ncclCommAbort and ncclCommRevoke do not return while on. */
void fake_nccl_hang_abort(int on);

/** The next all-gather of two ranks or more flips a bit, number `bit` modulo the size, of what rank
 * `to` gets from rank `from`; -1: of what all get from it. */
void fake_nccl_flip(int from, int to, size_t bit);

/** The nth message (1: the next) that rank `from` sends to rank `to` has that bit flipped. */
void fake_nccl_flip_message(unsigned nth, int from, int to, size_t bit);

/** Whether the message has been sent. */
int fake_nccl_flipped(void);

/** What ncclGetVersion says. */
void fake_nccl_version(int version);

/** Counters to 0, trouble and limits gone. What exists stays. */
void fake_cuda_reset(void);

/* -- for the fakes and the emulation ---------------------------------------------------------- */

/** An operation for a stream: run(context) on its thread, or at every launch of the graph that is
 * being captured there; drop(context), which may be NULL, when it will not run again.
 * @param what  counted as a call; must live for ever  @return a cudaError_t */
int fake_cuda_enqueue(void *stream, const char *what, void (*run)(void *), void *context,
                      void (*drop)(void *));

/** Counts a call. @return the error that it must give, else 0 */
int fake_cuda_enter(const char *function);

/** Whether a run of memory is known and of one allocation. */
int fake_cuda_owns(const void *memory, size_t bytes);

/** The allocation that holds an address. @return 0: none does */
int fake_cuda_extent(const void *memory, uintptr_t *begin, size_t *bytes);

/** Communicators that exist. */
unsigned fake_nccl_comms(void);

/** Whether operations on this device have stopped for ever. */
int fake_cuda_is_broken(int device);

#ifdef __cplusplus
}
#endif

#endif
