/* SPDX-License-Identifier: MIT
 *
 * Kernels on the CPU: the emulation itself. Kernels that are right give their results in every
 * order; kernels with a planted fault are found out, by their message or by their results.
 */
#include "kernels/cuda/kernel.cuh"
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
/* cmocka.h wants the headers above it, and is C */
extern "C" {
#include <cmocka.h>
}

enum { BLOCKS = 5, N = BLOCKS * TAM_BLOCK_THREADS };

static const int64_t orders[] = {0, -1, 1, 2, 3};

struct table {
    uint32_t out[N];
    unsigned long long sum;
    uint32_t ticket, last;
};

/* -- right ------------------------------------------------------------------------------------ */

/* Every warp-wide call, the block-wide ones, and the last block that does the rest. */
static __global__ void right(table *t) {
    using scan = cub::BlockScan<uint32_t, TAM_BLOCK_THREADS>;
    using reduce = cub::BlockReduce<uint32_t, TAM_BLOCK_THREADS>;
    __shared__ scan::TempStorage scan_memory;
    __shared__ reduce::TempStorage reduce_memory;
    __shared__ uint32_t base, last;
    uint32_t lane = threadIdx.x % 32, before, all, sum = threadIdx.x;
    if (threadIdx.x == 0)
        base = blockIdx.x * 1000;
    scan(scan_memory).ExclusiveSum(threadIdx.x, before, all); /* a barrier too */
    for (unsigned d = 16; d > 0; d /= 2)
        sum += __shfl_down_sync(TAM_WARP, sum, d);
    sum = __shfl_sync(TAM_WARP, sum, 0);
    sum += __shfl_xor_sync(TAM_WARP, lane, 1) + __shfl_up_sync(TAM_WARP, lane, 1u);
    for (uint32_t i = 0; i < threadIdx.x / 32; i++) /* warps differ in their number of calls */
        sum += static_cast<uint32_t>(__popc(__ballot_sync(TAM_WARP, lane < 3)));
    uint32_t total = reduce(reduce_memory).Sum(1);
    t->out[blockIdx.x * TAM_BLOCK_THREADS + threadIdx.x] = base + before + sum;
    __threadfence();
    if (threadIdx.x == 0) {
        atomicAdd(&t->sum, static_cast<unsigned long long>(total + all));
        last = atomicAdd(&t->ticket, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0)
        t->last++;
}

static uint32_t expected(uint32_t block, uint32_t i) {
    uint32_t warp = i / 32, lane = i % 32;
    uint32_t sum = 32 * (32 * warp) + 496 + (lane ^ 1) + (lane ? lane - 1 : 0) + 3 * warp;
    return block * 1000 + i * (i - 1) / 2 + sum;
}

static void test_a_kernel_that_is_right_is_so_in_every_order(void **) {
    for (int64_t order : orders) {
        static table t;
        t = table();
        emulate_order(order);
        assert_int_equal(tam_launch(right, BLOCKS, nullptr, &t), cudaSuccess);
        for (uint32_t i = 0; i < N; i++)
            assert_int_equal(t.out[i], expected(i / TAM_BLOCK_THREADS, i % TAM_BLOCK_THREADS));
        assert_int_equal(t.sum, BLOCKS * (256 + 255 * 128));
        assert_int_equal(t.last, 1);
    }
    assert_int_equal(tam_launch(right, 0, nullptr, static_cast<table *>(nullptr)),
                     cudaErrorInvalidConfiguration);
}

/* -- wrong results ---------------------------------------------------------------------------- */

static __global__ void without_barrier(table *t) {
    __shared__ uint32_t base;
    if (threadIdx.x == 64)
        base = blockIdx.x + 1;
    t->out[blockIdx.x * TAM_BLOCK_THREADS + threadIdx.x] = base;
}

static __global__ void reused_memory(table *t) {
    using scan = cub::BlockScan<uint32_t, TAM_BLOCK_THREADS>;
    __shared__ scan::TempStorage memory;
    uint32_t first, second;
    scan(memory).ExclusiveSum(1, first);
    scan(memory).ExclusiveSum(2, second); /* a barrier is missing before */
    t->out[blockIdx.x * TAM_BLOCK_THREADS + threadIdx.x] = second == 2 * first ? blockIdx.x + 1 : 0;
}

static __global__ void wrong_stride(table *t) {
    for (uint32_t i = blockIdx.x * TAM_BLOCK_THREADS + threadIdx.x; i < N;
         i += TAM_BLOCK_THREADS) /* of the grid is meant */
        atomicAdd(&t->out[i], i / TAM_BLOCK_THREADS + 1);
}

static __global__ void order_of_blocks(table *t) {
    uint32_t place = threadIdx.x == 0 ? atomicAdd(&t->ticket, 1u) : 0;
    place = static_cast<uint32_t>(__syncthreads_count(threadIdx.x < place));
    t->out[blockIdx.x * TAM_BLOCK_THREADS + threadIdx.x] = place + 1;
}

/* Whether `kernel` gives block + 1 in every word, in every order. */
static bool gives_blocks(void (*kernel)(table *)) {
    bool right_always = true;
    for (int64_t order : orders) {
        static table t;
        t = table();
        emulate_order(order);
        tam_launch(kernel, BLOCKS, nullptr, &t);
        for (uint32_t i = 0; i < N; i++)
            right_always = right_always && t.out[i] == i / TAM_BLOCK_THREADS + 1;
    }
    return right_always;
}

static void test_wrong_results_are_found_in_some_order(void **) {
    assert_false(gives_blocks(wrong_stride));
    assert_false(gives_blocks(order_of_blocks));
#if !defined(__SANITIZE_THREAD__) /* which reports them itself: below */
    assert_false(gives_blocks(without_barrier));
#endif
}

/* -- faults that end the process -------------------------------------------------------------- */

static __global__ void divergent_barrier(table *t) {
    if (threadIdx.x < 128)
        __syncthreads();
    else
        __syncthreads();
    t->out[threadIdx.x] = 1;
}

static __global__ void missed_barrier(table *t) {
    if (threadIdx.x == 200)
        return;
    __syncthreads();
    t->out[threadIdx.x] = 1;
}

static __global__ void missed_warp_call(table *t) {
    if (threadIdx.x % 32 < 31)
        t->out[threadIdx.x] = __ballot_sync(TAM_WARP, 1);
}

static __global__ void partial_mask(table *t) {
    t->out[threadIdx.x] = __ballot_sync(0xffffu, 1);
}

static __global__ void misaligned(table *t) {
    const char *at = reinterpret_cast<const char *>(t->out) + 4;
    t->out[0] = __ldg(reinterpret_cast<const uint4 *>(at)).x;
}

static __global__ void deep(table *t) {
    volatile char much[600 << 10]; /* more than any stack of a fiber */
    for (size_t i = sizeof much; i-- > 0;)
        much[i] = 1;
    t->out[0] = static_cast<uint32_t>(much[threadIdx.x]);
}

/* What a process that runs the kernel says before it ends; empty if it ends well. */
static std::string last_words(void (*kernel)(table *)) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        for (int number : {SIGABRT, SIGSEGV, SIGBUS})
            signal(number, SIG_DFL); /* cmocka has handlers of its own */
        static table t;
        for (int64_t order : orders) {
            emulate_order(order);
            tam_launch(kernel, 1, nullptr, &t);
        }
        _exit(0);
    }
    close(ends[1]);
    std::string words;
    char piece[512];
    for (ssize_t got; (got = read(ends[0], piece, sizeof piece)) > 0;)
        words.append(piece, static_cast<size_t>(got));
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    bool reported = words.find("ThreadSanitizer") != std::string::npos;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0 && !reported)
        return "";
    return words.empty() ? "killed" : words;
}

