# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: MIT
#
# Sourced by tests/gpu.sh in a bundle ($build): the libraries of the bundle, and NCCL: the machine's
# own if it has one, for that knows the machine, else the bundle's.
# PyTorch has libraries of its own: it gets only what it lacks.
torch_libraries=$build/torch${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p "$build/torch"
cp "$build"/lib/libxxhash.so.0 "$build"/lib/libgomp.so.1 "$build/torch/" 2>/dev/null
export LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

find_nccl() { # prints a folder
    local beside="import importlib.util as u; s = u.find_spec('nvidia.nccl'); \
print(list(s.submodule_search_locations)[0] + '/lib' if s else '')"
    ldconfig -p 2>/dev/null | sed -n 's|.*libnccl\.so\.2 .*=> \(/.*\)/[^/]*$|\1|p' | head -n 1
    python3 -c "$beside" 2>/dev/null
}
nccl=$(find_nccl | grep . | head -n 1)
if [ -z "$nccl" ] && [ -e "$build/lib/nccl/libnccl.so.2.gz" ]; then
    nccl=$build/lib/nccl
    [ -e "$nccl/libnccl.so.2" ] || gunzip -k "$nccl/libnccl.so.2.gz"
fi
[ -z "$nccl" ] || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$nccl
[ ! -e COMMIT ] || commit=$(cat COMMIT)
