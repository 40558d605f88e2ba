/* SPDX-License-Identifier: MIT
 *
 * What the files of the fake NCCL share: fake_nccl.cpp has the collectives, fake_nccl_comm.cpp the
 * communicators, fake_nccl_child.cpp those made of others. One lock guards everything; streams run
 * their operations with it.
 */
#ifndef TEST_CUDA_FAKE_NCCL_HPP
#define TEST_CUDA_FAKE_NCCL_HPP

#include "tests/cuda/fake_cuda.hpp"

#include <algorithm>
#include <nccl.h>

enum kind { ALL_GATHER, ALL_REDUCE, SEND, RECV };

struct call {
    kind what;
    const char *send;
    char *recv;
    size_t count;
    ncclDataType_t type;
    int peer; /* the other end */
};
using operation = std::vector<call>;

/* The rendezvous of the ranks for one operation. */
struct rendezvous {
    std::vector<const operation *> brought;
    int came = 0, left = 0;
    bool done = false;
};

struct member; /* a rank */

/** What the ranks of one communicator share. */
struct circle {
    int nranks;
    uint64_t id;
    std::vector<std::shared_ptr<member>> members;
    std::map<uint64_t, rendezvous> operations;
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
    unsigned launched = 0; /* not yet run; what a graph launches is not counted */
    bool stopping = false; /* operations end at once, until none is launched */
    bool revoked = false;
    std::shared_ptr<member> child; /* being made */
    ncclComm_t *child_out = nullptr;
};

/* One lock, and never destroyed: threads of streams use them to the end. */
struct nccl_world {
    std::mutex lock;
    std::map<uint64_t, std::weak_ptr<circle>> circles;
    std::map<std::vector<int64_t>, std::weak_ptr<circle>> children; /* that wait for ranks */
    std::vector<ncclComm *> comms;
    uint64_t ids = 0;
    int version = NCCL_VERSION_CODE;
    bool hang = false;
    bool flips = false; /* once, in the next all-gather */
    int flip_from = 0, flip_to = 0;
    size_t flip_bit = 0;
    unsigned flip_message = 0; /* messages up to the one that is hit; 0: none will be */
    std::condition_variable unhang;
    uint64_t random = 88172645463325252ull;
};
extern nccl_world &nccl;

struct ncclComm {
    std::shared_ptr<member> self;
};

/** With the lock held. NULL: no communicator, or one that is gone. */
std::shared_ptr<member> member_of(ncclComm_t comm);

/** A number of polls to answer "in progress" to. With the lock held. */
unsigned few();

/** Whether all ranks have come. */
bool all_came(const circle &c);

/** No longer of its circle. */
void leave(const std::shared_ptr<member> &self);

/** Whether a revocation, or the making of a child, is still under way. With the lock held. */
bool busy_with_child(const member &self);

/** It is not any more. @param error  of the child that could not be made, which then exists */
void settle_child(member &self, ncclResult_t error);

/** Remember the words for ncclGetLastError. @return the error */
ncclResult_t refuse(ncclResult_t error, const char *words);

/** Enqueue an operation of one rank. Without the lock. */
ncclResult_t start_operation(const std::shared_ptr<member> &who,
                             const std::shared_ptr<operation> &what, cudaStream_t stream);

enum { PAUSE_MS = 20 }; /* between looks at what may have changed */

/** Begins every function: counts it and returns early if it must fail. */
#define NCCL_ENTER()                                                                               \
    do {                                                                                           \
        int entered_ = fake_cuda_enter(__func__);                                                  \
        if (entered_)                                                                              \
            return refuse(static_cast<ncclResult_t>(entered_), "made to fail");                    \
    } while (0)

#endif
