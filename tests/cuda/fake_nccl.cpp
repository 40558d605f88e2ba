/* SPDX-License-Identifier: MIT
 *
 * Fake NCCL: ranks are threads of one process, each on a device of its own, collectives are
 * operations on fake streams. All ranks of a communicator take part in its n-th operation (a group
 * of calls is one operation), compare what they brought, and the last to come moves the bytes.
 *
 * What differs becomes an asynchronous error of all and keeps their streams busy until they abort;
 * so does a rank that never comes, without an error, as with the vendor's. Stricter than his: sends
 * and receives are matched by all ranks; operations of one communicator must also begin in the same
 * order where ranks use several streams. Only the collectives that the library uses are here;
 * sums are of float32, and begin with the last rank, as no order is promised.
 */
#include "tests/cuda/fake_nccl.hpp"

namespace {

struct group_entry {
    std::shared_ptr<member> who;
    cudaStream_t stream;
    std::shared_ptr<operation> what;
};
thread_local int group_depth;
thread_local std::vector<group_entry> group;
thread_local ncclResult_t group_error;

size_t size_of(ncclDataType_t type) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return type >= 0 && type < 12 ? sizes[type] : 0;
}

/* -- moving bytes ----------------------------------------------------------------------------- */

bool overlap(const void *a, size_t abytes, const void *b, size_t bbytes) {
    auto x = reinterpret_cast<uintptr_t>(a), y = reinterpret_cast<uintptr_t>(b);
    return x < y + bbytes && y < x + abytes;
}

void gather(const std::vector<const call *> &calls) {
    size_t bytes = calls[0]->count * size_of(calls[0]->type);
    for (const call *to : calls)
        for (size_t r = 0; r < calls.size(); r++)
            memmove(to->recv + r * bytes, calls[r]->send, bytes);
    if (!nccl.flips || calls.size() < 2 || bytes == 0)
        return;
    size_t at = static_cast<size_t>(nccl.flip_from) * bytes + nccl.flip_bit / 8 % bytes;
    for (size_t r = 0; r < calls.size(); r++)
        if (nccl.flip_to < 0 || static_cast<size_t>(nccl.flip_to) == r)
            calls[r]->recv[at] = static_cast<char>(calls[r]->recv[at] ^ 1 << nccl.flip_bit % 8);
    nccl.flips = false;
}

void reduce(const std::vector<const call *> &calls) {
    std::vector<float> sums(calls[0]->count);
    for (size_t i = 0; i < sums.size(); i++) {
        sums[i] = reinterpret_cast<const float *>(calls.back()->send)[i];
        for (size_t r = calls.size() - 1; r-- > 0;)
            sums[i] += reinterpret_cast<const float *>(calls[r]->send)[i];
    }
    for (const call *to : calls)
        memcpy(to->recv, sums.data(), sums.size() * sizeof(float));
}

/* The nth call of this kind to, or from, this peer. */
const call *find(const operation &in, kind what, int peer, size_t nth) {
    for (const call &c : in)
        if (c.what == what && c.peer == peer && nth-- == 0)
            return &c;
    return nullptr;
}

/* With the lock held: messages of one pair of ranks come in their order. */
void flip_message(int from, int to, char *came, size_t bytes) {
    if (nccl.flip_message == 0 || from != nccl.flip_from || to != nccl.flip_to || bytes == 0)
        return;
    if (--nccl.flip_message > 0)
        return;
    size_t bit = nccl.flip_bit % (8 * bytes);
    came[bit / 8] = static_cast<char>(came[bit / 8] ^ 1 << bit % 8);
}

