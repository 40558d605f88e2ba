/* SPDX-License-Identifier: MIT
 *
 * The CUDA language for kernels/cuda as plain C++: every CUDA thread is a fiber, blocks run one
 * after another, barriers switch fibers. kernel.cuh includes this in place of the vendor's headers
 * when TAM_CUDA_EMULATED names it; link emulate.cpp. Tests only.
 *
 *     g++ -std=c++17 -ffp-contract=off -x c++ kernel.cu
 *         -DTAM_CUDA_EMULATED='"tests/cuda/emulate.hpp"'
 *
 * Finds: wrong indices and bounds, missing barriers before a broadcast, barriers that some threads
 * miss, results that depend on the order of threads, warps or blocks. Does not find: races that
 * need two threads at the same instant, missing fences, spills, anything about speed.
 *
 * TAMIS_EMULATE_ORDER: forward (the default), reverse, or a number: the seed of a shuffle.
 *
 * __shared__ memory is neither zero nor fresh: it holds what an earlier block left there.
 */
#ifndef TEST_CUDA_EMULATE_HPP
#define TEST_CUDA_EMULATE_HPP

/* Before the vendor's macros, such as __noinline__, can spoil them. */
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <tuple>
#include <type_traits>

#include "kernels/cuda/view.h"
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#undef __shared__
#define __shared__ static thread_local
#undef __launch_bounds__
#define __launch_bounds__(...)

/* ------------------------------------------------------------------------------------------- */
/* The engine, emulate.cpp                                                                      */

extern "C" {
/** @param order  0: forward, -1: reverse, else the seed of a shuffle. For all later launches. */
void emulate_order(int64_t order);

/** Blocks, threads and barriers (of warps and blocks, per thread) that ran so far. */
struct emulate_figures {
    uint64_t blocks, threads, barriers;
};
emulate_figures emulate_count(void);

/** Print and abort: the kernel is wrong. */
[[noreturn]] void emulate_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Run a kernel to its end: body(context) once per thread. */
void emulate_run(const char *text, unsigned blocks, void (*body)(void *), void *context);

/** Run what nvcc made of it instead, if EMULATE_PTX is set (ptx/machine.hpp).
 * @param function   the kernel, which names it
 * @param arguments  pointers to its arguments
 * @return whether it has run */
int emulate_compiled(const void *function, unsigned blocks, const void *const *arguments,
                     int64_t order);
/** What emulate_order or the environment has set. */
int64_t emulate_current_order(void);

/** Wait for the other lanes. @return what the 32 lanes gave; valid until the call after next */
const uint64_t *emulate_sync_warp(const char *what, int line, uint64_t mask, uint64_t mine);
/** Which of the 32 lanes gave a value that was not zero, as bits. */
uint32_t emulate_ballot(const char *what, int line, uint64_t mask, bool mine);

/** Wait for the whole block. The last to come calls once(context).
 * @return in how many threads `mine` was true */
unsigned emulate_sync_block(const char *what, int line, bool mine, void (*once)(void *),
                            void *context);

/** fake.h, where the fake runtime is linked: the kernel joins a stream, or the graph being
 * captured. Without, it runs at once. */
int fake_cuda_enqueue(void *stream, const char *what, void (*run)(void *), void *context,
                      void (*drop)(void *)) __attribute__((weak));

extern __thread uint3 threadIdx, blockIdx, blockDim, gridDim;
}

/* ------------------------------------------------------------------------------------------- */
/* Launch                                                                                       */

template <typename... Parameters> struct emulate_launch {
    const char *text;
    void (*kernel)(Parameters...);
    unsigned blocks;
    std::tuple<std::decay_t<Parameters>...> arguments;

    static void body(void *self) {
        auto *launch = static_cast<emulate_launch *>(self);
        std::apply(launch->kernel, launch->arguments);
    }
    static void run(void *self) {
        auto *launch = static_cast<emulate_launch *>(self);
        auto compiled = [&](auto &...argument) {
            const void *all[] = {&argument...};
            return emulate_compiled(reinterpret_cast<const void *>(launch->kernel), launch->blocks,
                                    all, emulate_current_order());
        };
        if (!std::apply(compiled, launch->arguments))
            emulate_run(launch->text, launch->blocks, body, self);
    }
    static void drop(void *self) {
        delete static_cast<emulate_launch *>(self);
    }
};

template <typename... Parameters, typename... Arguments>
static int emulate_enqueue(const char *text, void (*kernel)(Parameters...), unsigned blocks,
                           void *stream, Arguments... arguments) {
    using launch = emulate_launch<Parameters...>;
    if (blocks == 0)
        return cudaErrorInvalidConfiguration; /* as the vendor */
    auto *self = new launch{text, kernel, blocks, {arguments...}};
    if (fake_cuda_enqueue)
        return fake_cuda_enqueue(stream, "kernel", launch::run, self, launch::drop);
    launch::run(self);
    launch::drop(self);
    return cudaSuccess;
}