static void assert_says(void (*kernel)(table *), const char *words) {
    std::string said = last_words(kernel);
    if (said.find(words) == std::string::npos)
        fail_msg("not \"%s\" but \"%s\"", words, said.c_str());
}

static void test_faults_of_barriers_are_named(void **) {
    assert_says(divergent_barrier, "the threads disagree about a barrier");
    assert_says(missed_barrier, "the threads disagree about a barrier");
    assert_says(missed_warp_call, "the threads disagree about a barrier");
    assert_says(partial_mask, "does not name all lanes");
    assert_says(partial_mask, "tam_launch(kernel, 1, nullptr, &t)");
    assert_says(misaligned, "at a misaligned address");
    assert_string_not_equal(last_words(deep).c_str(), "");
    assert_string_equal(last_words(right).c_str(), "");
}

static void test_a_missing_barrier_is_a_race_to_thread_sanitizer(void **) {
#if defined(__SANITIZE_THREAD__)
    assert_says(without_barrier, "data race");
    assert_says(reused_memory, "data race");
#else
    assert_false(gives_blocks(reused_memory));
#endif
}

/* Bound of the emulation's cost, loose: a slow one would make the other tests too long. */
static void test_a_barrier_costs_little(void **) {
    static table t;
    emulate_order(0);
    emulate_figures before = emulate_count();
    clock_t begin = clock();
    for (int i = 0; i < 20; i++)
        tam_launch(right, BLOCKS, nullptr, &t);
    double seconds = static_cast<double>(clock() - begin) / CLOCKS_PER_SEC;
    double barriers = static_cast<double>(emulate_count().barriers - before.barriers);
    printf("%.0f ns per thread and barrier\n", 1e9 * seconds / barriers);
    assert_true(seconds < 20e-6 * barriers);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        /* First those that fork: ThreadSanitizer is blind in the child of a process with threads,
         * and counts fibers as such. */
        cmocka_unit_test(test_a_missing_barrier_is_a_race_to_thread_sanitizer),
        cmocka_unit_test(test_faults_of_barriers_are_named),
        cmocka_unit_test(test_a_kernel_that_is_right_is_so_in_every_order),
        cmocka_unit_test(test_wrong_results_are_found_in_some_order),
        cmocka_unit_test(test_a_barrier_costs_little),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
