/* SPDX-License-Identifier: MIT
 *
 * Who touched a word when. Each barrier, fence and block begins a new moment. For every word of
 * four bytes it is kept who wrote it last and who read it last in this launch, and at which moment.
 *
 *     one block        two accesses of different threads, one of them a write, need a barrier
 *                      between; atomics need none among themselves
 *     several blocks   what one wrote is read, or written again, by another only if it is known:
 *                      writer: write, barrier unless it is the same thread, fence, atomic
 *                      reader: atomic at the same word, fence, barrier unless it is the same thread
 *     ld.global.nc     never what was written in the same launch
 *
 * What it cannot see: of several readers only the last; bytes of a word that different threads
 * wrote, except the last ones; accesses of other kernels at the same time.
 */
#include "tests/cuda/fake.h"
#include "tests/cuda/ptx/machine.hpp"
#include <map>
#include <memory>
#include <unordered_map>

/* Weak: a program without the fake runtime must not get it through this. */
extern "C" {
int fake_cuda_extent(const void *, uintptr_t *, size_t *) __attribute__((weak));
fake_cuda_objects fake_cuda_alive(void) __attribute__((weak));
}

namespace ptx {
namespace {

/* thread: its number in the launch. */
constexpr uint64_t NOBODY = ~0ull, SEVERAL = ~0ull - 1; /* SEVERAL: of one block */

struct touch {
    uint64_t thread = NOBODY, moment = 0;
    uint32_t block = 0, bytes = 0; /* of the word, a bit each */
    bool strong = false;
};

struct word {
    uint64_t stamp = 0; /* of the launch; shared memory: of the block */
    touch wrote, read;
};

/* How much of another block's writes is visible: all before `moment`, one thread's up to `own`. */
struct extent {
    uint64_t moment = 0, thread = NOBODY, own = 0;
};
using knowledge = std::map<uint32_t, extent>; /* by block */

void learn(knowledge *to, const knowledge &from) {
    for (const auto &[block, e] : from) {
        extent &mine = (*to)[block];
        mine.moment = mine.moment > e.moment ? mine.moment : e.moment;
        if (e.own >= mine.own)
            mine.own = e.own, mine.thread = e.thread;
    }
}

/* What is known of a thread that used fences and atomics. */
struct ordering {
    knowledge known; /* as of its last fence */
    knowledge seen;  /* came with atomics; known after a fence */
    knowledge gives; /* goes with atomics */
};

uint64_t now = 1, launch_stamp, block_stamp, since; /* since: the block's last barrier */
uint32_t block;
std::unordered_map<uint64_t, std::unique_ptr<word[]>> pages; /* of global memory */
std::vector<word> shared;
std::map<uint32_t, ordering> orderings; /* of the block's threads */
knowledge known;                        /* to all of the block */
std::unordered_map<uint64_t, knowledge> given;
bool bounded;                                   /* kernels work on memory of the fake runtime */
uint64_t own_begin, own_end, last_page = ~0ull; /* the allocation last looked up */
word *last_words;

constexpr uint64_t PAGE_WORDS = 1024;

word *word_at(uint64_t at) {
    uint64_t page = at / 4 / PAGE_WORDS;
    if (page != last_page) {
        auto &words = pages[page];
        if (!words)
            words.reset(new word[PAGE_WORDS]());
        last_page = page, last_words = words.get();
    }
    return &last_words[at / 4 % PAGE_WORDS];
}

bool is_visible(const touch &t, uint32_t thread) {
    auto reaches = [&](const knowledge &k) {
        auto e = k.find(t.block);
        return e != k.end() && (t.moment < e->second.moment ||
                                (t.thread == e->second.thread && t.moment <= e->second.own));
    };
    auto own = orderings.find(thread);
    return reaches(known) || (own != orderings.end() && reaches(own->second.known));
}

/* Whether something orders an earlier access before one of this thread. */
bool is_ordered(const touch &t, uint32_t thread) {
    if (t.thread == NOBODY)
        return true;
    if (t.block != block)
        return is_visible(t, thread);
    return t.moment < since || t.thread == static_cast<uint64_t>(block) * THREADS + thread;
}

void record(touch *t, const touch &mine) {
    bool others = t->thread != NOBODY && t->thread != mine.thread && t->block == mine.block &&
                  (t->bytes & mine.bytes) && t->moment >= since;
    *t = mine;
    if (others)
        t->thread = SEVERAL;
}

const char *check(word *w, const touch &mine, how what, uint32_t thread) {
    bool writes = what == WRITE || what == ATOMIC || what == STRONG_WRITE;
    bool overlaps_write = (w->wrote.bytes & mine.bytes) && !(w->wrote.strong && mine.strong);
    bool overlaps_read = writes && (w->read.bytes & mine.bytes) && !(w->read.strong && mine.strong);
    if (overlaps_write && what == CONSTANT_READ)
        return "a read past the coherent cache of what this launch wrote";
    if (overlaps_write && !is_ordered(w->wrote, thread))
        return w->wrote.block != block
                   ? "an access to what another block wrote, without fence and atomic between"
                   : "an access to what another thread wrote, without a barrier between";
    if (overlaps_read && !is_ordered(w->read, thread) &&
        (w->read.block == block || w->read.thread != SEVERAL))
        return w->read.block != block
                   ? "a write to what another block read, without fence and atomic between"
                   : "a write to what another thread read, without a barrier between";
    record(writes ? &w->wrote : &w->read, mine);
    return nullptr;
}

/* The words of [at, at + bytes), which find(address) gives. */
template <typename FIND>
const char *check_words(uint64_t at, size_t bytes, how what, uint32_t thread, uint64_t stamp,
                        FIND find) {
    touch mine;
    mine.thread = static_cast<uint64_t>(block) * THREADS + thread;
    mine.moment = now;
    mine.block = block;
    mine.strong = what == ATOMIC || what == STRONG_READ || what == STRONG_WRITE;
    for (uint64_t a = at & ~3ull; a < at + bytes; a += 4) {
        word *w = find(a);
        if (w->stamp != stamp)
            *w = word(), w->stamp = stamp;
        mine.bytes = bytes >= 4 ? 15u : ((1u << bytes) - 1) << (at & 3);
        if (const char *wrong = check(w, mine, what, thread))
            return wrong;
    }
    return nullptr;
}

/* What an atomic gives to those that come after it to the same word, and what it gets. */
void pass_on(uint64_t at, uint32_t thread) {
    auto before = given.find(at);
    auto own = orderings.find(thread);
    if (before != given.end())
        learn(&orderings[thread].seen, before->second);
    if (own != orderings.end() && !own->second.gives.empty())
        learn(&given[at], own->second.gives);
}

bool is_foreign(uint64_t at, size_t bytes) {
    if (!bounded || (at >= own_begin && at + bytes <= own_end))
        return false;
    uintptr_t begin;
    size_t length;
    if (!fake_cuda_extent(reinterpret_cast<void *>(at), &begin, &length) ||
        at + bytes > begin + length)
        return true;
    own_begin = begin, own_end = begin + length;
    return false;
}

} // namespace

void watch_launch() {
    launch_stamp = ++now;
    bounded = fake_cuda_extent && fake_cuda_alive().allocations > 0;
    own_begin = own_end = 0;
    given.clear();
}

void watch_block(uint32_t number, uint64_t shared_bytes) {
    block = number;
    block_stamp = since = ++now;
    shared.resize((shared_bytes + 3) / 4);
    orderings.clear();
    known.clear();
}

void watch_barrier() {
    since = ++now;
    for (auto &[thread, o] : orderings)
        learn(&known, o.known);
}

void watch_fence(uint32_t thread) {
    ordering &o = orderings[thread];
    learn(&o.known, o.seen);
    learn(&o.gives, o.known);
    learn(&o.gives, known);
    o.gives[block] = {since, static_cast<uint64_t>(block) * THREADS + thread, now++};
}

const char *watch_global(uint64_t at, size_t bytes, how what, uint32_t thread) {
    if (is_foreign(at, bytes))
        return "an access to memory that is of no allocation";
    if (what == ATOMIC)
        pass_on(at, thread);
    return check_words(at, bytes, what, thread, launch_stamp, word_at);
}

const char *watch_shared(uint64_t offset, size_t bytes, how what, uint32_t thread) {
    auto find = [](uint64_t a) { return &shared[a / 4]; };
    if (what == READ || what == ATOMIC)
        for (uint64_t a = offset & ~3ull; a < offset + bytes; a += 4)
            if (shared[a / 4].stamp != block_stamp || shared[a / 4].wrote.thread == NOBODY)
                return "a read of shared memory that nobody in this block wrote";
    return check_words(offset, bytes, what, thread, block_stamp, find);
}

} // namespace ptx
