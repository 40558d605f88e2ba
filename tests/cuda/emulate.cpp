/* SPDX-License-Identifier: MIT
 *
 * The engine behind emulate.hpp: 256 fibers, which are the threads of one block after another.
 *
 *     scheduler: choose a warp -> resume each of its lanes that can run, until it waits or returns
 *                all 32 wait at the same warp-wide call    -> they can run again
 *                no warp can run, all 256 wait at a barrier -> they can run again
 *                anything else is a fault of the kernel    -> emulate_fail
 *
 * Under ThreadSanitizer fibers count as threads that only these barriers and atomics order, so it
 * reports what CUDA calls a race, in shared and in global memory. The engine itself is compiled
 * without (EMULATE_TSAN says that the rest is), or it would see the scheduler's own accesses.
 */
#include "tests/cuda/emulate.hpp"
#include <condition_variable>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#error "compile this file with -DEMULATE_TSAN -fno-sanitize=thread"
#endif
#if defined(EMULATE_TSAN)
#include <sanitizer/tsan_interface.h>
#endif

__thread uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

enum { LANES = 32, THREADS = TAM_BLOCK_THREADS, WARPS = THREADS / LANES };

/* Kernels that run at the same time; more of them wait. ThreadSanitizer bounds all fibers. */
#if defined(EMULATE_TSAN)
constexpr unsigned MACHINES = 1; /* its clocks grow with the number of fibers */
#else
constexpr unsigned MACHINES = 4;
#endif
#if defined(__SANITIZE_ADDRESS__)
constexpr size_t STACK_BYTES = 512 << 10; /* its frames are many times as large */
#else
constexpr size_t STACK_BYTES = 64 << 10;
#endif

enum state { READY, AT_WARP, AT_BLOCK, LEFT };

/* -- switching: from one stack to another ----------------------------------------------------- */

struct context {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t saved;
#endif
    void *bottom; /* of the stack, for AddressSanitizer */
    size_t bytes;
    void *tsan_fiber;
};

#if defined(__x86_64__)
extern "C" void emulate_switch(void **save, void *load);
/* What a call must preserve, then the stack. Fibers share the modes of floating point. */
asm(R"(
    .text
    .type emulate_switch, @function
emulate_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulate_switch, .-emulate_switch
)");
#endif

void switch_stack(context *from, context *to) {
#if defined(__SANITIZE_ADDRESS__)
    void *fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, to->bottom, to->bytes);
#endif
#if defined(EMULATE_TSAN)
    __tsan_switch_to_fiber(to->tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(__x86_64__)
    emulate_switch(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext(&from->saved, &to->saved);
#endif
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

/* What happened before release(key) is seen by whoever comes from acquire(key). */
void release(void *key) {
#if defined(EMULATE_TSAN)
    __tsan_release(key);
#endif
    (void)key;
}

void acquire(void *key) {
#if defined(EMULATE_TSAN)
    __tsan_acquire(key);
#endif
    (void)key;
}

/* -- the machine ------------------------------------------------------------------------------ */

struct fiber {
    context at;
    state doing;
    const char *what; /* it waits in this call, from this line */
    int line;
    uint32_t calls; /* warp-wide ones; their parity chooses the buffer */
};

/* Two buffers: a lane may come to its next call before another has read the result of this one. */
struct warp {
    uint64_t given[2][LANES];
    uint32_t ballot[2];
};

struct machine {
    fiber fibers[THREADS];
    warp warps[WARPS];
    context scheduler;
    unsigned current; /* thread that runs */
    void (*body)(void *);
    void *argument;
    const char *text;

    void (*once)(void *); /* of the barrier that the block waits at */
    void *once_argument;
    unsigned votes, counted;
    unsigned round; /* barriers that the block has passed */
    uint64_t random, barriers;
    int64_t order;
    char passed[2];  /* keys: barriers of the block */
    char edge[2];    /* between blocks, for all blocks have the same shared memory */
    unsigned number; /* of the block, over all launches */
};

__thread machine *here;
int64_t the_order;
emulate_figures figures;

void enter(machine *m) {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    for (;;) {
        acquire(&m->edge[m->number & 1]);
        m->body(m->argument);
        release(&m->edge[~m->number & 1]);
        fiber *f = &m->fibers[m->current];
        f->doing = LEFT;
        switch_stack(&f->at, &m->scheduler);
    }
}

/* A new fiber finds its machine in `born`: the first switch to it cannot carry arguments. */
__thread machine *born;

extern "C" void emulate_birth(void) {
    enter(born);
}

void make_fiber(fiber *f) {
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    void *memory = mmap(nullptr, page + STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE) != 0)
        emulate_fail("no memory for the stack of a fiber");
    f->at.bottom = static_cast<char *>(memory) + page;
    f->at.bytes = STACK_BYTES;
#if defined(__x86_64__)
    /* As if it had called emulate_switch: six registers, then where to return to. */
    void **top = reinterpret_cast<void **>(static_cast<char *>(f->at.bottom) + STACK_BYTES);
    top -= 2; /* at its entry a function finds the stack 8 bytes off a multiple of 16 */
    *top = reinterpret_cast<void *>(emulate_birth);
    top -= 6;
    f->at.stack_pointer = top;
#else
    getcontext(&f->at.saved);
    f->at.saved.uc_stack.ss_sp = f->at.bottom;
    f->at.saved.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->at.saved, emulate_birth, 0);
#endif
#if defined(EMULATE_TSAN)
    f->at.tsan_fiber = __tsan_create_fiber(0);
#endif
}

