#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# rules.sh refuses what it should and nothing else. Each planted line gets a file of its own: those
# marked 1 in a tree where every file must be named, those marked 0 in one where none may be.
set -u

rules=$(dirname "${BASH_SOURCE[0]}")/rules.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

bad=0 planted=0
plant() { # 1: must be refused, 0: may not be; file, where % becomes a number; line
    local file=$work/$1/${2/\%/$((++planted))}
    mkdir -p "$(dirname "$file")"
    printf '/* printf() in a\n * comment: abort() */\n%s\n' "$3" >"$file"
}

plant 1 lib/base/%.c                '#include "lib/policy/b.h"'
plant 1 lib/policy/%.c              '#include "kernels/cpu/tile.h"'
plant 1 lib/policy/%.c              '#include "collectives/exchange/packet.h"'
plant 1 lib/policy/%.h              '#include "plan.h"'
plant 1 lib/policy/%.c              '# include <mpi.h>'
plant 1 kernels/cpu/%.c             '#include "collectives/exchange/packet.h"'
plant 1 kernels/cpu/%.c             '#include <immintrin.h>'
plant 1 kernels/cpu/%.c             '#include <tamis/mpi.h>'
plant 1 collectives/transport/%.c   '#include "collectives/exchange/packet.h"'
plant 1 collectives/transport/%.c   '#include "kernels/cpu/cpu.h"'
plant 1 collectives/transport/%.c   '#include <mpi.h>'
plant 1 collectives/exchange/%.c    '#include "collectives/transport/comm.h"'
plant 1 collectives/exchange/%.c    '#include "kernels/cpu/cpu.h"'
plant 1 collectives/local/%.c       '#include "collectives/exchange/packet.h"'
plant 1 collectives/pipeline/%.c    '#include "kernels/cpu/cpu.h"'
plant 1 collectives/pipeline/%.c    '#include "collectives/reducer/reducer.h"'
plant 1 collectives/energy/%.c      '#include "kernels/cpu/cpu.h"'
plant 1 collectives/energy/%.c      '#include "collectives/pipeline/pipeline.h"'
plant 1 collectives/reducer/%.c     '#include <cuda_runtime.h>'
plant 1 collectives/reducer/%.c     '#include <tamis/cuda.h>'
plant 1 collectives/reducer/%.c     '#include <nccl.h>'
plant 1 collectives/transport/%.c   '#include <cuda_runtime_api.h>'
plant 1 collectives/transport/%.c   '#include <tamis/nccl.h>'
plant 1 collectives/transport/nccl.c '#include "kernels/cuda/cuda.h"'
plant 1 collectives/transport/%.h   '#include "nccl.h"'
plant 1 collectives/transport/my_nccl.c '#include <nccl.h>'
plant 1 collectives/exchange/nccl.c '#include <nccl.h>'
plant 1 lib/base/%.h                '#include <driver_types.h>'
plant 1 kernels/cpu/%.c             '#include <cuda_fp16.h>'
plant 1 kernels/cpu/%.c             '#include <cuda.h>'
plant 1 kernels/cuda/%.cu           '#include <nccl.h>'
plant 1 kernels/cuda/%.cuh          '#include "collectives/exchange/packet.h"'
plant 1 kernels/cuda/%.cu           '    printf("x");'
plant 1 kernels/%.cu                '#include <cub/block/block_scan.cuh>'
plant 1 include/tamis/%.h           '#include <cuda_runtime_api.h>'
plant 1 include/tamis/cuda.h        '#include <nccl.h>'
plant 1 bench/%.cu                  '#include "lib/base/base.h"'
plant 1 bench/%.c                   '#include "lib/base/base.h"'
plant 1 bench/%.c                   '#include <lib/base/base.h>'
plant 1 bench/%.c                   '#include <nvml.h>'
plant 1 bench/perf/%.c              '#include "lib/policy/plan.h"'
plant 0 bench/scale/%.c             '#include "kernels/cpu/cpu.h"'
plant 1 bench/scale/%.c             '#include "kernels/cuda/cuda.h"'
plant 0 bench/scale/%.c             '#include "lib/policy/plan.h"'
plant 1 tests/unit/%.c              '#include <nvml.h>'
plant 1 examples/%.c                '#include "bench/data.h"'
plant 1 include/tamis/%.h           '#include "lib/base/base.h"'
plant 1 lib/base/%.c                '    printf("x");'
plant 1 lib/base/%.c                'exit(1);'
plant 1 lib/base/%.c                'fprintf(stdout, "x");'
plant 1 kernels/cpu/%.c             '    assert(x);'
plant 1 collectives/reducer/%.c     '    x = 1; abort();'
plant 1 lib/base/%.c                '#include <Python.h>'
plant 1 collectives/reducer/%.h     '#include <Python.h>'
plant 1 tests/unit/%.c              '#include <Python.h>'
plant 1 bench/%.c                   '# include "Python.h"'
plant 1 python/src/%.c              '#include "lib/base/base.h"'
plant 1 python/src/%.c              '#include "collectives/transport/comm.h"'
plant 1 python/src/%.c              '#include "kernels/cpu/cpu.h"'
plant 1 python/src/%.c              '#include <tamis/mpi.h>'
plant 1 python/src/%.c              '#include <mpi.h>'
plant 1 python/src/%.c              '#include <tamis/nccl.h>'
plant 1 python/src/%.c              '#include <cuda_runtime_api.h>'
plant 1 python/src/mpi_module.c     '#include <tamis/nccl.h>'
plant 1 python/src/nccl_module.c    '#include "collectives/transport/nccl_comm.h"'
plant 1 python/src/%.c              '    printf("x");'
plant 1 collectives/exchange/%.c    '#include "python/src/module.h"'

