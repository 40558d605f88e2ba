#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How people train with PyTorch, in many small scripts: each by 2 ranks, sparse beside dense.

    PYTHONPATH=build/release/python OMP_NUM_THREADS=1 python3 tests/explore/scripts/run.py [WORD...]

Runs the scenarios whose names hold a word, or all. Each prints a line: its class, its name, and
what was seen. The classes:

    right     replicas are identical, and the loss went down as in the dense run
    refused   an error or a warning says so in a sentence of the library's
    torch     torch itself refuses it, or does not have it
    silent    wrong without a word
    hang      a wait that ended by its deadline, or not at all
    unclear   an error that the scenario does not expect, or whose words do not help

--broken has ranks exchange nothing: then no scenario that compares replicas may be right.
"""

import datetime
import importlib
import json
import logging
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings

import torch
import torch.distributed as dist

import scene
from scene import SAID, SCENARIOS, Absent, Wrong, break_all

# The order of the table.
for _name in (
    "optimizers",
    "own_optimizers",
    "loops",
    "loops_more",
    "rates",
    "checkpoints",
    "checkpoints_more",
    "models",
    "models_more",
    "values",
    "flow",
    "flow_more",
    "dropped",
    "without_ddp",
):
    importlib.import_module(_name)
LIMIT_S = 90
# Sentences that say what is wrong, and what to do.
SENTENCES = (
    "give attach the optimizer that is inside",
    "a gradient was None on one rank alone",
    "the optimizer's state is not the same on all ranks",
    "the learning rate is",
    "loads only what is there",
    "let each rank save its own",
)


def kind_of(error):
    """The class of an exception that a scenario let through."""
    words = f"{type(error).__name__}: {error}"
    if isinstance(error, Absent):
        return "torch", str(error)
    if isinstance(error, Wrong):
        return "silent", str(error)
    if any(sentence in words for sentence in SENTENCES):
        return "refused", words
    if getattr(error, "status", "") == "TAMIS_E_TIMEOUT":
        return "hang", words
    return "unclear", words


def run_rank(name, rank, store, pipe):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2, timeout=limit)
    listener = logging.Handler(logging.WARNING)
    listener.emit = lambda record: SAID.append(record.getMessage())
    logging.getLogger("tamis").addHandler(listener)
    logging.getLogger("tamis").propagate = False
    warnings.simplefilter("always")
    warnings.showwarning = lambda message, *_, **__: SAID.append(str(message))
    if scene.BROKEN:
        break_all()
    try:
        found = SCENARIOS[name]()
    except BaseException as error:  # torch's distributed checkpoints raise one that is no Exception
        found = kind_of(error)
        if "-v" in sys.argv:
            traceback.print_exc()
    os.write(pipe, json.dumps(found).encode()[:60000])


def run(name):
    """Both ranks, each a process of its own. Returns the worse of their verdicts."""
    folder = tempfile.mkdtemp()
    rows = []
    for rank in range(2):
        ends = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                if "-v" not in sys.argv:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                run_rank(name, rank, os.path.join(folder, "store"), ends[1])
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(ends[1])
        rows.append([pid, ends[0]])
    end, found = time.monotonic() + LIMIT_S, []
    for pid, pipe in rows:
        while time.monotonic() < end and os.waitpid(pid, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
        try:
            os.set_blocking(pipe, False)
            found.append(json.loads(os.read(pipe, 60000)))
        except (BlockingIOError, ValueError):
            found.append(["hang" if time.monotonic() >= end else "unclear", "a process that died"])
            if time.monotonic() >= end:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        os.close(pipe)
    order = ["silent", "hang", "unclear", "refused", "torch", "right"]
    return min(found, key=lambda one: order.index(one[0]))


def preload():
    """What DDP and optimizers would import in each process."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    for name in ("_dynamo", "_inductor", "distributed.checkpoint.state_dict", "optim.swa_utils"):
        try:
            importlib.import_module("torch." + name)
        except Exception:
            pass


def main():
    preload()
    scene.BROKEN = "--broken" in sys.argv
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    names = [n for n in SCENARIOS if not words or any(word in n for word in words)]
    counts = {}
    for name in names:
        kind, text = run(name)
        counts[kind] = counts.get(kind, 0) + 1
        text = " ".join(text.split())
        print(f"{kind:8} {name}: {text[: 400 if kind in ('unclear', 'silent', 'hang') else 110]}")
        sys.stdout.flush()
    words = ", ".join(f"{n} {kind}" for kind, n in sorted(counts.items()))
    print(f"{len(names)} scenarios: {words}")
    return 1 if set(counts) & {"silent", "hang", "unclear"} else 0


if __name__ == "__main__":
    sys.exit(main())
