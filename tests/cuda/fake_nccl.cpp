/* SPDX-License-Identifier: MIT
 *
 * Fake NCCL: ranks are threads of one process, each on a device of its own, collectives are
 * operations on fake streams. All ranks of a communicator meet at its n-th operation (a group of
 * calls is one operation), compare what they brought, and the last to come moves the bytes.
 *
 * What differs becomes an asynchronous error of all and keeps their streams busy until they abort;
 * so does a rank that never comes, without an error, as with the vendor's. Stricter than his: sends
 * and receives are matched by all ranks; operations of one communicator must also begin in the same
 * order where ranks use several streams.
 *
 * A nonblocking communicator enqueues a call not before somebody has been told, by
 * ncclCommGetAsyncError, that it is no longer in progress.
 */
#include "tests/cuda/fake.h"
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <nccl.h>
#include <vector>

namespace {

using guard = std::unique_lock<std::mutex>;

enum kind { ALL_GATHER, ALL_REDUCE, BROADCAST, SEND, RECV };

struct call {
    kind what;
    const char *send;
    char *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; /* root, or the other end */
};
using operation = std::vector<call>;

/* Where the ranks meet for one operation. */
struct meeting {
    std::vector<const operation *> brought;
    int came = 0, left = 0;
    bool done = false;
};

struct member; /* a rank */

/** What the ranks of one communicator share. */
struct circle {
    int nranks;
    std::vector<std::shared_ptr<member>> members;
    std::map<uint64_t, meeting> meetings;
    std::condition_variable changed;
};

struct member {
    std::shared_ptr<circle> of;
    int rank, device;
    bool blocking, aborted = false, finalizing = false;
    ncclResult_t error = ncclSuccess;
    unsigned polls = 0; /* to answer "in progress" to */
    bool waiting = false;
    std::shared_ptr<operation> pending; /* enqueued when the polls are over */
    cudaStream_t pending_stream = nullptr;
    uint64_t next = 0; /* number of the next operation */
    unsigned under_way = 0;
};

/* One lock, and never destroyed: threads of streams use them to the end. */
struct nccl_world {
    std::mutex lock;
    std::map<uint64_t, std::weak_ptr<circle>> circles;
    std::vector<ncclComm *> comms;
    uint64_t ids = 0;
    int version = NCCL_VERSION_CODE;
    bool hang = false;
    std::condition_variable unhang;
    uint64_t random = 88172645463325252ull;
};
nccl_world &all = *new nccl_world();

struct group_entry {
    std::shared_ptr<member> who;
    cudaStream_t stream;
    std::shared_ptr<operation> what;
};
thread_local int group_depth;
thread_local std::vector<group_entry> group;
thread_local ncclResult_t group_error;
thread_local char last_words[160];

} // namespace

struct ncclComm {
    std::shared_ptr<member> self;
};

