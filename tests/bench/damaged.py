#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Files that are read, cut short or with a bit flipped: each is refused in words that name it, or read.

    damaged.py TRAIN INFO REPLAY SCHEMES CONVERT PROGRAM...    PROGRAM FOLDER writes logs of energy

A format with a check over all of it must be refused. One of text, or of bare numbers, may have become
another good file. No program may end by a signal or hang, and no Python by a traceback.
States of the library itself: multi.state.
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

TRAIN, INFO, REPLAY, SCHEMES, CONVERT, *PROGRAM = sys.argv[1:]
CASES = 25 if os.environ.get("TEST_FEW") else 500
DRAW = random.Random(int(os.environ.get("TEST_DRAW", "1")))
FOLDER = pathlib.Path(tempfile.mkdtemp())
ENV = dict(os.environ, OPENBLAS_NUM_THREADS="1")


def run(command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, errors="replace",
                          env=ENV, timeout=60)


def make(command):
    done = run(command)
    assert done.returncode == 0, f"{command}: {done.stderr}"


# -- good files ------------------------------------------------------------------------------------


def images():
    for name in ("train", "t10k"):
        (FOLDER / f"{name}-images-idx3-ubyte").write_bytes(
            struct.pack(">IIII", 0x803, 20, 28, 28) + DRAW.randbytes(20 * 784))
        (FOLDER / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, 20) + bytes(i % 10 for i in range(20)))
    return [TRAIN, "--quiet", "--workload", "mlp", "--data", FOLDER, "--batch", "4", "--hidden", "4",
            "--ranks", "1", "--steps", "3"]


def flight_lines():
    header = dict(record="flight", version=100, communicator=0, rank=0, ranks=1, transport="mpi", plan="4",
                  clock_ns=9 * 10**9, unix_ns=17 * 10**17, events=9)
    yield header
    for c in range(1, 9):
        for kind in ("begin", "end"):
            yield dict(record="event", at_ns=10**9 + 1000 * c, event=kind, step=c // 2, collective=c,
                       call="sum", bucket=0, bytes=400, status="TAMIS_OK")


def make_all():
    """Name, file, what reads it, whether all of it has a check."""
    train = images()
    make(train + ["--save", FOLDER / "run", "--record", FOLDER / "gradients"])
    yield "checkpoint", FOLDER / "run.rank0.state", train + ["--load", FOLDER / "run"], True
    yield "recording", FOLDER / "gradients", [SCHEMES, "--input", FOLDER / "gradients", "--steps", "3"], False

    left = FOLDER / "left"
    left.mkdir()
    flight = left / "flight-0-0-1.jsonl"
    flight.write_text("".join(json.dumps(line) + "\n" for line in flight_lines()))
    yield "flight", flight, [INFO, "--flight", left], False

    make([REPLAY, "--make-trace", FOLDER / "trace.csv", "--hours", "6"])
    model = [REPLAY, "--simulate", "--hours", "1", "--policy", "carbon-threshold", "--allow-cap"]
    yield "carbon", FOLDER / "trace.csv", model + ["--intensity", FOLDER / "trace.csv"], False
    make(model + ["--intensity", FOLDER / "trace.csv", "--json", FOLDER / "decisions"])
    verify = [REPLAY, "--log", FOLDER / "decisions", "--devices", "64"]
    yield "decisions", FOLDER / "decisions", verify + ["--policy", "carbon-threshold", "--allow-cap"], False

    logs = FOLDER / "logs"
    logs.mkdir()
    make(PROGRAM + [logs])
    log = max(logs.iterdir(), key=lambda path: path.stat().st_size)
    for form in ("--prometheus", "--csv"):
        yield f"energy {form}", log, [sys.executable, CONVERT, log, form], False


# -- damage ----------------------------------------------------------------------------------------


def damage(good):
    """Half are cut, half have one bit flipped; most of the bits in the first KiB, where headers are."""
    if DRAW.random() < 0.5:
        return good[:DRAW.randrange(len(good))], "cut"
    at = DRAW.randrange(min(1024, len(good)) if DRAW.random() < 0.7 else len(good))
    bit = DRAW.randrange(8)
    return good[:at] + bytes([good[at] ^ (1 << bit)]) + good[at + 1:], f"bit {bit} of byte {at}"


def judge(path, checked, done):
    """What is wrong with how a program ended; None: nothing."""
    if done.returncode < 0 or done.returncode > 100:
        return f"it ended by {done.returncode}"
    if "Traceback" in done.stderr:
        return "a traceback"
    if done.returncode == 0:
        return "it was read" if checked else None
    return None if path.name in done.stderr + done.stdout else "the file is not named"


def try_all(name, path, reader, checked):
    good, refused, failures = path.read_bytes(), 0, []
    make(reader)
    for _ in range(CASES):
        bad, how = damage(good)
        if bad == good:
            continue
        path.write_bytes(bad)
        done = run(reader)
        refused += done.returncode != 0
        why = judge(path, checked, done)
        if why:
            failures.append(f"{name}, {len(bad)} of {len(good)} bytes, {how}: {why}: {done.stderr[-300:]}")
    path.write_bytes(good)
    print(f"{name}: {CASES} damaged files, {refused} refused, {len(failures)} failures")
    for failure in failures[:5]:
        print(failure)
    return not failures


sys.exit(0 if all([try_all(*row) for row in make_all()]) else 1)