plant 0 python/src/%.c              '#include <Python.h>'
plant 0 python/src/%.c              '#include "module.h"'
plant 0 python/src/%.c              '#include <tamis/energy.h>'
plant 0 python/src/mpi_module.c     '#include <tamis/mpi.h>'
plant 0 python/src/nccl_module.c    '#include <tamis/nccl.h>'
plant 0 lib/policy/%.c              '#include "lib/base/base.h"'
plant 0 kernels/cpu/avx2.c          '#include <immintrin.h>'
plant 0 kernels/cpu/neon.c          '#include <arm_neon.h>'
plant 0 kernels/cpu/%.c             '#include "kernels/cpu/tile.h"'
plant 0 collectives/transport/mpi.c '#include <tamis/mpi.h>'
plant 0 collectives/transport/mpi_open.c '#include <tamis/mpi.h>'
plant 0 collectives/transport/nccl.c '#include <nccl.h>'
plant 0 collectives/transport/nccl_open.c '#include <cuda_runtime_api.h>'
plant 0 collectives/transport/nccl_comm.h '#include <nccl.h>'
plant 0 collectives/reducer/%.c     '#include "kernels/cpu/cpu.h"'
plant 0 collectives/reducer/%.c     '#include "kernels/cuda/cuda.h"'
plant 0 kernels/cuda/%.cu           '#include "kernels/cuda/kernel.cuh"'
plant 0 kernels/cuda/%.cuh          '#include <cub/block/block_scan.cuh>'
plant 0 kernels/cuda/%.c            '#include <cuda_runtime_api.h>'
plant 0 include/tamis/cuda.h        '#include <cuda_runtime_api.h>'
plant 0 bench/%.cu                  '#include <cub/cub.cuh>'
plant 0 bench/%.c                   '#include <nccl.h>'
plant 0 tests/cuda/%.c              '#include <cuda_runtime_api.h>'
plant 0 tests/cuda/%.cpp            '#include <tamis/nccl.h>'
plant 0 collectives/reducer/%.c     '    comm->transport->abort(self); void (*abort)(void *self);'
plant 0 lib/base/%.c                '    snprintf(text, size, "abort() or exit(%d)", 1); // exit(1)'
plant 0 lib/base/%.c                '_Static_assert(1, "x"); fprintf(stderr, "x");'
plant 0 bench/%.c                   '#include "bench/common/data.h"'
plant 0 bench/%.c                   '#include <mpi.h>'
plant 0 bench/%.c                   '    printf("x");'
plant 0 tests/unit/%.c              '#include "collectives/exchange/packet.h"'

if bash "$rules" "$work/1" >"$work/refused"; then
    echo "rules.sh exits with 0 in spite of what it found"
    bad=1
fi
for file in $(cd "$work/1" && find . -type f); do
    if ! grep -q "^${file#./}:3:" "$work/refused"; then
        echo "not refused: $(tail -n 1 "$work/1/$file") in ${file#./}"
        bad=1
    fi
done
if ! bash "$rules" "$work/0"; then
    echo "^ refused, but allowed"
    bad=1
fi
echo "$planted planted lines"
exit $bad