namespace {

ncclResult_t refuse(ncclResult_t error, const char *words) {
    snprintf(last_words, sizeof last_words, "fake nccl: %s", words);
    return error;
}

#define NCCL_ENTER()                                                                               \
    do {                                                                                           \
        int entered_ = fake_cuda_enter(__func__);                                                  \
        if (entered_)                                                                              \
            return refuse(static_cast<ncclResult_t>(entered_), "made to fail");                    \
    } while (0)

unsigned few() {
    all.random ^= all.random << 13;
    all.random ^= all.random >> 7;
    all.random ^= all.random << 17;
    return static_cast<unsigned>(all.random >> 32) % 3;
}

size_t size_of(ncclDataType_t type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < 12 ? sizes[type] : 0;
}

/* With the lock held. NULL: no communicator, or one that is gone. */
std::shared_ptr<member> member_of(ncclComm_t comm) {
    auto it = std::find(all.comms.begin(), all.comms.end(), comm);
    return it == all.comms.end() ? nullptr : comm->self;
}

/* On the system's clock, for ThreadSanitizer of gcc 12 does not know waits on the steady one. */
void pause_for(std::condition_variable &what, guard &held) {
    what.wait_until(held, std::chrono::system_clock::now() + std::chrono::milliseconds(20));
}

/* -- moving bytes ----------------------------------------------------------------------------- */

bool overlap(const void *a, size_t abytes, const void *b, size_t bbytes) {
    auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
    return x < y + bbytes && y < x + abytes;
}

/* Backwards over the ranks: callers must not count on an order. */
template <typename T>
void reduce(const std::vector<const call *> &calls, size_t count, ncclRedOp_t op) {
    std::vector<T> sums(count);
    for (size_t i = 0; i < count; i++) {
        T sum = reinterpret_cast<const T *>(calls.back()->send)[i];
        for (size_t r = calls.size() - 1; r-- > 0;) {
            T other = reinterpret_cast<const T *>(calls[r]->send)[i];
            sum = op == ncclMax   ? std::max(sum, other)
                  : op == ncclMin ? std::min(sum, other)
                                  : static_cast<T>(sum + other);
        }
        sums[i] = sum;
    }
    for (const call *c : calls)
        memcpy(c->recv, sums.data(), count * sizeof(T));
}

void all_reduce(const std::vector<const call *> &calls) {
    size_t count = calls[0]->count;
    ncclRedOp_t op = calls[0]->op;
    switch (calls[0]->type) {
    case ncclUint8:
        return reduce<uint8_t>(calls, count, op);
    case ncclInt32:
        return reduce<int32_t>(calls, count, op);
    case ncclUint32:
        return reduce<uint32_t>(calls, count, op);
    case ncclInt64:
        return reduce<int64_t>(calls, count, op);
    case ncclUint64:
        return reduce<uint64_t>(calls, count, op);
    case ncclFloat32:
        return reduce<float>(calls, count, op);
    default:
        return reduce<double>(calls, count, op);
    }
}

void move_bytes(const std::vector<const call *> &calls) {
    size_t bytes = calls[0]->count * size_of(calls[0]->type);
    if (calls[0]->what == ALL_REDUCE)
        return all_reduce(calls);
    for (const call *to : calls)
        for (size_t r = 0; r < calls.size(); r++)
            if (calls[0]->what == ALL_GATHER)
                memmove(to->recv + r * bytes, calls[r]->send, bytes);
            else if (static_cast<int>(r) == to->peer)
                memmove(to->recv, calls[r]->send, bytes);
}

/* The nth call of this kind to, or from, this peer. */
const call *find(const operation &in, kind what, int peer, size_t nth) {
    for (const call &c : in)
        if (c.what == what && c.peer == peer && nth-- == 0)
            return &c;
    return nullptr;
}

/* Every send of a to b has its receive. @param really  else only compare */
bool match_pair(const meeting &m, int a, int b, bool really) {
    for (size_t nth = 0;; nth++) {
        const call *from = find(*m.brought[static_cast<size_t>(a)], SEND, b, nth);
        const call *to = find(*m.brought[static_cast<size_t>(b)], RECV, a, nth);
        if (!from || !to)
            return !from && !to;
        if (from->count != to->count || from->type != to->type)
            return false;
        if (really)
            memcpy(to->recv, from->send, from->count * size_of(from->type));
    }
}

bool match_pairs(const meeting &m, int nranks, bool really) {
    for (int a = 0; a < nranks; a++)
        for (int b = 0; b < nranks; b++)
            if (!match_pair(m, a, b, really))
                return false;
    return true;
}

/* The nth collective of every rank; empty when there are no more. @return whether they agree */
bool line_up(const meeting &m, size_t nth, std::vector<const call *> *out) {
    out->clear();
    for (const operation *one : m.brought) {
        size_t left = nth;
        for (const call &c : *one)
            if (c.what < SEND && left-- == 0)
                out->push_back(&c);
    }
    if (out->empty())
        return true;
    const call *first = out->front();
    bool same = out->size() == m.brought.size();
    for (const call *c : *out)
        same = same && c->what == first->what && c->count == first->count &&
               c->type == first->type && c->op == first->op && c->peer == first->peer;
    return same;
}

/* @return whether the ranks agree */
bool carry_out(const meeting &m, int nranks) {
    std::vector<const call *> calls;
    for (size_t nth = 0;; nth++) {
        if (!line_up(m, nth, &calls))
            return false;
        if (calls.empty())
            break;
    }
    if (!match_pairs(m, nranks, false))
        return false;
    for (size_t nth = 0; line_up(m, nth, &calls) && !calls.empty(); nth++)
        move_bytes(calls);
    return match_pairs(m, nranks, true);
}

/* -- operations on streams -------------------------------------------------------------------- */

/* One operation of one rank, as a stream knows it. */
struct ticket {
    std::shared_ptr<member> who;
    std::shared_ptr<operation> what;
};

bool gives_up(const member &self) {
    return self.aborted || fake_cuda_is_broken(self.device);
}

/* On the thread of a stream. */
void run_ticket(void *context) {
    auto *t = static_cast<ticket *>(context);
    member &self = *t->who;
    circle &c = *self.of;
    guard held(all.lock);
    if (gives_up(self))
        return;
    uint64_t number = self.next++;
    self.under_way++;
    meeting &m = c.meetings[number];
    m.brought.resize(static_cast<size_t>(c.nranks));
    m.brought[static_cast<size_t>(self.rank)] = t->what.get();
    if (++m.came == c.nranks) {
        m.done = carry_out(m, c.nranks);
        if (!m.done)
            for (auto &one : c.members)
                one->error = ncclInternalError;
        c.changed.notify_all();
    }
    while (!m.done && !gives_up(self))
        pause_for(c.changed, held);
    /* Who is given up takes away what he brought: the others wait for him for ever. */
    m.brought[static_cast<size_t>(self.rank)] = nullptr;
    if (!m.done)
        m.came = -c.nranks;
    if (++m.left == c.nranks)
        c.meetings.erase(number);
    self.under_way--;
    c.changed.notify_all();
}

void drop_ticket(void *context) {
    delete static_cast<ticket *>(context);
}

ncclResult_t start(const std::shared_ptr<member> &who, const std::shared_ptr<operation> &what,
                   cudaStream_t stream) {
    auto *t = new ticket{who, what};
    int error = fake_cuda_enqueue(stream, "nccl", run_ticket, t, drop_ticket);
    return error == 0 ? ncclSuccess : refuse(ncclUnhandledCudaError, "the stream refused it");
}

/* Without the lock. A nonblocking communicator keeps it until it has been asked for. */
ncclResult_t submit(const std::shared_ptr<member> &who, const std::shared_ptr<operation> &what,
                    cudaStream_t stream) {
    if (who->blocking)
        return start(who, what, stream);
    guard held(all.lock);
    if (who->waiting)
        return refuse(ncclInvalidUsage, "the call before is still in progress");
    who->waiting = true;
    who->polls = few();
    who->pending = what;
    who->pending_stream = stream;
    return ncclInProgress;
}

bool known(const void *memory, size_t bytes) {
    return bytes == 0 || fake_cuda_owns(memory, bytes);
}

ncclResult_t add(ncclComm_t comm, cudaStream_t stream, const call &one) {
    guard held(all.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self || self->finalizing)
        return refuse(ncclInvalidArgument, "no such communicator");
    if (self->error != ncclSuccess)
        return self->error;
    held.unlock();
    if (size_of(one.type) == 0 || one.peer < 0 || one.peer >= self->of->nranks)
        return refuse(ncclInvalidArgument, "no such type or rank");
    if (group_depth == 0)
        return submit(self, std::make_shared<operation>(operation{one}), stream);
    for (group_entry &e : group)
        if (e.who == self && e.stream == stream) {
            e.what->push_back(one);
            return ncclSuccess;
        }
    group.push_back({self, stream, std::make_shared<operation>(operation{one})});
    return ncclSuccess;
}

/* In a group an error is also that of its end. */
ncclResult_t noted(ncclResult_t code) {
    if (group_depth > 0 && code != ncclSuccess && group_error == ncclSuccess)
        group_error = code;
    return code;
}

} // namespace

