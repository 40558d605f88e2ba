/* SPDX-License-Identifier: MIT
 *
 * What the instructions of PTX do. An arithmetic one is a function of the operands of one lane;
 * the table at the end names them. NaN that arithmetic makes has one pattern, as on the device.
 */
#include "tests/cuda/ptx/machine.hpp"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace ptx {
namespace {

template <typename T> T get(const lanes &g, int64_t place, unsigned lane) {
    T value;
    memcpy(&value, g.registers + place + lane * sizeof value, sizeof value);
    return value;
}

template <typename T> void set(lanes &g, int64_t place, unsigned lane, T value) {
    memcpy(g.registers + place + lane * sizeof value, &value, sizeof value);
}

/* The order shows where lanes touch the same memory. */
template <typename F> void each(const lanes &g, F f) {
    if (g.mask == ALL && g.turn == 0)
        for (unsigned l = 0; l < LANES; l++)
            f(l);
    else
        for (unsigned i = 0; i < LANES; i++)
            if (g.mask >> (i ^ g.turn) & 1)
                f(i ^ g.turn);
}

/* -- arithmetic ------------------------------------------------------------------------------- */

template <auto F> struct plain;
template <typename R, typename... A, R (*F)(A...)> struct plain<F> {
    template <size_t... N>
    static void run(lanes &g, const instruction &i, std::index_sequence<N...>) {
        const int64_t *o = i.operand.data();
        each(g, [&](unsigned l) { set<R>(g, o[0], l, F(get<A>(g, o[N + 1], l)...)); });
    }
    static void run(lanes &g, const instruction &i) {
        run(g, i, std::index_sequence_for<A...>());
    }
};

template <typename T> T tidy(T x) {
    if constexpr (std::is_same_v<T, float>) {
        uint32_t one = 0x7fffffffu;
        if (x != x)
            memcpy(&x, &one, sizeof x);
    } else if constexpr (std::is_same_v<T, double>) {
        uint64_t one = 0xfff8000000000000ull;
        if (x != x)
            memcpy(&x, &one, sizeof x);
    }
    return x;
}

/* Narrow ones would become int. */
#define BINARY(name, expression)                                                                   \
    template <typename T> T name(T a, T b) {                                                       \
        return tidy(static_cast<T>(expression));                                                   \
    }
BINARY(add, a + b)
BINARY(sub, a - b)
BINARY(mul, a *b)
BINARY(div, a / b)
BINARY(both, a &b)
BINARY(either, a | b)
BINARY(differ, a ^ b)
#undef BINARY

template <typename T> T quotient(T a, T b) {
    return b == 0 ? static_cast<T>(~T{0}) : static_cast<T>(a / b);
}
template <typename T> T rest(T a, T b) {
    return b == 0 ? a : static_cast<T>(a % b);
}
template <typename T> T least(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
        return std::fmin(a, b);
    return std::min(a, b);
}
template <typename T> T most(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
        return std::fmax(a, b);
    return std::max(a, b);
}
uint32_t next_or_zero(uint32_t a, uint32_t last) {
    return a >= last ? 0 : a + 1;
}
template <typename T> T mad(T a, T b, T c) {
    return a * b + c;
}
template <typename T, typename W> W wide(T a, T b) {
    return static_cast<W>(static_cast<W>(a) * static_cast<W>(b));
}
__extension__ typedef unsigned __int128 wide128;
uint64_t high(uint64_t a, uint64_t b) {
    return static_cast<uint64_t>(static_cast<wide128>(a) * b >> 64);
}
template <typename T> T copy(T a) {
    return a;
}
template <typename T> T negative(T a) {
    return tidy(static_cast<T>(-a));
}
template <typename T> T root(T a) {
    return tidy(std::sqrt(a));
}
template <typename T> T inverse(T a) {
    return static_cast<T>(~a);
}
bool opposite(bool a) {
    return !a;
}
template <typename T> T left(T a, uint32_t by) {
    return by >= sizeof(T) * 8 ? 0 : static_cast<T>(a << by);
}
template <typename T> T right(T a, uint32_t by) {
    uint32_t last = sizeof(T) * 8 - 1;
    if (by > last)
        return std::is_signed_v<T> ? static_cast<T>(a >> last) : 0;
    return static_cast<T>(a >> by);
}
template <typename T> T choose(T a, T b, bool first) {
    return first ? a : b;
}
template <typename T> uint32_t ones(T a) {
    return static_cast<uint32_t>(__builtin_popcountll(a));
}
uint32_t reversed(uint32_t a) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i++)
        r |= (a >> i & 1) << (31 - i);
    return r;
}
uint32_t leading(uint32_t a) { /* bfind.shiftamt */
    return a ? static_cast<uint32_t>(__builtin_clz(a)) : ~0u;
}
template <typename T> T insert(T a, T b, uint32_t at, uint32_t length) {
    T mask = length >= sizeof(T) * 8 ? ~T{0} : static_cast<T>((T{1} << length) - 1);
    return at >= sizeof(T) * 8 ? b : static_cast<T>((b & ~(mask << at)) | ((a & mask) << at));
}
uint32_t permute(uint32_t a, uint32_t b, uint32_t by) {
    uint64_t both_words = static_cast<uint64_t>(b) << 32 | a;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        uint32_t choice = by >> 4 * i & 15;
        uint32_t byte = both_words >> 8 * (choice & 7) & 255;
        result |= (choice & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return result;
}
template <typename T, typename W> W pack(T low, T high) {
    return static_cast<W>(low | static_cast<W>(high) << sizeof(T) * 8);
}

void unpack(lanes &g, const instruction &i) {
    each(g, [&](unsigned l) {
        uint64_t word = get<uint64_t>(g, i.operand[0], l);
        set(g, i.operand[1], l, static_cast<uint32_t>(word));
        set(g, i.operand[2], l, static_cast<uint32_t>(word >> 32));
    });
}

template <typename T> bool eq(T a, T b) {
    return a == b;
}
template <typename T> bool ne(T a, T b) { /* false for NaN */
    return a < b || a > b;
}
template <typename T> bool lt(T a, T b) {
    return a < b;
}
template <typename T> bool le(T a, T b) {
    return a <= b;
}
template <typename T> bool gt(T a, T b) {
    return a > b;
}
template <typename T> bool ge(T a, T b) {
    return a >= b;
}
/* Ending in u: also true for NaN. */
template <auto F, typename T> bool unless(T a, T b) {
    return !F(a, b);
}

template <typename To, typename From> To convert(From from) {
    return tidy(static_cast<To>(from));
}
/* Towards 0, to the nearest number that there is; NaN is 0. */
template <typename To, typename From> To truncate(From from) {
    double x = static_cast<double>(from);
    if (x != x)
        return 0;
    if (x <= static_cast<double>(std::numeric_limits<To>::min()))
        return std::numeric_limits<To>::min();
    if (x >= static_cast<double>(std::numeric_limits<To>::max()))
        return std::numeric_limits<To>::max();
    return static_cast<To>(x);
}
double upward(double a) {
    return std::ceil(a);
}

/* -- memory ----------------------------------------------------------------------------------- */

/* Operands: base, its bits, offset, values. */
uint64_t address(const lanes &g, const instruction &i, unsigned l) {
    uint64_t base =
        i.operand[1] == 64 ? get<uint64_t>(g, i.operand[0], l) : get<uint32_t>(g, i.operand[0], l);
    return base + static_cast<uint64_t>(i.operand[2]);
}

enum space { GLOBAL, SHARED, LOCAL, PARAM };

/* Where it is, if a thread may touch it so. */
template <space S> uint8_t *locate(lanes &g, uint64_t at, size_t bytes, how what, unsigned l) {
    const char *wrong = at % bytes ? "a misaligned access" : nullptr;
    uint8_t *memory = reinterpret_cast<uint8_t *>(at);
    if (S == SHARED) {
        memory = g.shared + at;
        if (at + bytes > g.shared_bytes)
            wrong = "an access past the end of shared memory";
        else if (!wrong)
            wrong = watch_shared(at, bytes, what, g.first + l);
    } else if (S == LOCAL) {
        memory = g.local + l * g.local_bytes + at;
        if (at + bytes > g.local_bytes)
            wrong = "an access past the end of local memory";
    } else if (S == GLOBAL && !wrong) {
        wrong = watch_global(at, bytes, what, g.first + l);
    }
    if (wrong)
        fail(wrong, g.first + l);
    return memory;
}

/* There are no registers of 8 bits: M is what memory holds, R the register. */
template <space S, typename M, typename R, how HOW> void load(lanes &g, const instruction &i) {
    size_t count = i.operand.size() - 3;
    each(g, [&](unsigned l) {
        const uint8_t *from = locate<S>(g, address(g, i, l), count * sizeof(M), HOW, l);
        for (size_t n = 0; n < count; n++) {
            M value;
            memcpy(&value, from + n * sizeof value, sizeof value);
            set<R>(g, i.operand[3 + n], l, value);
        }
    });
}

template <space S, typename M, typename R, how HOW> void store(lanes &g, const instruction &i) {
    size_t count = i.operand.size() - 3;
    each(g, [&](unsigned l) {
        uint8_t *to = locate<S>(g, address(g, i, l), count * sizeof(M), HOW, l);
        for (size_t n = 0; n < count; n++) {
            M value = static_cast<M>(get<R>(g, i.operand[3 + n], l));
            memcpy(to + n * sizeof value, &value, sizeof value);
        }
    });
}

/* Real ones: other streams' threads may be at the same memory. */
template <space S, typename T, auto JOIN> void atomic(lanes &g, const instruction &i) {
    each(g, [&](unsigned l) {
        auto *at = reinterpret_cast<T *>(locate<S>(g, address(g, i, l), sizeof(T), ATOMIC, l));
        T mine = get<T>(g, i.operand[4], l), old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
        while (!__atomic_compare_exchange_n(at, &old, JOIN(old, mine), false, __ATOMIC_SEQ_CST,
                                            __ATOMIC_SEQ_CST)) {
        }
        set(g, i.operand[3], l, old);
    });
}

void fence(lanes &g, const instruction &) {
    each(g, [&](unsigned l) { watch_fence(g.first + l); });
}

/* -- all lanes of a warp ---------------------------------------------------------------------- */

void demand_all(const lanes &g, int64_t mask) {
    for (unsigned l = 0; l < LANES; l++)
        if (get<uint32_t>(g, mask, l) != ALL)
            fail("a mask that does not name all lanes", g.first + l);
}

void ballot(lanes &g, const instruction &i) {
    uint32_t votes = 0;
    demand_all(g, i.operand[2]);
    for (unsigned l = 0; l < LANES; l++)
        votes |= static_cast<uint32_t>(get<bool>(g, i.operand[1], l)) << l;
    each(g, [&](unsigned l) { set(g, i.operand[0], l, votes); });
}

/* Orders no memory here, so that more is found. */
void sync(lanes &g, const instruction &i) {
    demand_all(g, i.operand[0]);
}

void reduce_add(lanes &g, const instruction &i) {
    uint32_t sum = 0;
    demand_all(g, i.operand[2]);
    for (unsigned l = 0; l < LANES; l++)
        sum += get<uint32_t>(g, i.operand[1], l);
    each(g, [&](unsigned l) { set(g, i.operand[0], l, sum); });
}

enum way { UP, DOWN, INDEX, BUTTERFLY };

/* Operands: result, whether it came from another lane, value, by, bounds, mask. */
template <way W> void shuffle(lanes &g, const instruction &i) {
    uint32_t values[LANES];
    demand_all(g, i.operand[5]);
    for (unsigned l = 0; l < LANES; l++)
        values[l] = get<uint32_t>(g, i.operand[2], l);
    each(g, [&](unsigned l) {
        uint32_t by = get<uint32_t>(g, i.operand[3], l) & 31;
        uint32_t bounds = get<uint32_t>(g, i.operand[4], l);
        uint32_t part = bounds >> 8 & 31, clamp = bounds & 31, least_lane = l & part;
        int from = W == UP      ? static_cast<int>(l - by)
                   : W == DOWN  ? static_cast<int>(l + by)
                   : W == INDEX ? static_cast<int>(least_lane | (by & ~part))
                                : static_cast<int>(l ^ by);
        int limit = static_cast<int>(least_lane | (clamp & ~part));
        bool inside = W == UP ? from >= limit : from <= limit;
        set(g, i.operand[0], l, values[inside ? static_cast<unsigned>(from) : l]);
        set(g, i.operand[1], l, inside);
    });
}

/* -- the whole block -------------------------------------------------------------------------- */

void arrive(lanes &, const instruction &) {}

void count_votes(lanes &g, const instruction &i) {
    each(g, [&](unsigned l) { set(g, i.operand[0], l, g.votes); });
}

/* -- the table -------------------------------------------------------------------------------- */

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;
using f32 = float;
using f64 = double;
using b16 = u16;
using b32 = u32;
using b64 = u64;
using pred = bool;

struct entry {
    operation run;
    ptx::kind kind;
};

#define TYPED(name, function, type) {#name "." #type, {plain<function<type>>::run, PLAIN}},
#define INTEGERS(name, function)                                                                   \
    TYPED(name, function, b16) TYPED(name, function, b32) TYPED(name, function, b64)
#define SIGNED(name, function)                                                                     \
    TYPED(name, function, u16)                                                                     \
    TYPED(name, function, u32)                                                                     \
    TYPED(name, function, u64)                                                                     \
    TYPED(name, function, s16) TYPED(name, function, s32) TYPED(name, function, s64)
#define FLOATS(name, function) TYPED(name, function, f32) TYPED(name, function, f64)
#define COMPARE(name) SIGNED(setp.name, name) FLOATS(setp.name, name) INTEGERS(setp.name, name)
#define UNLESS(name, function, type)                                                               \
    {"setp." #name "." #type, {plain<unless<function<type>, type>>::run, PLAIN}},
#define CONVERT(to, from) {"cvt." #to "." #from, {plain<convert<to, from>>::run, PLAIN}},
#define CONVERT_TO(to)                                                                             \
    CONVERT(to, u16)                                                                               \
    CONVERT(to, u32) CONVERT(to, u64) CONVERT(to, s16) CONVERT(to, s32) CONVERT(to, s64)
#define TRUNCATE(to, from) {"cvt.rzi." #to "." #from, {plain<truncate<to, from>>::run, PLAIN}},
#define MEMORY(space, where, how_read, how_write)                                                  \
    {"ld." #space ".8", {load<where, u8, u16, how_read>, PLAIN}},                                  \
        {"ld." #space ".16", {load<where, u16, u16, how_read>, PLAIN}},                            \
        {"ld." #space ".32", {load<where, u32, u32, how_read>, PLAIN}},                            \
        {"ld." #space ".64", {load<where, u64, u64, how_read>, PLAIN}},                            \
        {"st." #space ".8", {store<where, u8, u16, how_write>, PLAIN}},                            \
        {"st." #space ".16", {store<where, u16, u16, how_write>, PLAIN}},                          \
        {"st." #space ".32", {store<where, u32, u32, how_write>, PLAIN}},                          \
        {"st." #space ".64", {store<where, u64, u64, how_write>, PLAIN}},
#define ATOMICS(space, where, type)                                                                \
    {"atom." #space ".add." #type, {atomic<where, type, add<type>>, PLAIN}},                       \
        {"atom." #space ".min." #type, {atomic<where, type, least<type>>, PLAIN}},                 \
        {"atom." #space ".max." #type, {atomic<where, type, most<type>>, PLAIN}},

const std::unordered_map<std::string, entry> table = {
    INTEGERS(add, add) INTEGERS(sub, sub) INTEGERS(mul, mul) FLOATS(add, add) FLOATS(sub, sub)
        FLOATS(mul, mul) FLOATS(div, div) FLOATS(sqrt, root) FLOATS(neg, negative)
            SIGNED(div, quotient) SIGNED(rem, rest) SIGNED(min, least) SIGNED(max, most)
                FLOATS(min, least) FLOATS(max, most) SIGNED(neg, negative) INTEGERS(and, both)
                    INTEGERS(or, either) INTEGERS(xor, differ) INTEGERS(not, inverse)
                        TYPED(and, both, pred) TYPED(or, either, pred)
                            TYPED(xor, differ, pred){"not.pred", {plain<opposite>::run, PLAIN}},
    INTEGERS(mad, mad) INTEGERS(shl, left) SIGNED(shr, right) INTEGERS(selp, choose)
        INTEGERS(mov, copy) TYPED(mov, copy, pred){"mov.b8", {plain<copy<u8>>::run, PLAIN}},
    {"mul.wide.u16", {plain<wide<u16, u32>>::run, PLAIN}},
    {"mul.wide.u32", {plain<wide<u32, u64>>::run, PLAIN}},
    {"mul.wide.s32", {plain<wide<s32, s64>>::run, PLAIN}},
    {"mul.wide.s16", {plain<wide<s16, s32>>::run, PLAIN}},
    {"mul.hi.u64", {plain<high>::run, PLAIN}},
    TYPED(popc, ones, b32) TYPED(popc, ones, b64){"brev.b32", {plain<reversed>::run, PLAIN}},
    {"bfind.u32", {plain<leading>::run, PLAIN}},
    {"prmt.b32", {plain<permute>::run, PLAIN}},
    TYPED(bfi, insert, b32)
        TYPED(bfi, insert, b64){"pack.b32", {plain<pack<u16, u32>>::run, PLAIN}},
    {"pack.b64", {plain<pack<u32, u64>>::run, PLAIN}},
    {"unpack.b64", {unpack, PLAIN}},
    COMPARE(eq) COMPARE(ne) COMPARE(lt) COMPARE(le) COMPARE(gt) COMPARE(ge) UNLESS(ltu, ge, f32)
        UNLESS(ltu, ge, f64) UNLESS(leu, gt, f32) UNLESS(leu, gt, f64) UNLESS(gtu, le, f32) UNLESS(
            gtu, le, f64) UNLESS(geu, lt, f32) UNLESS(geu, lt, f64) UNLESS(neu, eq, f32)
            UNLESS(neu, eq, f64) UNLESS(equ, ne, f32) UNLESS(equ, ne, f64) CONVERT_TO(u16)
                CONVERT_TO(u32) CONVERT_TO(u64) CONVERT_TO(s16) CONVERT_TO(s32) CONVERT_TO(s64)
                    CONVERT_TO(f32) CONVERT_TO(f64) CONVERT(f32, f64) CONVERT(f64, f32)
                        TRUNCATE(u32, f32) TRUNCATE(u64, f32) TRUNCATE(s32, f32) TRUNCATE(s64, f32)
                            TRUNCATE(u32, f64) TRUNCATE(u64, f64) TRUNCATE(s32, f64)
                                TRUNCATE(s64, f64){"cvt.rpi.f64.f64", {plain<upward>::run, PLAIN}},
    MEMORY(global, GLOBAL, READ, WRITE) MEMORY(shared, SHARED, READ, WRITE)
        MEMORY(local, LOCAL, READ, WRITE) MEMORY(param, PARAM, READ, WRITE)
            MEMORY(volatile, GLOBAL, STRONG_READ, STRONG_WRITE)
                MEMORY(constant, GLOBAL, CONSTANT_READ, WRITE) ATOMICS(global, GLOBAL, u32)
                    ATOMICS(global, GLOBAL, u64) ATOMICS(shared, SHARED, u32)
                        ATOMICS(shared, SHARED, u64){"atom.global.or.b32",
                                                     {atomic<GLOBAL, u32, either<u32>>, PLAIN}},
    {"atom.global.inc.u32", {atomic<GLOBAL, u32, next_or_zero>, PLAIN}},
    {"atom.shared.or.b32", {atomic<SHARED, u32, either<u32>>, PLAIN}},
    {"fence", {fence, PLAIN}},
    {"bra", {nullptr, BRANCH}},
    {"ret", {nullptr, LEAVE}},
    {"vote.ballot", {ballot, AT_WARP}},
    {"bar.warp", {sync, AT_WARP}},
    {"redux.add.u32", {reduce_add, AT_WARP}},
    {"redux.add.s32", {reduce_add, AT_WARP}},
    {"shfl.up", {shuffle<UP>, AT_WARP}},
    {"shfl.down", {shuffle<DOWN>, AT_WARP}},
    {"shfl.idx", {shuffle<INDEX>, AT_WARP}},
    {"shfl.bfly", {shuffle<BUTTERFLY>, AT_WARP}},
    {"bar.sync", {arrive, AT_BLOCK}},
    {"bar.popc", {count_votes, AT_BLOCK}},
};

} // namespace

bool find_operation(instruction *i) {
    auto found = table.find(i->name);
    if (found == table.end())
        return false;
    i->run = found->second.run;
    i->kind = found->second.kind;
    return true;
}

} // namespace ptx
