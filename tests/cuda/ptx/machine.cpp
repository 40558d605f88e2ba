/* SPDX-License-Identifier: MIT
 *
 * Runs a kernel of a program: blocks one after another, in each the warps in turn, in each the
 * lanes that are at one place together. Where lanes part, the ones that are furthest behind go on,
 * so that they are level again; in reverse order those ahead, as far as they can; shuffled, now
 * these, now those.
 */
#include "tests/cuda/ptx/machine.hpp"
#include "tests/cuda/emulate.hpp"
#include <algorithm>
#include <cstring>
#include <mutex>

namespace ptx {
namespace {

struct warp {
    uint32_t number, at[LANES];    /* of the next instruction */
    uint32_t ready, waiting, left; /* lanes, as bits */
    std::vector<uint8_t> registers;
};

/* One for the process: kernels of several streams take turns. */
struct machine {
    std::mutex lock;
    kernel *program;
    const instruction *now;
    uint32_t block, blocks;
    int64_t order;
    uint64_t random;
    warp warps[WARPS];
    std::vector<uint8_t> parameters, shared, local;
};
machine &m = *new machine(); /* streams' threads outlive main */

uint32_t draw() {
    m.random = m.random * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(m.random >> 33);
}

/* i -> i ^ turn is forward, reverse or one of the others of its kind. */
uint32_t turn_of(uint32_t count) {
    return m.order == 0 ? 0 : m.order < 0 ? count - 1 : draw() % count;
}

/* -- a warp ----------------------------------------------------------------------------------- */

lanes lanes_of(warp *w, uint32_t mask) {
    size_t local = m.program->local_bytes, first = w->number * LANES;
    return {w->registers.data(),          m.shared.data(), m.local.data() + first * local,
            m.program->shared_bytes,      local,           mask,
            static_cast<uint32_t>(first), turn_of(LANES),  0};
}

uint32_t holds(const warp *w, uint32_t mask, const instruction &i) {
    if (i.guard < 0)
        return mask;
    const uint8_t *flags = w->registers.data() + i.guard / 2;
    uint32_t on = 0;
    for (unsigned l = 0; l < LANES; l++)
        on |= static_cast<uint32_t>(flags[l] != 0) << l;
    return mask & (i.guard & 1 ? ~on : on);
}

void send(warp *w, uint32_t mask, uint32_t to) {
    for (unsigned l = 0; l < LANES; l++)
        if (mask >> l & 1)
            w->at[l] = to;
}

/* Lanes `mask`, all at `at`, execute what is there. @return whether they are still together, *at */
bool execute(warp *w, uint32_t mask, uint32_t *at) {
    const instruction &i = m.program->code[*at];
    uint32_t on = holds(w, mask, i);
    m.now = &i;
    if (i.kind == PLAIN) {
        lanes g = lanes_of(w, on);
        if (on)
            i.run(g, i);
        ++*at;
        return true;
    }
    if (i.kind == BRANCH) {
        auto target = static_cast<uint32_t>(i.operand[0]);
        if (on == 0 || on == mask) {
            *at = on ? target : *at + 1;
            return true;
        }
        send(w, on, target);
        send(w, mask & ~on, *at + 1);
        return false;
    }
    if (i.kind != LEAVE && on != mask)
        fail("a .sync instruction under a condition", w->number * LANES);
    send(w, on, *at);
    send(w, mask & ~on, *at + 1);
    w->ready &= ~on;
    (i.kind == LEAVE ? w->left : w->waiting) |= on;
    return false;
}

/* The place of the lanes that go on. */
uint32_t choose(const warp *w, bool behind) {
    uint32_t place = behind ? ~0u : 0;
    for (unsigned l = 0; l < LANES; l++)
        if (w->ready >> l & 1)
            place = behind ? std::min(place, w->at[l]) : std::max(place, w->at[l]);
    return place;
}

uint32_t lanes_at(const warp *w, uint32_t place) {
    uint32_t mask = 0;
    for (unsigned l = 0; l < LANES; l++)
        mask |= static_cast<uint32_t>((w->ready >> l & 1) && w->at[l] == place) << l;
    return mask;
}

void run_ready(warp *w) {
    while (w->ready) {
        bool behind = m.order == 0 || (m.order > 0 && draw() % 2 == 0);
        uint32_t at = choose(w, behind), mask = lanes_at(w, at);
        bool together = execute(w, mask, &at);
        while (together && (mask == w->ready || !behind))
            together = execute(w, mask, &at);
        if (together)
            send(w, mask, at);
    }
}

/* All lanes wait or have left. @return whether they go on: all are at the same call of the warp */
bool sync_warp(warp *w) {
    if (w->waiting == 0)
        return false;
    const instruction &i = m.program->code[w->at[static_cast<unsigned>(__builtin_ctz(w->waiting))]];
    m.now = &i;
    for (unsigned l = 0; l < LANES; l++)
        if (!(w->waiting >> l & 1) || &m.program->code[w->at[l]] != &i)
            fail("lanes of a warp are at different places, or gone, at a .sync or barrier",
                 w->number * LANES + l);
    if (i.kind != AT_WARP)
        return false;
    lanes g = lanes_of(w, ALL);
    i.run(g, i);
    send(w, ALL, w->at[0] + 1);
    w->ready = ALL, w->waiting = 0;
    return true;
}

/* -- a block ---------------------------------------------------------------------------------- */

template <typename T> void fill(warp *w, uint32_t place, T value) {
    for (unsigned l = 0; l < LANES; l++)
        memcpy(w->registers.data() + place + l * sizeof value, &value, sizeof value);
}

void begin_warp(warp *w, uint32_t number) {
    w->number = number;
    w->ready = ALL, w->waiting = w->left = 0;
    send(w, ALL, 0);
    if (w->registers.size() < m.program->register_bytes)
        w->registers.resize(m.program->register_bytes, 0xC3);
    for (uint32_t l = 0; l < LANES; l++) {
        uint32_t thread = number * LANES + l;
        memcpy(w->registers.data() + TID + 4 * l, &thread, 4);
        memcpy(w->registers.data() + LANEID + 4 * l, &l, 4);
    }
    fill(w, CTAID, m.block);
    fill(w, NCTAID, m.blocks);
    fill(w, NTID, static_cast<uint32_t>(THREADS));
    fill(w, PARAMETERS, reinterpret_cast<uint64_t>(m.parameters.data()));
    for (const constant &c : m.program->constants)
        for (unsigned l = 0; l < LANES; l++)
            memcpy(w->registers.data() + c.place + l * c.bytes, &c.value, c.bytes);
}

/* In how many threads the condition of a barrier that counts holds. */
uint32_t count_votes(const instruction &i) {
    uint32_t votes = 0;
    for (const warp &w : m.warps)
        for (unsigned l = 0; l < LANES; l++)
            votes += w.registers[static_cast<size_t>(i.operand[1]) + l] != 0;
    return votes;
}

/* No warp can go on alone. @return false: all have left */
bool sync_block() {
    const warp &first = m.warps[0];
    for (const warp &w : m.warps)
        if (w.left != first.left || (!w.left && w.at[0] != first.at[0]))
            fail("warps are at different places, or gone, at a barrier", w.number * LANES);
    if (first.left)
        return false;
    const instruction &i = m.program->code[first.at[0]];
    uint32_t votes = i.operand.empty() ? 0 : count_votes(i);
    for (warp &w : m.warps) {
        lanes g = lanes_of(&w, ALL);
        g.votes = votes;
        i.run(g, i);
        send(&w, ALL, w.at[0] + 1);
        w.ready = ALL, w.waiting = 0;
    }
    watch_barrier();
    return true;
}

void run_block(uint32_t number) {
    m.block = number;
    memset(m.shared.data(), 0xA7, m.shared.size());
    watch_block(number, m.program->shared_bytes);
    for (uint32_t w = 0; w < WARPS; w++)
        begin_warp(&m.warps[w], w);
    do {
        uint32_t turn = turn_of(WARPS);
        for (uint32_t i = 0; i < WARPS; i++) {
            warp *w = &m.warps[i ^ turn];
            do
                run_ready(w);
            while (sync_warp(w));
        }
    } while (sync_block());
}

/* -- a launch --------------------------------------------------------------------------------- */

void take_parameters(const void *const *arguments) {
    m.parameters.assign(m.program->parameter_bytes, 0);
    for (const parameter &p : m.program->parameters)
        memcpy(m.parameters.data() + p.offset, *arguments++, p.bytes);
}

} // namespace

void fail(const char *what, uint32_t thread) {
    emulate_fail("%s\nemulate: at line %u of the PTX, %s, in block %u, thread %u of %s", what,
                 m.now->line, m.now->name.c_str(), m.block, thread, m.program->name.c_str());
}

} // namespace ptx

int emulate_compiled(const void *function, unsigned blocks, const void *const *arguments,
                     int64_t order) {
    using namespace ptx;
    kernel *program = find_kernel(function);
    if (!program)
        return 0;
    std::lock_guard<std::mutex> held(m.lock);
    m.program = program;
    m.blocks = blocks;
    m.order = order;
    m.random = static_cast<uint64_t>(order) + program->launches++;
    m.shared.resize(program->shared_bytes);
    m.local.assign(program->local_bytes * THREADS, 0xC3);
    take_parameters(arguments);
    watch_launch();
    uint32_t start = order > 0 ? draw() % blocks : 0;
    for (uint32_t i = 0; i < blocks; i++)
        run_block(order < 0 ? blocks - 1 - i : (i + start) % blocks);
    return 1;
}