/* The text names the kernel in messages. */
#define tam_launch(...) emulate_enqueue(#__VA_ARGS__, __VA_ARGS__)

/* ------------------------------------------------------------------------------------------- */
/* Barriers and warp-wide calls. Default arguments are the caller's line: threads that synchronize
 * must come from the same one. */

inline void __syncthreads(int line = __builtin_LINE()) {
    emulate_sync_block("__syncthreads", line, false, nullptr, nullptr);
}

inline int __syncthreads_count(int mine, int line = __builtin_LINE()) {
    unsigned votes = emulate_sync_block("__syncthreads_count", line, mine != 0, nullptr, nullptr);
    return static_cast<int>(votes);
}

inline void __syncwarp(unsigned mask = 0xffffffffu, int line = __builtin_LINE()) {
    emulate_sync_warp("__syncwarp", line, mask, 0);
}

inline unsigned __ballot_sync(unsigned mask, int mine, int line = __builtin_LINE()) {
    return emulate_ballot("__ballot_sync", line, mask, mine != 0);
}

/* Value of lane `from`; a lane past either end reads its own, as on the device. */
template <typename T>
inline T emulate_shuffle(const char *what, int line, unsigned mask, T mine, unsigned from) {
    static_assert(std::is_arithmetic<T>::value, "shuffles move plain numbers");
    uint64_t word = 0;
    memcpy(&word, &mine, sizeof mine);
    const uint64_t *all = emulate_sync_warp(what, line, mask, word);
    word = all[from < 32 ? from : threadIdx.x % 32];
    memcpy(&mine, &word, sizeof mine);
    return mine;
}

template <typename T>
inline T __shfl_sync(unsigned mask, T mine, int from, int line = __builtin_LINE()) {
    return emulate_shuffle("__shfl_sync", line, mask, mine, static_cast<unsigned>(from) % 32);
}

template <typename T>
inline T __shfl_down_sync(unsigned mask, T mine, unsigned by, int line = __builtin_LINE()) {
    return emulate_shuffle("__shfl_down_sync", line, mask, mine, threadIdx.x % 32 + by);
}

template <typename T>
inline T __shfl_up_sync(unsigned mask, T mine, unsigned by, int line = __builtin_LINE()) {
    return emulate_shuffle("__shfl_up_sync", line, mask, mine, threadIdx.x % 32 - by);
}

template <typename T>
inline T __shfl_xor_sync(unsigned mask, T mine, int with, int line = __builtin_LINE()) {
    unsigned from = threadIdx.x % 32 ^ static_cast<unsigned>(with);
    return emulate_shuffle("__shfl_xor_sync", line, mask, mine, from);
}

/* ------------------------------------------------------------------------------------------- */
/* Atomics: real ones, for streams are threads. The vendor's types alone: uint64_t is another type
 * than unsigned long long and needs a cast there too. None for floats: their order would show. */

#define EMULATE_ATOMICS(T)                                                                         \
    inline T atomicAdd(T *at, T with) {                                                            \
        return __atomic_fetch_add(at, with, __ATOMIC_SEQ_CST);                                     \
    }                                                                                              \
    inline T atomicOr(T *at, T with) {                                                             \
        return __atomic_fetch_or(at, with, __ATOMIC_SEQ_CST);                                      \
    }                                                                                              \
    inline T atomicExch(T *at, T with) {                                                           \
        return __atomic_exchange_n(at, with, __ATOMIC_SEQ_CST);                                    \
    }                                                                                              \
    inline T atomicCAS(T *at, T expected, T with) {                                                \
        __atomic_compare_exchange_n(at, &expected, with, false, __ATOMIC_SEQ_CST,                  \
                                    __ATOMIC_SEQ_CST);                                             \
        return expected;                                                                           \
    }                                                                                              \
    inline T atomicMax(T *at, T with) {                                                            \
        T old = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                             \
        while (old < with && atomicCAS(at, old, with) != old)                                      \
            old = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                           \
        return old;                                                                                \
    }                                                                                              \
    inline T atomicMin(T *at, T with) {                                                            \
        T old = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                             \
        while (with < old && atomicCAS(at, old, with) != old)                                      \
            old = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                           \
        return old;                                                                                \
    }
EMULATE_ATOMICS(int)
EMULATE_ATOMICS(unsigned)
EMULATE_ATOMICS(unsigned long long)
#undef EMULATE_ATOMICS