/* Every send of a to b has its receive. @param really  else only compare */
bool match_pair(const rendezvous &m, int a, int b, bool really) {
    for (size_t nth = 0;; nth++) {
        const call *from = find(*m.brought[static_cast<size_t>(a)], SEND, b, nth);
        const call *to = find(*m.brought[static_cast<size_t>(b)], RECV, a, nth);
        if (!from || !to)
            return !from && !to;
        if (from->count != to->count || from->type != to->type)
            return false;
        size_t bytes = from->count * size_of(from->type);
        if (!really)
            continue;
        memcpy(to->recv, from->send, bytes);
        flip_message(a, b, to->recv, bytes);
    }
}

bool match_pairs(const rendezvous &m, int nranks, bool really) {
    for (int a = 0; a < nranks; a++)
        for (int b = 0; b < nranks; b++)
            if (!match_pair(m, a, b, really))
                return false;
    return true;
}

/* The nth call of this kind of every rank; empty when there are no more. @return whether they agree
 */
bool match_calls(const rendezvous &m, kind what, size_t nth, std::vector<const call *> *out) {
    out->clear();
    for (const operation *one : m.brought) {
        size_t left = nth;
        for (const call &c : *one)
            if (c.what == what && left-- == 0)
                out->push_back(&c);
    }
    if (out->empty())
        return true;
    const call *first = out->front();
    bool same = out->size() == m.brought.size();
    for (const call *c : *out)
        same = same && c->count == first->count && c->type == first->type;
    return same;
}

bool all_match(const rendezvous &m, kind what) {
    std::vector<const call *> calls;
    for (size_t nth = 0;; nth++) {
        if (!match_calls(m, what, nth, &calls))
            return false;
        if (calls.empty())
            return true;
    }
}

void carry_out_all(const rendezvous &m, kind what,
                   void (*work)(const std::vector<const call *> &)) {
    std::vector<const call *> calls;
    for (size_t nth = 0; match_calls(m, what, nth, &calls) && !calls.empty(); nth++)
        work(calls);
}

/* @return whether the ranks agree */
bool carry_out(const rendezvous &m, int nranks) {
    if (!all_match(m, ALL_GATHER) || !all_match(m, ALL_REDUCE) || !match_pairs(m, nranks, false))
        return false;
    carry_out_all(m, ALL_GATHER, gather);
    carry_out_all(m, ALL_REDUCE, reduce);
    return match_pairs(m, nranks, true);
}

/* -- operations on streams -------------------------------------------------------------------- */

/* One operation of one rank, as a stream knows it. */
struct ticket {
    std::shared_ptr<member> who;
    std::shared_ptr<operation> what;
    bool launched; /* else captured: a graph launches it */
};

bool gives_up(const member &self) {
    return self.aborted || self.stopping || fake_cuda_is_broken(self.device);
}

void join(member &self, const operation *what, guard &held) {
    circle &c = *self.of;
    if (gives_up(self))
        return;
    uint64_t number = self.next++;
    self.under_way++;
    rendezvous &m = c.operations[number];
    m.brought.resize(static_cast<size_t>(c.nranks));
    m.brought[static_cast<size_t>(self.rank)] = what;
    if (++m.came == c.nranks) {
        m.done = carry_out(m, c.nranks);
        if (!m.done)
            for (auto &one : c.members)
                one->error = ncclInternalError;
        c.changed.notify_all();
    }
    while (!m.done && !gives_up(self))
        pause_for(c.changed, held, PAUSE_MS);
    /* Who is given up takes away what he brought: the others wait for him for ever. */
    m.brought[static_cast<size_t>(self.rank)] = nullptr;
    if (!m.done)
        m.came = -c.nranks;
    if (++m.left == c.nranks)
        c.operations.erase(number);
    self.under_way--;
}

/* On the thread of a stream. */
void run_ticket(void *context) {
    auto *t = static_cast<ticket *>(context);
    guard held(nccl.lock);
    join(*t->who, t->what.get(), held);
    t->who->launched -= t->launched;
    t->who->of->changed.notify_all();
}

bool captures(cudaStream_t stream) {
    CUstream_st *s = stream_of(stream);
    guard held(world.lock);
    return s->in != nullptr;
}

