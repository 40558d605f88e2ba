#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Bad cables between four emulated hosts, each with one rank, over MPI and TCP.

    links.py [--full] [--seed N] FOLDER CLUSTER_SH CABLE

FOLDER holds the programs of tests/faults; CLUSTER_SH and CABLE are bench/cluster/cluster.sh and the
program of cable.c. Exit 77 where hosts are not permitted.

    lossy   a cable loses 1 % or 5 % of what a host sends, or everything comes 100 ms later
    blink   nothing passes for 0.3 s, or for longer than the deadline
    down    a cable passes nothing from some call of some rank on; mute, deaf: in one direction.
            Nobody is told: no connection is ever reset

What may come of it is what sweep.py says: by the deadline and one second each rank returns, with a
right result or with a sentence that names a rank; its state can be saved and loaded. After a blink
all go on over a new communicator, with nothing missing; after a cable that stays down a second job
goes on from the newest step that all have saved, with the bits of a run without a fault. The one
second does not include time in which a rank could run but had no core (attempt_starved_s).
"""
import argparse
import collections
import glob
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

import sweep

HOSTS = sweep.RANKS
PATIENT_MS = 60000  # of jobs in which packets are lost, but none for ever
WEATHER = {"1 % lost": "1 0", "5 % lost": "5 0", "100 ms late": "0 100"}
BLINKS_MS = [300, sweep.DEADLINE_MS + 500]
CALLS = ["Isend", "Irecv", "Testsome"]
# Four ranks that poll sockets and yield, on two cores that others want too, starve all threads of a
# Linux 6.18 kernel for a minute (rcu_preempt, workqueues): the whole machine stands still. In
# sessions of their own (autogroup) they did so for minutes even without yielding.
NO_YIELD = ["--mca", "mpi_yield_when_idle", "0"]
PERFECT = "all from 0 0\nall to 0 0\n"


def end_job(mark):
    """End mpirun and all that it started, on all hosts: each has the mark in its environment."""
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if mark.encode() in file.read().split(b"\0"):
                    os.kill(int(path.split("/")[2]), signal.SIGKILL)
        except OSError:
            pass


class Hosts(sweep.Runner):
    """Jobs over the hosts of this cluster."""

    def __init__(self, asked, scratch):
        super().__init__(asked.folder, [asked.cluster, "run"], scratch)
        self.control = os.path.join(scratch, "control")
        self.weather = PERFECT
        os.mkfifo(self.control)
        self.cables = subprocess.Popen([asked.cluster, "cables", asked.cable, self.control])

    def tell(self, lines):
        with open(self.control, "w", encoding="utf-8") as control:
            control.write(lines)

    def launch(self, command, settings, said, out):
        """The weather changes when all ranks are there. Where a cable stays down the launcher would
        wait for ever: such a job ends when each rank has said its word."""
        settings = dict(settings, CABLES=self.control, TMPDIR=self.scratch, LINKS_JOB=out)
        single = command[-1] == "single"
        job = subprocess.Popen(command[:4] + NO_YIELD + command[4:], env=settings, stdout=said,
                               stdin=subprocess.DEVNULL, stderr=said)
        told = False
        while job.poll() is None:
            files = [f"{out}.{rank}" for rank in range(HOSTS)]
            if not told and all(map(os.path.exists, files)):
                self.tell(self.weather)
                told = True
            if single and all(sweep.lines_of(out, rank) for rank in range(HOSTS)):
                break
            time.sleep(0.02)
        end_job(f"LINKS_JOB={out}")
        job.wait()
        self.tell(PERFECT)


class Links:
    def __init__(self, hosts, full, seed):
        self.hosts, self.full, self.begin_s = hosts, full, time.monotonic()
        self.random = random.Random(seed)
        self.table = collections.defaultdict(collections.Counter)
        self.slowest_s, self.bad = 0.0, 0

    def enter(self, kind, what, verdict, why, lines):
        self.table[kind][verdict] += 1
        if kind not in WEATHER:
            self.slowest_s = max([self.slowest_s] + [x.get("slowest_s", 0) for x in lines if x])
        if verdict.isupper():
            self.bad += 1
            print(f"{verdict}: {kind}: {what}: {why}\n{self.hosts.said}", flush=True)

    # A run over perfect cables, which also tells how often each call is made.
    def count(self, configs):
        found = self.hosts.run("usual", "linear", [f"{c} -" for c in configs], PATIENT_MS)
        self.calls = {}
        for config, lines in zip(configs, found):
            if None in lines or any(x.get("status") != "TAMIS_OK" or x["wrong"] for x in lines):
                sys.exit(f"{config} without a fault: {lines}\n{self.hosts.said}")
            self.calls[config] = {call: min(x[call] for x in lines) for call in CALLS}

    def draw(self, action, argument):
        config = self.random.choice(list(self.calls))
        call = self.random.choice(CALLS)
        most = self.calls[config][call]
        # Open MPI never repeats a connection that fails as it is made: they are there in the second
        # half, and a job whose cable comes back can go on.
        nth = self.random.randint(most // 2 + 1 if argument else 1, most)
        return sweep.Case("usual", "linear", config, call, self.random.randrange(HOSTS), nth,
                          action, argument)

    def settle(self, kind, what, attempt):
        """Deadlines take no account of a machine that stands still: such a case is tried again."""
        for _ in range(3):
            verdict, why, lines = attempt()
            stalled = [x for x in lines if not x or x["stalled_s"] > 0.5]
            if not verdict.isupper() or verdict == "WRONG" or not stalled:
                break
            print(f"again, for the machine stood still: {verdict}: {kind}: {what}", flush=True)
        self.enter(kind, what, verdict, why, lines)

    def lossy(self, name, config):
        self.hosts.weather = f"all from {WEATHER[name]}\n"
        lines = self.hosts.run("usual", "linear", [f"{config} -"], PATIENT_MS)[0]
        self.hosts.weather = PERFECT
        if None in lines:
            return "NO WORD", str(lines), lines
        if any("hang" in x for x in lines):
            return "HANG", str(lines), lines
        return *sweep.judge_lines(None, lines, PATIENT_MS), lines

    def blinks(self, case):
        text = f"{case.config} {sweep.fault_of(case)}"
        lines = self.hosts.run("usual", "linear", [text])[0]
        return *sweep.judge(case, lines), lines

    def stays(self, case):
        """A job that ends, and one that goes on from its files."""
        out = os.path.join(self.hosts.scratch, f"stays{next(self.hosts.numbers)}")
        lines = self.hosts.run("usual", "linear", [f"{case.config} {sweep.fault_of(case)}"],
                               mode="single", out=out)[0]
        verdict, why = sweep.judge(case, lines)
        if verdict.isupper():
            return verdict, why, lines
        after = self.hosts.run("usual", "linear", [f"{case.config} -"], PATIENT_MS, mode="resume",
                               out=out)[0]
        if None in after or any(x.get("status") != "TAMIS_OK" or x["wrong"] or x["broken"]
                                for x in after):
            return "NOT GONE ON", str(after), after
        return verdict, why, lines

    def run(self):
        configs = sweep.CONFIGS if self.full else ["tamis", "dense", "oktopk"]
        self.count(configs)
        for name, config in itertools.product(WEATHER, configs):
            self.settle(name, config, lambda: self.lossy(name, config))
        number = 5 if self.full else 1
        for action, ms in itertools.product(["down", "mute", "deaf"] * number, BLINKS_MS + [0]):
            case = self.draw(action, ms)
            self.settle(f"{action} {ms / 1000} s" if ms else action, sweep.repeat(case),
                        lambda: self.blinks(case) if case.argument else self.stays(case))
        self.show()
        return 1 if self.bad else 0

    def show(self):
        verdicts = sorted({v for row in self.table.values() for v in row})
        print(f"{'cable':>14}" + "".join(f"{v:>12}" for v in verdicts))
        for kind, row in self.table.items():
            print(f"{kind:>14}" + "".join(f"{row[v]:>12}" for v in verdicts))
        done = sum(sum(row.values()) for row in self.table.values())
        print(f"slowest call at a deadline of 1 s: {self.slowest_s:.2f} s; in "
              f"{time.monotonic() - self.begin_s:.0f} s")
        print(f"{done - self.bad} passed, {self.bad} failed")


def main():
    options = argparse.ArgumentParser()
    options.add_argument("folder")
    options.add_argument("cluster")
    options.add_argument("cable")
    options.add_argument("--full", action="store_true", help="all configs; 10 minutes")
    options.add_argument("--seed", type=int, default=20261126)
    asked = options.parse_args()
    if "CLUSTER_HOSTS" not in os.environ:
        able = subprocess.run([asked.cluster, "check"], stdin=subprocess.DEVNULL, check=False)
        if able.returncode != 0:
            return able.returncode
        os.execv(asked.cluster, [asked.cluster, "with", str(HOSTS), "none", sys.executable,
                                 *sys.argv])
    with tempfile.TemporaryDirectory() as scratch:
        hosts = Hosts(asked, scratch)
        try:
            return Links(hosts, asked.full, asked.seed).run()
        finally:
            hosts.cables.kill()
            hosts.cables.wait()


if __name__ == "__main__":
    sys.exit(main())
