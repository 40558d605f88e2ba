/* SPDX-License-Identifier: MIT
 *
 * Fake NCCL: communicators, from their making to their end, and what they say meanwhile.
 *
 * A nonblocking communicator enqueues a call not before somebody has been told, by
 * ncclCommGetAsyncError, that it is no longer in progress.
 */
#include "tests/cuda/fake_nccl.hpp"

nccl_world &nccl = *new nccl_world();

unsigned few() {
    nccl.random ^= nccl.random << 13;
    nccl.random ^= nccl.random >> 7;
    nccl.random ^= nccl.random << 17;
    return static_cast<unsigned>(nccl.random >> 32) % 3;
}

std::shared_ptr<member> member_of(ncclComm_t comm) {
    auto it = std::find(nccl.comms.begin(), nccl.comms.end(), comm);
    return it == nccl.comms.end() ? nullptr : comm->self;
}

/* -- words ------------------------------------------------------------------------------------ */

static thread_local char last_words[160];

ncclResult_t refuse(ncclResult_t error, const char *words) {
    snprintf(last_words, sizeof last_words, "fake nccl: %s", words);
    return error;
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

/* -- making and ending ------------------------------------------------------------------------ */

ncclResult_t ncclGetVersion(int *version) {
    NCCL_ENTER();
    guard held(nccl.lock);
    *version = nccl.version;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *out) {
    NCCL_ENTER();
    guard held(nccl.lock);
    memset(out, 0, sizeof *out);
    uint64_t id = ++nccl.ids;
    memcpy(out->internal, &id, sizeof id);
    return ncclSuccess;
}

/* The circle of this id, made by the first to come. */
static std::shared_ptr<circle> circle_of(const ncclUniqueId &id, int nranks) {
    uint64_t number;
    memcpy(&number, id.internal, sizeof number);
    std::shared_ptr<circle> found = nccl.circles[number].lock();
    if (!found) {
        found = std::make_shared<circle>();
        found->nranks = nranks;
        found->id = ++nccl.ids;
        found->members.resize(static_cast<size_t>(nranks));
        nccl.circles[number] = found;
    }
    return found;
}

bool all_came(const circle &c) {
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
    guard held(nccl.lock);
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
    nccl.comms.push_back(*out);
    c->changed.notify_all();
    while (self->blocking && !all_came(*c))
        pause_for(c->changed, held, PAUSE_MS);
    return self->blocking ? ncclSuccess : ncclInProgress;
}

static void forget(ncclComm_t comm) {
    nccl.comms.erase(std::find(nccl.comms.begin(), nccl.comms.end(), comm));
    delete comm;
}

/* The circle holds its members and they hold it: cut when the last of them has gone. */
void leave(const std::shared_ptr<member> &self) {
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
    guard held(nccl.lock);
    while (nccl.hang)
        pause_for(nccl.unhang, held, PAUSE_MS);
    std::shared_ptr<member> self = member_of(comm);
    if (!self)
        return refuse(ncclInvalidArgument, "no such communicator");
    std::shared_ptr<circle> c = self->of; /* outlives its members */
    if (self->child)
        settle_child(*self, ncclInternalError);
    leave(self);
    while (self->under_way > 0)
        pause_for(c->changed, held, PAUSE_MS);
    forget(comm);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    NCCL_ENTER();
    guard held(nccl.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self || self->waiting)
        return refuse(ncclInvalidArgument, "no such communicator, or a call is in progress");
    if (self->revoked)
        return refuse(ncclInvalidUsage, "the communicator was revoked");
    self->finalizing = true;
    while (self->blocking && self->under_way > 0)
        pause_for(self->of->changed, held, PAUSE_MS);
    self->waiting = !self->blocking;
    self->polls = few();
    return self->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    NCCL_ENTER();
    guard held(nccl.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self)
        return refuse(ncclInvalidArgument, "no such communicator");
    std::shared_ptr<circle> c = self->of;
    for (int tries = 0; self->under_way > 0; tries++) {
        if (tries > 15000) {
            fprintf(stderr, "fake nccl: ncclCommDestroy waits for ever for its operations\n");
            abort();
        }
        pause_for(c->changed, held, PAUSE_MS);
    }
    leave(self);
    forget(comm);
    return ncclSuccess;
}

/* Answers "in progress" a few times. Then what was called is enqueued. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *out) {
    NCCL_ENTER();
    guard held(nccl.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self)
        return refuse(ncclInvalidArgument, "no such communicator");
    *out = self->error;
    if (self->error != ncclSuccess || !self->waiting)
        return ncclSuccess;
    *out = ncclInProgress;
    bool busy = self->finalizing ? self->under_way > 0
                : self->revoked  ? busy_with_child(*self)
                                 : busy_with_child(*self) || !all_came(*self->of);
    if (busy || self->polls > 0) {
        self->polls -= self->polls > 0;
        return ncclSuccess;
    }
    std::shared_ptr<operation> pending = std::move(self->pending);
    self->waiting = false;
    *out = ncclSuccess;
    settle_child(*self, ncclSuccess);
    cudaStream_t stream = self->pending_stream;
    held.unlock();
    if (pending)
        *out = start_operation(self, pending, stream);
    return ncclSuccess;
}

/* -- for tests -------------------------------------------------------------------------------- */

void fake_nccl_hang_abort(int on) {
    guard held(nccl.lock);
    nccl.hang = on != 0;
    nccl.unhang.notify_all();
}

void fake_nccl_flip_message(unsigned nth, int from, int to, size_t bit) {
    guard held(nccl.lock);
    nccl.flip_message = nth;
    nccl.flip_from = from;
    nccl.flip_to = to;
    nccl.flip_bit = bit;
}

int fake_nccl_flipped(void) {
    guard held(nccl.lock);
    return nccl.flip_message == 0;
}

void fake_nccl_flip(int from, int to, size_t bit) {
    guard held(nccl.lock);
    nccl.flips = true;
    nccl.flip_from = from;
    nccl.flip_to = to;
    nccl.flip_bit = bit;
}

void fake_nccl_version(int version) {
    guard held(nccl.lock);
    nccl.version = version ? version : NCCL_VERSION_CODE;
}

unsigned fake_nccl_comms(void) {
    guard held(nccl.lock);
    return static_cast<unsigned>(nccl.comms.size());
}
