/* SPDX-License-Identifier: MIT
 *
 * Fake NCCL: communicators that are revoked, and those that are made of others by leaving ranks
 * out, or none.
 *
 * As the vendor's: to revoke ends what has been launched and nothing later, so what a graph
 * launches afterwards waits for its partners until an abort. A child waits for all its ranks; ranks
 * that leave out others wait for another child, and for ever. An abort of the parent ends that, and
 * then there is a child, which is of no use but must be aborted, too.
 */
#include "tests/cuda/fake_nccl.hpp"

/* Headers before 2.28.7 have none. */
extern "C" ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
extern "C" ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int nexcluded,
                                       ncclComm_t *out, ncclConfig_t *config, int flags);

enum { ABORT_FIRST = 1 };

bool busy_with_child(const member &self) {
    if (self.stopping)
        return self.launched > 0;
    return self.child && !all_came(*self.child->of);
}

void settle_child(member &self, ncclResult_t error) {
    self.stopping = false;
    if (!self.child)
        return;
    self.child->error = error;
    *self.child_out = new ncclComm{self.child};
    nccl.comms.push_back(*self.child_out);
    self.child = nullptr;
}

/* -- revoke ----------------------------------------------------------------------------------- */

static void stop(member &self) {
    self.stopping = true;
    self.pending = nullptr;
    self.of->changed.notify_all();
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
    NCCL_ENTER();
    guard held(nccl.lock);
    while (nccl.hang)
        pause_for(nccl.unhang, held, PAUSE_MS);
    std::shared_ptr<member> self = member_of(comm);
    if (!self || flags != 0 || self->finalizing || self->revoked)
        return refuse(ncclInvalidArgument, "no such communicator, or it cannot be revoked");
    stop(*self);
    self->revoked = true;
    self->error = ncclSuccess;
    self->polls = few();
    self->waiting = !self->blocking;
    while (self->blocking && busy_with_child(*self))
        pause_for(self->of->changed, held, PAUSE_MS);
    if (self->blocking)
        settle_child(*self, ncclSuccess);
    return self->blocking ? ncclSuccess : ncclInProgress;
}

/* -- children --------------------------------------------------------------------------------- */

/* The circle of the ranks that are left, made by the first of them. */
static std::shared_ptr<circle> child_of(const member &parent, const std::vector<int64_t> &key,
                                        size_t nranks) {
    std::vector<int64_t> whole = key;
    whole.push_back(static_cast<int64_t>(parent.of->id));
    std::shared_ptr<circle> found = nccl.children[whole].lock();
    if (!found || all_came(*found)) {
        found = std::make_shared<circle>();
        found->nranks = static_cast<int>(nranks);
        found->id = ++nccl.ids;
        found->members.resize(nranks);
        nccl.children[whole] = found;
    }
    return found;
}

static ncclResult_t make_child(const std::shared_ptr<member> &self,
                               const std::vector<int64_t> &excluded, ncclComm_t *out, guard &held) {
    std::vector<int> left;
    size_t place = 0;
    for (int r = 0; r < self->of->nranks; r++) {
        if (std::find(excluded.begin(), excluded.end(), r) != excluded.end())
            continue;
        place = r == self->rank ? left.size() : place;
        left.push_back(r);
    }
    auto child = std::make_shared<member>();
    child->of = child_of(*self, excluded, left.size());
    child->rank = static_cast<int>(place);
    child->device = self->device;
    child->blocking = self->blocking;
    child->of->members[place] = child;
    child->of->changed.notify_all();
    *out = nullptr;
    self->child = child;
    self->child_out = out;
    self->polls = few();
    self->waiting = !self->blocking;
    while (self->blocking && busy_with_child(*self))
        pause_for(child->of->changed, held, PAUSE_MS);
    if (self->blocking)
        settle_child(*self, ncclSuccess);
    return self->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int *excluded, int nexcluded, ncclComm_t *out,
                            ncclConfig_t *, int flags) {
    NCCL_ENTER();
    guard held(nccl.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self || !out || !excluded || nexcluded <= 0)
        return refuse(ncclInvalidArgument, "no such communicator, or nobody to exclude");
    std::vector<int64_t> list(excluded, excluded + nexcluded);
    std::sort(list.begin(), list.end());
    if (std::find(list.begin(), list.end(), self->rank) != list.end())
        return refuse(ncclInvalidArgument, "an excluded rank has come");
    if (flags & ABORT_FIRST) {
        stop(*self);
        while (self->launched > 0)
            pause_for(self->of->changed, held, PAUSE_MS);
        self->stopping = false;
    }
    if (self->error != ncclSuccess || self->waiting)
        return self->error != ncclSuccess
                   ? self->error
                   : refuse(ncclInvalidArgument, "the call before is still in progress");
    return make_child(self, list, out, held);
}

/* A communicator of all ranks in their order, as nobody asks for more. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out, ncclConfig_t *) {
    NCCL_ENTER();
    guard held(nccl.lock);
    std::shared_ptr<member> self = member_of(comm);
    if (!self || !out || self->waiting || self->error != ncclSuccess || color != 0 ||
        key != self->rank)
        return refuse(ncclInvalidArgument, "a communicator that is none, busy or lost");
    return make_child(self, {}, out, held);
}