/* -- making and ending ------------------------------------------------------------------------ */

ncclResult_t ncclGetVersion(int *version) {
    NCCL_ENTER();
    guard held(all.lock);
    *version = all.version;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out) {
    NCCL_ENTER();
    guard held(all.lock);
    memset(out, 0, sizeof *out);
    uint64_t id = ++all.ids;
    memcpy(out->internal, &id, sizeof id);
    return ncclSuccess;
}

/* The circle of this id, made by the first to come. */
static std::shared_ptr<circle> circle_of(const ncclUniqueId &id, int nranks) {
    uint64_t number;
    memcpy(&number, id.internal, sizeof number);
    std::shared_ptr<circle> found = all.circles[number].lock();
    if (!found) {
        found = std::make_shared<circle>();
        found->nranks = nranks;
        found->members.resize(static_cast<size_t>(nranks));
        all.circles[number] = found;
    }
    return found;
}

static bool all_came(const circle &c) {
    return std::find(c.members.begin(), c.members.end(), nullptr) == c.members.end();
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    NCCL_ENTER();
    if (config && (config->magic != 0xcafebeef || config->size != sizeof *config))
        return refuse(ncclInvalidArgument, "the configuration was not initialized");
    int device = 0;
    if (nranks < 1 || rank < 0 || rank >= nranks || cudaGetDevice(&device) != cudaSuccess)
        return refuse(ncclInvalidArgument, "no such rank or no device");
    guard held(all.lock);
    std::shared_ptr<circle> c = circle_of(id, nranks);
    if (c->nranks != nranks || c->members[static_cast<size_t>(rank)])
        return refuse(ncclInvalidUsage, "ranks differ about their number, or a rank came twice");
    for (auto &other : c->members)
        if (other && other->device == device)
            return refuse(ncclInvalidUsage, "duplicate GPU detected");
    auto self = std::make_shared<member>();
    self->of = c;
    self->rank = rank;
    self->device = device;
    self->blocking = !config || config->blocking != 0;
    self->waiting = !self->blocking;
    self->polls = few();
    c->members[static_cast<size_t>(rank)] = self;
    *out = new ncclComm{self};
    all.comms.push_back(*out);
    c->changed.notify_all();
    while (self->blocking && !all_came(*c))
        pause_for(c->changed, held);
    return self->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int nranks, ncclUniqueId id, int rank) {
    return ncclCommInitRankConfig(out, nranks, id, rank, nullptr);
}

