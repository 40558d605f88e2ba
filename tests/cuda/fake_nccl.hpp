/* SPDX-License-Identifier: MIT
 *
 * What the files of the fake NCCL share: fake_nccl.cpp has the collectives, fake_nccl_comm.cpp the
 * communicators. One lock guards everything; streams run their operations with it.
 */
#ifndef TEST_CUDA_FAKE_NCCL_HPP
#define TEST_CUDA_FAKE_NCCL_HPP

#include "tests/cuda/fake_cuda.hpp"

#include <algorithm>
#include <nccl.h>

enum kind { ALL_GATHER, SEND, RECV };

struct call {
    kind what;
    const char *send;
    char *recv;
    size_t count;
    ncclDataType_t type;
    int peer; /* the other end */
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
extern nccl_world &nccl;

struct ncclComm {
    std::shared_ptr<member> self;
};

/** With the lock held. NULL: no communicator, or one that is gone. */
std::shared_ptr<member> member_of(ncclComm_t comm);

/** A number of polls to answer "in progress" to. With the lock held. */
unsigned few();

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