void drop_ticket(void *context) {
    delete static_cast<ticket *>(context);
}

} // namespace

ncclResult_t start_operation(const std::shared_ptr<member> &who,
                             const std::shared_ptr<operation> &what, cudaStream_t stream) {
    auto *t = new ticket{who, what, !captures(stream)};
    unsigned one = t->launched;
    guard held(nccl.lock);
    who->launched += one;
    held.unlock();
    int error = fake_cuda_enqueue(stream, "nccl", run_ticket, t, drop_ticket);
    if (error == 0)
        return ncclSuccess;
    held.lock();
    who->launched -= one;
    return refuse(ncclUnhandledCudaError, "the stream refused it");
}

/* Without the lock. A nonblocking communicator keeps it until it has been asked for. */
static ncclResult_t submit(const std::shared_ptr<member> &who,
                           const std::shared_ptr<operation> &what, cudaStream_t stream) {
    if (who->blocking)
        return start_operation(who, what, stream);
    guard held(nccl.lock);
    if (who->waiting)
        return refuse(ncclInvalidUsage, "the call before is still in progress");
    who->waiting = true;
    who->polls = few();
    who->pending = what;
    who->pending_stream = stream;
    return ncclInProgress;
}

static bool known(const void *memory, size_t bytes) {
    return bytes == 0 || fake_cuda_owns(memory, bytes);
}

static ncclResult_t add(ncclComm_t comm, cudaStream_t stream, const call &one) {
    guard held(nccl.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self || self->finalizing)
        return refuse(ncclInvalidArgument, "no such communicator");
    if (self->error != ncclSuccess)
        return self->error;
    if (self->revoked)
        return refuse(ncclInvalidUsage, "the communicator was revoked");
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
static ncclResult_t recorded(ncclResult_t code) {
    if (group_depth > 0 && code != ncclSuccess && group_error == ncclSuccess)
        group_error = code;
    return code;
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
    guard held(nccl.lock);
    std::shared_ptr<member> self = member_of(comm);
    held.unlock();
    if (!self)
        return recorded(refuse(ncclInvalidArgument, "no such communicator"));
    size_t bytes = count * size_of(type), total = bytes * static_cast<size_t>(self->of->nranks);
    char *own = static_cast<char *>(recv) + static_cast<size_t>(self->rank) * bytes;
    if (!known(send, bytes) || !known(recv, total) ||
        (send != own && overlap(send, bytes, recv, total)))
        return recorded(
            refuse(ncclInvalidArgument, "memory is no device's, too short, or overlaps"));
    return recorded(add(
        comm, stream,
        {ALL_GATHER, static_cast<const char *>(send), static_cast<char *>(recv), count, type, 0}));
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER();
    size_t bytes = count * size_of(type);
    if (type != ncclFloat32 || op != ncclSum)
        return recorded(refuse(ncclInvalidArgument, "the fake only adds up float32"));
    if (!known(send, bytes) || !known(recv, bytes) ||
        (send != recv && overlap(send, bytes, recv, bytes)))
        return recorded(
            refuse(ncclInvalidArgument, "memory is no device's, too short, or overlaps"));
    return recorded(add(
        comm, stream,
        {ALL_REDUCE, static_cast<const char *>(send), static_cast<char *>(recv), count, type, 0}));
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
    NCCL_ENTER();
    if (!known(send, count * size_of(type)))
        return recorded(refuse(ncclInvalidArgument, "memory is no device's, or too short"));
    return recorded(
        add(comm, stream, {SEND, static_cast<const char *>(send), nullptr, count, type, peer}));
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    NCCL_ENTER();
    if (!known(recv, count * size_of(type)))
        return recorded(refuse(ncclInvalidArgument, "memory is no device's, or too short"));
    return recorded(
        add(comm, stream, {RECV, nullptr, static_cast<char *>(recv), count, type, peer}));
}
