#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch on one GPU: tamis.torch on CUDA tensors, several ranks in processes that share it.

    python3 tests/gpu/torch_ranks.py [--ranks 2] [--device cuda|cpu] [--group gloo|nccl] [CASE...]

A line of JSON for each case and rank; exit status 1 if one of them is not "ok". NCCL takes each rank
for a machine of its own (NCCL_HOSTID), joined by sockets over the loopback, so times mean nothing
with more than one rank. On the CPU the same cases run over gloo.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time

from torch_rank import DENSITY, STEPS, Rank

ONE_GPU = dict(
    NCCL_NET="Socket", NCCL_IB_DISABLE="1", NCCL_SOCKET_IFNAME="lo", NCCL_SOCKET_FAMILY="AF_INET",
    NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_NVLS_ENABLE="0", NCCL_MNNVL_ENABLE="0",
    NCCL_CUMEM_HOST_ENABLE="0", NCCL_MAX_CTAS="2", NCCL_RAS_ENABLE="0",
)
CASES = {}


def case(function):
    CASES[function.__name__.replace("_", "-")] = function
    return function


# -- the parent: one process a rank ------------------------------------------------------------


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def launch(args):
    if args.device == "cpu" and not importlib.util.find_spec("torch"):
        print(f"skipped: {sys.executable} has no torch (Debian: apt-get install python3-torch)")
        return 77
    # Ours come last: what the caller's shell says of NCCL would join ranks another way.
    common = dict(
        os.environ, **ONE_GPU, WORLD_SIZE=str(args.ranks), LOCAL_RANK="0", MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(free_port()), GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1",
    )
    common.setdefault("TAMIS_TIMEOUT_MS", "60000")
    ranks = []
    for rank in range(args.ranks):
        own = dict(common, RANK=str(rank), NCCL_HOSTID=f"tamis{rank}")
        ranks.append(subprocess.Popen([sys.executable, *sys.argv, "--child"], env=own))
    return int(any([one.wait() for one in ranks]))


# -- DistributedDataParallel -------------------------------------------------------------------


@case
def dense(rank):
    """Density 1 is what DDP does."""
    model, ddp, optimizer, state = rank.attached(density=1.0)
    rank.train(ddp, optimizer)
    other = rank.model()
    rank.train(rank.ddp(other), rank.sgd(other))
    apart = (rank.bits(model) - rank.bits(other)).abs().max().item()
    return rank.ended(model, state, apart=apart, ok=apart < 1e-5)


@case
def sgd(rank):
    model, ddp, optimizer, state = rank.attached()
    return rank.ended(model, state, loss=rank.train(ddp, optimizer))


@case
def adam(rank):
    model, ddp, optimizer, state = rank.attached(rank.adamw, clip_norm=1.0)
    return rank.ended(model, state, loss=rank.train(ddp, optimizer))


@case
def autocast(rank):
    model, ddp, optimizer, state = rank.attached()
    return rank.ended(model, state, loss=rank.train(ddp, optimizer, auto=True))


@case
def scaler(rank):
    """The host waits for each step."""
    amp = rank.torch.amp if hasattr(rank.torch.amp, "GradScaler") else None
    if amp is None and not rank.cuda:
        return dict(ok=True, skipped="this torch scales on CUDA devices only")
    made = amp.GradScaler(rank.device.type) if amp else rank.torch.cuda.amp.GradScaler()
    model, ddp, optimizer, state = rank.attached(scaler=made)
    return rank.ended(model, state, loss=rank.train(ddp, optimizer, scaler=made))


@case
def halves(rank):
    dtype = rank.torch.bfloat16
    if not rank.cuda and rank.torch.__version__ < "2":
        return dict(ok=True, skipped="gloo of this torch does not know bfloat16")
    model, ddp, optimizer, state = rank.attached(dtype=dtype)
    return rank.ended(model, state, loss=rank.train(ddp, optimizer, dtype=dtype))


@case
def micro_batches(rank):
    model, ddp, optimizer, state = rank.attached()
    return rank.ended(model, state, loss=rank.train(ddp, optimizer, micro=3))


@case
def fp4(rank):
    model, ddp, optimizer, state = rank.attached(
        lambda model: rank.adamw(model, 0.9), density=0.08, norm_matching=2, value_codec="fp4"
    )
    return rank.ended(model, state, loss=rank.train(ddp, optimizer))


@case
def resume(rank):
    """Back to an older state, the same steps give the same bits."""
    model, ddp, optimizer, state = rank.attached()
    rank.train(ddp, optimizer, 3)
    saved = state.state_dict(), {k: v.clone() for k, v in model.state_dict().items()}
    ended = []
    for _ in range(2):
        state.load_state_dict(saved[0])
        model.load_state_dict(saved[1])
        rank.train(ddp, optimizer, 3)
        ended.append(rank.bits(model))
    return rank.ended(model, state, ok=rank.torch.equal(*ended))


@case
def subgroup(rank):
    """Rank 0 attaches a group of its own, and then all ranks make another one."""
    alone = rank.dist.new_group([0])
    found = dict(transport=None)
    if rank.number == 0:
        model = rank.model()
        ddp, optimizer = rank.ddp(model, process_group=alone), rank.sgd(model)
        state = rank.tt.attach(ddp, density=DENSITY, optimizer=optimizer)
        rank.train(ddp, optimizer)
        found = dict(transport=state.comm.transport, nranks=state.comm.nranks)
        rank.settle()
        state.close()
    rank.dist.barrier(group=rank.dist.new_group(backend="gloo"))
    wanted = None if rank.number else rank.carried
    return dict(found, ok=found["transport"] == wanted)