static void forget(ncclComm_t comm) {
    all.comms.erase(std::find(all.comms.begin(), all.comms.end(), comm));
    delete comm;
}

/* The circle holds its members and they hold it: cut when the last of them has gone. */
static void leave(const std::shared_ptr<member> &self) {
    self->aborted = true;
    circle &c = *self->of;
    c.changed.notify_all();
    bool anybody = false;
    for (auto &one : c.members)
        anybody = anybody || (one && !one->aborted);
    if (!anybody)
        c.members.assign(c.members.size(), nullptr);
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    NCCL_ENTER();
    guard held(all.lock);
    while (all.hang)
        pause_for(all.unhang, held);
    std::shared_ptr<member> self = member_of(comm);
    if (!self)
        return refuse(ncclInvalidArgument, "no such communicator");
    std::shared_ptr<circle> c = self->of; /* outlives its members */
    leave(self);
    while (self->under_way > 0)
        pause_for(c->changed, held);
    forget(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    NCCL_ENTER();
    guard held(all.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self || self->waiting)
        return refuse(ncclInvalidArgument, "no such communicator, or a call is in progress");
    self->finalizing = true;
    while (self->blocking && self->under_way > 0)
        pause_for(self->of->changed, held);
    self->waiting = !self->blocking;
    self->polls = few();
    return self->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    NCCL_ENTER();
    guard held(all.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self)
        return refuse(ncclInvalidArgument, "no such communicator");
    std::shared_ptr<circle> c = self->of;
    for (int tries = 0; self->under_way > 0; tries++) {
        if (tries > 1500) {
            fprintf(stderr, "fake nccl: ncclCommDestroy waits for ever for its operations\n");
            abort();
        }
        pause_for(c->changed, held);
    }
    leave(self);
    forget(comm);
    return ncclSuccess;
}

/* Answers "in progress" a few times. Then what was called is enqueued. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out) {
    NCCL_ENTER();
    guard held(all.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self)
        return refuse(ncclInvalidArgument, "no such communicator");
    *out = self->error;
    if (self->error != ncclSuccess || !self->waiting)
        return ncclSuccess;
    *out = ncclInProgress;
    bool busy = self->finalizing ? self->under_way > 0 : !all_came(*self->of);
    if (busy || self->polls > 0) {
        self->polls -= self->polls > 0;
        return ncclSuccess;
    }
    std::shared_ptr<operation> pending = std::move(self->pending);
    self->waiting = false;
    *out = ncclSuccess;
    cudaStream_t stream = self->pending_stream;
    held.unlock();
    if (pending)
        *out = start(self, pending, stream);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *out) {
    NCCL_ENTER();
    guard held(all.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self)
        return refuse(ncclInvalidArgument, "no such communicator");
    *out = self->of->nranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *out) {
    NCCL_ENTER();
    guard held(all.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self)
        return refuse(ncclInvalidArgument, "no such communicator");
    *out = self->rank;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t code) {
    static const char *const words[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
    return code >= 0 && code < ncclNumResults ? words[code] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t) {
    return last_words;
}

/* -- calls ------------------------------------------------------------------------------------ */

ncclResult_t ncclGroupStart(void) {
    NCCL_ENTER();
    if (group_depth++ == 0) {
        group.clear();
        group_error = ncclSuccess;
    }
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    int entered = fake_cuda_enter(__func__);
    if (group_depth == 0)
        return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    if (--group_depth > 0)
        return ncclSuccess;
    std::vector<group_entry> entries = std::move(group);
    group.clear();
    ncclResult_t code = entered ? static_cast<ncclResult_t>(entered) : group_error;
    for (size_t i = 0; i < entries.size() && (code == ncclSuccess || code == ncclInProgress); i++) {
        ncclResult_t one = submit(entries[i].who, entries[i].what, entries[i].stream);
        code = one == ncclSuccess ? code : one;
    }
    return code;
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER();
    int rank, nranks;
    if (ncclCommUserRank(comm, &rank) != ncclSuccess || ncclCommCount(comm, &nranks) != ncclSuccess)
        return noted(ncclInvalidArgument);
    size_t bytes = count * size_of(type), total = bytes * static_cast<size_t>(nranks);
    char *own = static_cast<char *>(recv) + static_cast<size_t>(rank) * bytes;
    if (!known(send, bytes) || !known(recv, total) ||
        (send != own && overlap(send, bytes, recv, total)))
        return noted(refuse(ncclInvalidArgument, "memory is no device's, too short, or overlaps"));
    return noted(add(comm, stream,
                     {ALL_GATHER, static_cast<const char *>(send), static_cast<char *>(recv), count,
                      type, ncclSum, 0}));
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER();
    size_t bytes = count * size_of(type);
    if (!known(send, bytes) || !known(recv, bytes) ||
        (send != recv && overlap(send, bytes, recv, bytes)))
        return noted(refuse(ncclInvalidArgument, "memory is no device's, too short, or overlaps"));
    if (size_of(type) < 4 && type != ncclUint8)
        return noted(refuse(ncclInvalidArgument, "a type that cannot be summed here"));
    return noted(add(comm, stream,
                     {ALL_REDUCE, static_cast<const char *>(send), static_cast<char *>(recv), count,
                      type, op, 0}));
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER();
    if (!known(recv, count * size_of(type)))
        return noted(refuse(ncclInvalidArgument, "memory is no device's, or too short"));
    return noted(add(comm, stream,
                     {BROADCAST, static_cast<const char *>(send), static_cast<char *>(recv), count,
                      type, ncclSum, root}));
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER();
    if (!known(send, count * size_of(type)))
        return noted(refuse(ncclInvalidArgument, "memory is no device's, or too short"));
    return noted(add(comm, stream,
                     {SEND, static_cast<const char *>(send), nullptr, count, type, ncclSum, peer}));
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    NCCL_ENTER();
    if (!known(recv, count * size_of(type)))
        return noted(refuse(ncclInvalidArgument, "memory is no device's, or too short"));
    return noted(
        add(comm, stream, {RECV, nullptr, static_cast<char *>(recv), count, type, ncclSum, peer}));
}

/* -- for tests -------------------------------------------------------------------------------- */

void fake_nccl_hang_abort(int on) {
    guard held(all.lock);
    all.hang = on != 0;
    all.unhang.notify_all();
}

void fake_nccl_version(int version) {
    guard held(all.lock);
    all.version = version ? version : NCCL_VERSION_CODE;
}

unsigned fake_nccl_comms(void) {
    guard held(all.lock);
    return static_cast<unsigned>(all.comms.size());
}