inline unsigned atomicInc(unsigned *at, unsigned most) {
    unsigned old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    for (unsigned seen; (seen = atomicCAS(at, old, old >= most ? 0 : old + 1)) != old;)
        old = seen;
    return old;
}

/* Every atomic is a fence already, and ThreadSanitizer knows no others. */
inline void __threadfence() {}
inline void __threadfence_system() {}

/* ------------------------------------------------------------------------------------------- */
/* Loads and stores                                                                             */

template <typename T> inline T *emulate_aligned(const char *what, T *at) {
    if (reinterpret_cast<uintptr_t>(at) % sizeof(T))
        emulate_fail("%s of %zu bytes at a misaligned address", what, sizeof(T));
    return at;
}

template <typename T> inline T __ldg(const T *from) {
    return *emulate_aligned("__ldg", from);
}
template <typename T> inline T __ldcs(const T *from) {
    return *emulate_aligned("__ldcs", from);
}
template <typename T> inline void __stcs(T *to, T value) {
    *emulate_aligned("__stcs", to) = value;
}

/* ------------------------------------------------------------------------------------------- */
/* Arithmetic. Needs -ffp-contract=off.                                                          */

inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}

template <typename To, typename From> inline To emulate_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
inline unsigned __float_as_uint(float a) {
    return emulate_bits<unsigned>(a);
}
inline float __uint_as_float(unsigned a) {
    return emulate_bits<float>(a);
}

inline int __popc(unsigned a) {
    return __builtin_popcount(a);
}
inline int __ffs(int a) {
    return __builtin_ffs(a);
}

template <typename A, typename B> constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename A, typename B> constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

/* ------------------------------------------------------------------------------------------- */
/* Block-wide parts of CUB. Memory that is used again without a barrier in between goes wrong here
 * too. Whole numbers only: the order in which CUB adds is its own affair. */

namespace cub {

template <typename T, int threads> class BlockScan {
    static_assert(threads == TAM_BLOCK_THREADS, "one size of blocks");
    static_assert(std::is_integral<T>::value, "the order of additions would show");

  public:
    struct TempStorage {
        T given[threads], before[threads], all;
    };

    explicit BlockScan(TempStorage &memory) : at(memory) {}
    void ExclusiveSum(T mine, T &out, int line = __builtin_LINE()) {
        sync(mine, line);
        out = at.before[threadIdx.x];
    }
    void ExclusiveSum(T mine, T &out, T &aggregate, int line = __builtin_LINE()) {
        ExclusiveSum(mine, out, line);
        aggregate = at.all;
    }
    void InclusiveSum(T mine, T &out, int line = __builtin_LINE()) {
        sync(mine, line);
        out = static_cast<T>(at.before[threadIdx.x] + mine);
    }
    void InclusiveSum(T mine, T &out, T &aggregate, int line = __builtin_LINE()) {
        InclusiveSum(mine, out, line);
        aggregate = at.all;
    }

  private:
    TempStorage &at;

    /* Who uses the memory again before all have read their results spoils one of them. */
    void sync(T mine, int line) {
        at.before[threadIdx.x ^ 1] = static_cast<T>(0xABABABABu);
        at.given[threadIdx.x] = mine;
        emulate_sync_block("cub::BlockScan", line, false, scan, &at);
    }
    static void scan(void *memory) {
        auto *all = static_cast<TempStorage *>(memory);
        all->all = 0;
        for (int i = 0; i < threads; i++) {
            all->before[i] = all->all;
            all->all = static_cast<T>(all->all + all->given[i]);
        }
    }
};

/** The result is thread 0's; others get nonsense, as on the device. */
template <typename T, int threads> class BlockReduce {
    static_assert(threads == TAM_BLOCK_THREADS, "one size of blocks");
    static_assert(std::is_trivially_copyable<T>::value && !std::is_floating_point<T>::value,
                  "the order of additions would show");

  public:
    struct TempStorage {
        T given[threads];
    };

    explicit BlockReduce(TempStorage &memory) : at(memory) {}
    T Sum(T mine, int line = __builtin_LINE()) {
        return Reduce(
            mine, [](T a, T b) { return static_cast<T>(a + b); }, line);
    }
    template <typename Join> T Reduce(T mine, Join join, int line = __builtin_LINE()) {
        at.given[threadIdx.x] = mine;
        emulate_sync_block("cub::BlockReduce", line, false, nullptr, nullptr);
        T sum = at.given[0];
        if (threadIdx.x > 0) {
            memset(static_cast<void *>(&sum), 0xAB, sizeof sum);
            return sum;
        }
        for (int i = 1; i < threads; i++)
            sum = join(sum, at.given[i]);
        return sum;
    }

  private:
    TempStorage &at;
};

} // namespace cub

#endif
