/* SPDX-License-Identifier: MIT
 *
 * What lies between the ranks of a communicator: NVLink, PCIe or a network. All ranks take the
 * slowest that any of them has, for buckets are planned for it, and bits depend on buckets. Nothing
 * is timed: two runs on the same machines find the same, while the same ports of their networks are
 * up.
 *
 * Two GPUs have NVLink between them if their atomics work on each other's memory, which PCIe does
 * not give them (cudaDevP2PAttrNativeAtomicSupported). A GPU that this process may not see, as
 * CUDA_VISIBLE_DEVICES says, is taken to be behind PCIe.
 */
#include "collectives/transport/nccl_comm.h"

#include "lib/base/host.h"
#include "lib/base/nic.h"

/* The latter are bandwidths of one GPU in one direction: that of an A100's NVLink; of PCIe 4.0;
 * of what a cloud's machine has at least. A bucket takes a device some 60 us beside its messages
 * (docs/cuda.md). */
enum { NVLINK, PCIE, NETWORK };
static const struct {
    const char *name;
    tam_usual_link usual;
} links[] = {
    [NVLINK] = {"NVLink", {.latency_us = 10.0, .gbit = 2400.0, .bucket_us = 60.0}},
    [PCIE] = {"PCIe", {.latency_us = 20.0, .gbit = 200.0, .bucket_us = 60.0}},
    [NETWORK] = {"a network", {.latency_us = 20.0, .gbit = 25.0, .bucket_us = 60.0}},
};

/* What all ranks learn of each other. */
typedef struct location {
    uint64_t host;
    char device[24]; /* its PCI address */
} location;

/* What a rank has to others. */
typedef struct finding {
    uint32_t link, padding;
    double gbit; /* of a network */
} finding;

static uint32_t link_to(const tam_nccl *self, const char *address) {
    int device = -1, atomics = 0;
    cudaError_t code = cudaDeviceGetByPCIBusId(&device, address);
    if (code == cudaSuccess && device == self->device)
        return NVLINK; /* no slower than that */
    if (code == cudaSuccess)
        code = cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported,
                                         self->device, device);
    if (code != cudaSuccess)
        (void)cudaGetLastError(); /* no harm: CUDA would tell it to the caller */
    return code == cudaSuccess && atomics ? NVLINK : PCIE;
}

static finding find_slowest(const tam_nccl *self, const location *at) {
    finding own = {.link = NVLINK};
    uint64_t host = at[self->rank].host;
    uint32_t sharing = 0; /* this host's network */
    for (uint32_t r = 0; r < self->nranks; r++) {
        bool near = at[r].host == host;
        uint32_t link = near ? link_to(self, at[r].device) : NETWORK;
        own.link = link > own.link ? link : own.link;
        sharing += near;
    }
    double gbit = own.link == NETWORK ? tam_nic_gbit("/sys") : 0.0;
    own.gbit = gbit > 0.0 ? gbit / sharing : links[own.link].usual.gbit;
    return own;
}

tamis_status tam_nccl_find_link(tam_nccl *self, tam_call *call) {
    const void *received;
    location own = {.host = tam_host_id()};
    cudaError_t code = cudaDeviceGetPCIBusId(own.device, sizeof own.device, self->device);
    if (code != cudaSuccess)
        return tam_nccl_cuda_failed(self, code, "cudaDeviceGetPCIBusId");
    TAM_TRY(tam_nccl_gather_piece(self, &own, sizeof own, &received, call));
    finding mine = find_slowest(self, received), all = mine;
    TAM_TRY(tam_nccl_gather_piece(self, &mine, sizeof mine, &received, call));
    for (uint32_t r = 0; r < self->nranks; r++) {
        const finding *theirs = (const finding *)received + r;
        all.link = theirs->link > all.link ? theirs->link : all.link;
        all.gbit = theirs->gbit < all.gbit ? theirs->gbit : all.gbit;
    }
    if (all.link > NETWORK)
        return tam_fail(TAMIS_E_PROTOCOL,
                        "rank %u: a rank says that link %u is between the others and it",
                        self->rank, all.link);
    self->usual = links[all.link].usual;
    self->usual.gbit = all.gbit;
    tam_log(TAM_INFO, "rank %u: between ranks is %s, of %g Gbit/s for each", self->rank,
            links[all.link].name, all.gbit);
    return TAMIS_OK;
}

const tam_usual_link *tam_nccl_usual(const void *arg) {
    return &((const tam_nccl *)arg)->usual;
}
