/* SPDX-License-Identifier: MIT
 *
 * A machine for nvcc's PTX on a CPU, in place of the fibers of emulate.cpp:
 *
 *     assemble.py       PTX -> program: names are places in the registers of a warp
 *     program.cpp       reads it, finds the kernel that the host launches
 *     operations.cpp    what an instruction does to the lanes of a warp that are at it
 *     watch.cpp         who touched a word when: races, order of memory, bounds
 *     machine.cpp       blocks one after another, warps in turn, lanes together until they part
 *
 * EMULATE_PTX names the program; without it the sources run. The order of blocks, warps and
 * lanes is that of TAMIS_EMULATE_ORDER. Whatever a kernel may not do ends the process with the
 * line of the PTX: misaligned or foreign memory, `.sync` that some lanes do not reach, a barrier
 * that some threads do not reach, shared memory that nobody wrote, two accesses that nothing
 * orders.
 * Registers hold what an earlier warp left, 0xC3 at first; shared memory begins as 0xA7.
 */
#ifndef TEST_CUDA_PTX_MACHINE_HPP
#define TEST_CUDA_PTX_MACHINE_HPP

#include "kernels/cuda/view.h"
#include <cstdint>
#include <string>
#include <vector>

namespace ptx {

enum : uint32_t { LANES = 32, THREADS = TAM_BLOCK_THREADS, WARPS = THREADS / LANES, ALL = ~0u };

/* Places that every program knows, see assemble.py. */
enum : uint32_t { TID = 0, LANEID = 128, CTAID = 256, NCTAID = 384, NTID = 512, PARAMETERS = 640 };

/* -- programs --------------------------------------------------------------------------------- */

struct lanes;
struct instruction;
using operation = void (*)(lanes &, const instruction &);

/* What the scheduler has to know; the rest is PLAIN. */
enum kind { PLAIN, BRANCH, LEAVE, AT_WARP, AT_BLOCK };

struct instruction {
    operation run; /* AT_WARP and AT_BLOCK: once all lanes, or threads, are there */
    ptx::kind kind;
    std::string name;
    uint32_t line;
    int32_t guard;
    std::vector<int64_t> operand;
};

struct parameter {
    size_t offset, bytes;
};

struct constant {
    uint32_t place, bytes;
    uint64_t value;
};

struct kernel {
    std::string name;
    size_t register_bytes, shared_bytes, local_bytes, parameter_bytes;
    std::vector<parameter> parameters;
    std::vector<constant> constants;
    std::vector<instruction> code;
    uint64_t launches;
};

/** NULL: no program is to be run. */
kernel *find_kernel(const void *host_function);

/** @return false: there is no such instruction */
bool find_operation(instruction *i);

/* -- who touched what ------------------------------------------------------------------------- */

enum how { READ, WRITE, ATOMIC, STRONG_READ, STRONG_WRITE, CONSTANT_READ };

/** A launch or a block begins; shared memory of the block is as if never written. */
void watch_launch();
void watch_block(uint32_t block, uint64_t shared_bytes);

/** Every thread of the block has arrived; or those of a warp. */
void watch_barrier();
/** __threadfence of a thread. */
void watch_fence(uint32_t thread);

/** @return NULL, or what is wrong */
const char *watch_global(uint64_t at, size_t bytes, how what, uint32_t thread);
const char *watch_shared(uint64_t offset, size_t bytes, how what, uint32_t thread);

/* -- the machine ------------------------------------------------------------------------------ */

/** The lanes of a warp that execute an instruction. */
struct lanes {
    uint8_t *registers;
    uint8_t *shared, *local; /* local: of lane 0; the others' follow */
    size_t shared_bytes, local_bytes;
    uint32_t mask, first; /* number of lane 0 in the block */
    uint32_t turn;        /* lane l acts as number l ^ turn */
    uint32_t votes;       /* of the block, at a barrier that counts */
};

/** Print what is wrong with the instruction that is executed, and abort. */
[[noreturn]] void fail(const char *what, uint32_t thread);

} // namespace ptx

#endif