@case
def drivers(rank):
    """A GPU drives, also where the density changes."""
    model, ddp, optimizer, state = rank.attached(density_max=0.5)
    rank.train(ddp, optimizer, 2)
    state.set_density(0.2)
    rank.train(ddp, optimizer, 2)
    expected = "device" if rank.cuda else "host"
    return rank.ended(model, state, ok=state.stats()["driver"] == expected)


# -- NaN ---------------------------------------------------------------------------------------


def broken(rank):
    model, ddp, optimizer, state = rank.attached()
    rank.train(ddp, optimizer, 2)
    before, raised = rank.bits(model), None
    try:
        for x, y in rank.batches(1):
            optimizer.zero_grad()
            (rank.loss(ddp(x), y) * float("nan")).backward()
            optimizer.step()
    except rank.tamis.Error as error:
        raised = error
    untouched = rank.torch.equal(before, rank.bits(model))
    return model, ddp, optimizer, state, raised, untouched


@case
def refused(rank):
    """A step with NaN is applied nowhere and raised: by backward(), or where a device runs the steps
    by that of the next step. Then training goes on."""
    model, ddp, optimizer, state, raised, untouched = broken(rank)
    try:
        rank.train(ddp, optimizer, 1)
    except rank.tamis.Error as error:
        raised = raised or error
    rank.train(ddp, optimizer, 2)
    told = raised is not None and raised.lost == "step" and "NaN" in str(raised)
    return rank.ended(model, state, ok=told and untouched, raised=str(raised), untouched=untouched)


@case
def refused_last(rank):
    """Nothing follows, so close() raises what was not raised yet."""
    model, _, _, state, raised, untouched = broken(rank)
    try:
        state.close()
    except rank.tamis.Error as error:
        raised = raised or error
    told = raised is not None and "NaN" in str(raised)
    same = rank.tt.replicas_identical(model)
    return dict(ok=told and untouched and same, raised=str(raised), untouched=untouched)


# -- plain loops, streams ----------------------------------------------------------------------


def loop(rank, forward=None, ends=None, **options):
    """A loop without DDP. Forward and backward on one stream, step() on another."""
    torch = rank.torch
    on = torch.cuda.stream if rank.cuda else lambda _: contextlib.nullcontext()
    model = rank.model()
    options = dict(dict(density=DENSITY), **options)
    optimizer = rank.tt.DistributedOptimizer(rank.sgd(model), model, **options)
    for x, y in rank.batches(STEPS):
        if rank.cuda and forward is not None:
            forward.wait_stream(ends)
        with on(forward):
            optimizer.zero_grad()
            loss = rank.loss(model(x), y)
            loss.backward()
        with on(ends):
            optimizer.step()
    rank.settle()
    return model, optimizer.tamis


@case
def plain(rank):
    return rank.ended(*loop(rank))


@case
def streams(rank):
    """Whatever the streams, the bits are the same."""
    usual, state = loop(rank)
    state.close()
    made = [rank.torch.cuda.Stream() if rank.cuda else None for _ in range(2)]
    rank.settle()
    model, state = loop(rank, *made)
    same = rank.torch.equal(rank.bits(usual), rank.bits(model))
    return rank.ended(model, state, ok=same, same=same)


@case
def clipped_on_streams(rank):
    """Gradients that leave in step() were made on another stream."""
    usual, state = loop(rank, clip_norm=0.5)
    state.close()
    made = [rank.torch.cuda.Stream() if rank.cuda else None for _ in range(2)]
    rank.settle()
    model, state = loop(rank, *made, clip_norm=0.5)
    same = rank.torch.equal(rank.bits(usual), rank.bits(model))
    return rank.ended(model, state, ok=same, same=same)


# -- local steps and shards --------------------------------------------------------------------


def locally(rank, kind, **options):
    model = rank.model()
    optimizer = kind(rank.sgd(model), model, steps=3, **options)
    for x, y in rank.batches(9):
        optimizer.zero_grad()
        rank.loss(model(x), y).backward()
        optimizer.step()
    row = optimizer.stats()
    with optimizer.base():
        same = rank.tt.replicas_identical(model)
    finite = bool(rank.bits(model).isfinite().all())
    out = dict(rounds=row["rounds"], identical=same, transport=optimizer.comm.transport)
    optimizer.close()
    return dict(out, ok=same and finite and row["rounds"] >= 2)


@case
def local_sgd(rank):
    return locally(rank, rank.tt.LocalSGD)


@case
def local_beside(rank):
    return locally(rank, rank.tt.LocalSGD, delay=1)


@case
def diloco(rank):
    return locally(rank, rank.tt.DiLoCo)


@case
def sparseloco(rank):
    return locally(rank, rank.tt.SparseLoCo)


# -- the run -----------------------------------------------------------------------------------


def run_one(rank, name):
    begin = time.monotonic()
    try:
        out = CASES[name](rank)
    except Exception as error:
        out = dict(ok=False, error=f"{type(error).__name__}: {error}"[:400])
    told = dict(record="torch", case=name, rank=rank.number, ranks=rank.size, device=str(rank.device))
    out = dict(told, torch=rank.torch.__version__, **out, seconds=round(time.monotonic() - begin, 2))
    print(json.dumps(out) + "\n", end="", flush=True)  # in one piece: ranks share the output
    return bool(out["ok"])


def child(args):
    rank = Rank(args)
    return int(not all([run_one(rank, name) for name in args.cases or CASES]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--group", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    args = parser.parse_args()
    unknown = [name for name in args.cases if name not in CASES]
    if unknown:
        parser.error(f"no case {unknown[0]!r}: {', '.join(CASES)}")
    return child(args) if args.child else launch(args)


if __name__ == "__main__":
    sys.exit(main())