/* Machines are kept for the next kernel: fibers are dear to the sanitizers. Never destroyed, for
 * threads of streams outlive main. */
struct machine_pool {
    std::mutex lock;
    std::condition_variable wait;
    std::vector<machine *> idle;
    unsigned made = 0;
};
machine_pool &pool = *new machine_pool();

machine *take_machine() {
    std::unique_lock<std::mutex> lock(pool.lock);
    while (pool.idle.empty() && pool.made == MACHINES)
        pool.wait.wait(lock);
    if (!pool.idle.empty()) {
        machine *m = pool.idle.back();
        pool.idle.pop_back();
        return m;
    }
    pool.made++;
    auto *m = new machine();
    for (fiber &f : m->fibers)
        make_fiber(&f);
    return m;
}

void return_machine(machine *m) {
    std::unique_lock<std::mutex> lock(pool.lock);
    figures.barriers += m->barriers;
    figures.blocks += gridDim.x;
    figures.threads += static_cast<uint64_t>(gridDim.x) * THREADS;
    m->barriers = 0;
    pool.idle.push_back(m);
    pool.wait.notify_one();
}

/* The current stack, so that fibers can come back to it. */
void know_own_stack(context *own) {
#if defined(__SANITIZE_ADDRESS__)
    static thread_local context known;
    pthread_attr_t attributes;
    if (!known.bottom && pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &known.bottom, &known.bytes);
        pthread_attr_destroy(&attributes);
    }
    own->bottom = known.bottom;
    own->bytes = known.bytes;
#endif
#if defined(EMULATE_TSAN)
    own->tsan_fiber = __tsan_get_current_fiber();
#endif
    (void)own;
}

/* -- order ------------------------------------------------------------------------------------ */

uint32_t draw(machine *m) {
    m->random ^= m->random << 13;
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return static_cast<uint32_t>(m->random >> 32);
}

/* A permutation of 0 .. count - 1, a power of two: i -> (odd * i + shift) mod count. */
struct permutation {
    uint32_t odd, shift, mask;
    uint32_t operator()(uint32_t i) const {
        return (odd * i + shift) & mask;
    }
};

permutation arrange(machine *m, uint32_t count) {
    if (m->order == 0)
        return {1, 0, count - 1};
    if (m->order < 0)
        return {UINT32_MAX, count - 1, count - 1};
    return {draw(m) | 1, draw(m), count - 1};
}

void read_order() {
    const char *text = getenv("TAMIS_EMULATE_ORDER");
    if (text && strcmp(text, "reverse") == 0)
        the_order = -1;
    else if (text && strcmp(text, "forward") != 0)
        the_order = strtoll(text, nullptr, 10);
}
[[maybe_unused]] const bool order_was_read = (read_order(), true);

/* -- the scheduler ---------------------------------------------------------------------------- */

[[noreturn]] void disagree(machine *m, unsigned first, unsigned count) {
    for (unsigned t = first; t < first + count; t++) {
        const fiber *f = &m->fibers[t];
        const fiber *before = t > first ? f - 1 : nullptr;
        bool left = f->doing == LEFT;
        if (before && before->doing == f->doing && (left || before->line == f->line))
            continue;
        fprintf(stderr, "emulate: from thread %u on: %s, line %d\n", t, left ? "returned" : f->what,
                left ? 0 : f->line);
    }
    emulate_fail("the threads disagree about a barrier");
}

/* Its lanes have run as far as they can. @return whether they can run on */
bool release_warp(machine *m, unsigned w) {
    fiber *lanes = &m->fibers[w * LANES];
    bool any = false, same = true;
    for (unsigned l = 0; l < LANES; l++) {
        any |= lanes[l].doing == AT_WARP;
        same &= lanes[l].doing == lanes[0].doing && lanes[l].what == lanes[0].what &&
                lanes[l].line == lanes[0].line;
    }
    if (!any)
        return false;
    if (!same)
        disagree(m, w * LANES, LANES);
    unsigned buffer = lanes[0].calls & 1;
    uint32_t ballot = 0;
    for (unsigned l = 0; l < LANES; l++) {
        ballot |= static_cast<uint32_t>(m->warps[w].given[buffer][l] != 0) << l;
        lanes[l].doing = READY;
    }
    m->warps[w].ballot[buffer] = ballot;
    m->barriers += LANES;
    return true;
}

