/* SPDX-License-Identifier: MIT
 *
 * Parameters of the device path that change its speed and no bit of its results, in one place:
 * `tests/gpu.sh sweep` compiles the library with other values of each and times them against
 * these. What each trades: docs/cuda.md, "Parameters to sweep".
 */
#ifndef TAM_CUDA_PARAMETERS_H
#define TAM_CUDA_PARAMETERS_H

/* Blocks of accumulate for each multiprocessor, which must hold their registers (updates: half of
 * them); and of every other kernel that walks the chunks. */
#ifndef TAM_PASS_RESIDENT
#define TAM_PASS_RESIDENT 4
#endif

/* Runs of the pass for each multiprocessor, at most; not under TAM_PASS_RESIDENT. Fewer: the last
 * to end keeps the others waiting longer. More: chunks of one warp, and more for collect to add
 * up. */
#ifndef TAM_PASS_RUNS
#define TAM_PASS_RUNS 32
#endif

/* Blocks per multiprocessor of the kernels of the exchange, at most. */
#ifndef TAM_EXCHANGE_BLOCKS
#define TAM_EXCHANGE_BLOCKS 8
#endif

/* Elements whose union one block builds at a time; a multiple of 8192: a word of 32 bits for each
 * thread. */
#ifndef TAM_RANGE
#define TAM_RANGE 32768
#endif

/* Elements of a piece of scheme dense; it has four buffers of 4 bytes for each. */
#ifndef TAM_DENSE_PIECE
#define TAM_DENSE_PIECE (1 << 22)
#endif

#endif