/* No warp can run on. @return false: all have returned */
bool release_block(machine *m) {
    const fiber *first = &m->fibers[0];
    for (const fiber &f : m->fibers)
        if (f.doing != first->doing ||
            (f.doing != LEFT && (f.what != first->what || f.line != first->line)))
            disagree(m, 0, THREADS);
    if (first->doing == LEFT)
        return false;
    void *key = &m->passed[m->round++ & 1];
    if (m->once) {
        acquire(key);
        m->once(m->once_argument);
        release(key);
    }
    m->counted = m->votes;
    m->votes = 0;
    for (fiber &f : m->fibers)
        f.doing = READY;
    m->barriers += THREADS;
    return true;
}

void run_warp(machine *m, unsigned w) {
    do {
        permutation lane = arrange(m, LANES);
        for (uint32_t i = 0; i < LANES; i++) {
            m->current = w * LANES + lane(i);
            fiber *f = &m->fibers[m->current];
            if (f->doing != READY)
                continue;
            threadIdx.x = m->current;
            born = m;
            switch_stack(&m->scheduler, &f->at);
        }
        /* When shuffled, now and then let another warp go first. */
    } while (release_warp(m, w) && (m->order <= 0 || draw(m) % 4 != 0));
}

bool warp_can_run(const machine *m, unsigned w) {
    for (unsigned l = 0; l < LANES; l++)
        if (m->fibers[w * LANES + l].doing == READY)
            return true;
    return false;
}

void run_block(machine *m) {
    m->votes = 0;
    for (fiber &f : m->fibers) {
        f.doing = READY;
        f.calls = 0;
    }
    do {
        bool ran;
        do {
            ran = false;
            permutation next = arrange(m, WARPS);
            for (unsigned i = 0; i < WARPS; i++)
                if (warp_can_run(m, next(i))) {
                    run_warp(m, next(i));
                    ran = true;
                }
        } while (ran);
    } while (release_block(m));
}

void wait_here(const char *what, int line, state how, void *key) {
    machine *m = here;
    fiber *f = &m->fibers[m->current];
    f->what = what;
    f->line = line;
    f->doing = how;
    release(key);
    switch_stack(&f->at, &m->scheduler);
    acquire(key);
}

/* @return the buffer in which the results lie */
unsigned sync_warp(const char *what, int line, uint64_t mask, uint64_t mine) {
    if (mask != 0xffffffffu)
        emulate_fail("%s in line %d does not name all lanes", what, line);
    machine *m = here;
    fiber *f = &m->fibers[m->current];
    unsigned buffer = ++f->calls & 1;
    warp *w = &m->warps[m->current / LANES];
    w->given[buffer][m->current % LANES] = mine;
    wait_here(what, line, AT_WARP, &w->ballot[buffer]);
    return buffer;
}

} // namespace

void emulate_order(int64_t order) {
    __atomic_store_n(&the_order, order, __ATOMIC_RELAXED);
}

int64_t emulate_current_order(void) {
    return __atomic_load_n(&the_order, __ATOMIC_RELAXED);
}

emulate_figures emulate_count(void) {
    std::unique_lock<std::mutex> lock(pool.lock);
    return figures;
}

void emulate_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("emulate: ", stderr);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (here)
        fprintf(stderr, "\nemulate: in block %u, thread %u of tam_launch(%s)", blockIdx.x,
                threadIdx.x, here->text);
    fputc('\n', stderr);
    abort();
}

const uint64_t *emulate_sync_warp(const char *what, int line, uint64_t mask, uint64_t mine) {
    unsigned buffer = sync_warp(what, line, mask, mine);
    return here->warps[here->current / LANES].given[buffer];
}

uint32_t emulate_ballot(const char *what, int line, uint64_t mask, bool mine) {
    unsigned buffer = sync_warp(what, line, mask, mine);
    return here->warps[here->current / LANES].ballot[buffer];
}

unsigned emulate_sync_block(const char *what, int line, bool mine, void (*once)(void *),
                            void *context) {
    machine *m = here;
    m->votes += mine;
    m->once = once;
    m->once_argument = context;
    wait_here(what, line, AT_BLOCK, &m->passed[m->round & 1]);
    return m->counted;
}

void emulate_run(const char *text, unsigned blocks, void (*body)(void *), void *context) {
    machine *m = take_machine();
    m->text = text;
    m->body = body;
    m->argument = context;
    m->order = __atomic_load_n(&the_order, __ATOMIC_RELAXED);
    m->random = 0x9e3779b97f4a7c15ull * (static_cast<uint64_t>(m->order) + 2) | 1;
    know_own_stack(&m->scheduler);
    release(&m->edge[m->number & 1]);
    here = m;
    blockDim = {THREADS, 1, 1};
    gridDim = {blocks, 1, 1};
    uint32_t start = m->order > 0 ? draw(m) % blocks : 0;
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t b = (i + start) % blocks;
        blockIdx = {m->order < 0 ? blocks - 1 - b : b, 0, 0};
        run_block(m);
        m->number++;
    }
    here = nullptr;
    acquire(&m->edge[m->number & 1]);
    return_machine(m);
}
