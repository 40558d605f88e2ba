#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""One fault in one MPI call of one rank, many times over: what may come of it, and what may not.

    sweep.py [--full | --cases N] [--singles N] [--seed N] [--jobs N] FOLDER MPIRUN
    sweep.py --repeat "PROGRAM PLAN CONFIG FAULT" FOLDER MPIRUN

FOLDER holds the programs of tests/faults, MPIRUN is tests/support/mpirun.sh. Faults are those of
shim.h, configs those of configs.c; the plan is TAMIS_PLAN. Cases are drawn by a fixed seed, every
action and call equally often.

Faults after which MPI goes on are tried many in a job, each over a communicator of its own, and all
ranks then go on from their saved states: --cases of them, or with --full all there are, which takes
hours. A rank that is killed or stopped, or late by more than the deadline, ends its job: --singles.

A case is right if every rank that is left returned by the deadline and one second, every failure
has a sentence that names a rank, no rank that reported success has a wrong result, what was not
sent is still there, and the state could be saved, loaded and gone on from. Everything else is
printed with the command that repeats it. The last line is "N passed, N failed".
"""
import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time

RANKS = 4
DEADLINE_MS = 1000
BATCH = 40  # a lost communicator keeps its memory
PROGRAMS = ["usual", "small"]
PLANS = ["linear", "2x2"]
with open(os.path.join(os.path.dirname(__file__), "configs.c"), encoding="utf-8") as table:
    CONFIGS = re.findall(r'^    {"([^"]+)"', table.read(), re.MULTILINE)
SHORT_MS = 30
LONG_MS = DEADLINE_MS + 300
# Actions by call: those after which MPI goes on, and those that end the job. Creation duplicates
# the communicator; an error there leaves a duplicate that never comes.
ACTIONS = {
    "Isend": ["error", "delay", "flip", "cut", "longer", "drop", "double"],
    "Irecv": ["error", "delay"],
    "Testsome": ["error", "status", "delay"],
    "Get_count": ["error"],
}
SINGLE = {
    "Isend": ["kill", "stop", "long"],
    "Irecv": ["kill", "stop"],
    "Testsome": ["kill", "stop", "long"],
    "Comm_idup": ["error", "kill", "stop", "long"],
    "Test": ["error", "kill", "stop", "long"],
}

Case = collections.namedtuple("Case", "program plan config call rank nth action argument")


def fault_of(case):
    action, argument = case.action, case.argument
    if action in ("delay", "long"):
        action, argument = "delay", SHORT_MS if action == "delay" else LONG_MS
    return f"{case.call}:{case.rank}:{case.nth}:{action}:{argument}"


def repeat(case):
    return f"{case.program} {case.plan} {case.config} {fault_of(case)}"


def is_single(case):
    return case.action in SINGLE.get(case.call, [])


def parse(text):
    program, plan, config, fault = text.split()
    call, rank, nth, action, *argument = fault.split(":")
    argument = int(argument[0]) if argument else 0
    if action == "delay" and argument > DEADLINE_MS:
        action = "long"
    return Case(program, plan, config, call, int(rank), int(nth), action, argument)


# -- jobs ------------------------------------------------------------------------------------------
def lines_of(out, rank):
    try:
        with open(f"{out}.{rank}", encoding="utf-8") as lines:
            return [json.loads(line) for line in lines if line.endswith("\n")]
    except FileNotFoundError:
        return []


class Runner:
    def __init__(self, folder, mpirun, scratch):
        self.folder, self.mpirun, self.scratch = folder, mpirun, scratch
        self.numbers = itertools.count()

    def launch(self, command, settings, said, out):
        subprocess.run(command, env=settings, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                       check=False)

    def run(self, program, plan, texts, deadline_ms=DEADLINE_MS, mode="", out=None):
        """Cases "CONFIG FAULT" in one job. -> by case, by rank: its line or None"""
        out = out or os.path.join(self.scratch, f"job{next(self.numbers)}")
        with open(f"{out}.cases", "w", encoding="utf-8") as cases:
            cases.writelines(f"{i} {text}\n" for i, text in enumerate(texts))
        command = [*self.mpirun, str(RANKS), str(60 + 5 * len(texts)),
                   os.path.join(self.folder, f"processes_{program}"), f"{out}.cases", out,
                   str(deadline_ms)] + ([mode] if mode else [])
        settings = dict(os.environ, TAMIS_PLAN=plan, TAMIS_LOG="off")
        with open(f"{out}.said", "wb") as said:
            self.launch(command, settings, said, out)
        with open(f"{out}.said", encoding="utf-8", errors="replace") as said:
            self.said = said.read()
        found = [[None] * RANKS for _ in texts]
        for rank in range(RANKS):
            for line in lines_of(out, rank):
                found[int(line["case"])][rank] = line
            for end in (str(rank), f"{rank}.state"):
                if os.path.exists(f"{out}.{end}"):
                    os.remove(f"{out}.{end}")
        return found


# -- judging ---------------------------------------------------------------------------------------
def judge(case, lines):
    """-> verdict, why. Verdicts in capitals are failures."""
    gone = case.action in ("kill", "stop")
    faulty = lines[case.rank]
    left = [line for rank, line in enumerate(lines) if not (gone and rank == case.rank)]
    hung = [line for line in left if line and "hang" in line]
    if hung:
        return "HANG", "; ".join(f"rank {h['rank']}: {h['hang']}" for h in hung)
    if gone and faulty and not faulty["fired"]: # a stopped rank may be continued to be ended
        return "not reached", ""
    if None in left:
        cut = case.action == "kill" and any(left) # by the launcher, before its deadline
        silent = [rank for rank, line in enumerate(lines) if not line]
        return "cut off" if cut else "NO WORD", f"of rank(s) {silent}"
    if not gone and not faulty["fired"]:
        return "not reached", ""
    return judge_lines(case, left)


def judge_lines(case, left, deadline_ms=DEADLINE_MS):
    failed = [line for line in left if line["status"] != "TAMIS_OK"]
    for line in left:
        name = f"rank {line['rank']}, {line['status']} in {line['at']} {line['step']}: "
        if line["wrong"]:
            return "WRONG", name + f"{line['wrong']} results of {line['done']}"
        if line["broken"]:
            return "LOST", name + line["broken"]
        if line["recovery"] not in ("-", "ok"):
            return "LOST", name + line["recovery"]
    for line in failed:
        if not re.search(r"rank(\(s\))? \d", line["sentence"]):
            return "NO RANK", f"rank {line['rank']}: \"{line['sentence']}\""
    late = max(line["slowest_s"] for line in left)
    if late > deadline_ms / 1000 + 1:
        return "LATE", f"{late:.2f} s"
    if failed and case and case.action == "delay":
        return "HARMED", f"by a delay: {failed[0]['sentence']}"
    return ("error" if failed else "unharmed"), ""


def named(case, lines):
    """How many ranks failed, and how many name the faulty one."""
    failed = [line for line in lines if line and line.get("status", "TAMIS_OK") != "TAMIS_OK" and
              line["rank"] != case.rank]
    who = re.compile(rf"rank(\(s\))?[ \d]* {case.rank}\b")
    return len(failed), sum(bool(who.search(line["sentence"])) for line in failed)


# -- the sweep -------------------------------------------------------------------------------------
class Sweep:
    def __init__(self, runner, jobs, seed):
        self.runner, self.jobs, self.begin_s = runner, jobs, time.monotonic()
        self.random = random.Random(seed)
        self.table = collections.defaultdict(collections.Counter)
        self.by_config = collections.Counter()
        self.failures, self.slowest_s = [], 0.0
        self.failed_ranks = self.naming_ranks = 0

    def pool(self, work, items):
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            yield from pool.map(work, items)

    def count(self):
        """Calls of a run without a fault, by program, plan and config; of the rank with fewest."""
        pairs = list(itertools.product(PROGRAMS, PLANS))

        def work(pair):
            return self.runner.run(*pair, [f"{c} -" for c in CONFIGS], deadline_ms=20000)
        self.calls = {}
        for pair, found in zip(pairs, self.pool(work, pairs)):
            for config, lines in zip(CONFIGS, found):
                bad = [x for x in lines if not x or x.get("status") != "TAMIS_OK" or x["wrong"] or
                       x["broken"]]
                if bad:
                    sys.exit(f"{pair} {config} without a fault: {bad[0]}\n{self.runner.said}")
                self.calls[pair + (config,)] = {
                    call: min(x[call] for x in lines) for call in set(ACTIONS) | set(SINGLE)}

    def all_cases(self, actions):
        """By call and action, for every place of it, lazily."""
        for call in actions:
            for action in actions[call]:
                yield (call, action), [
                    (place, rank, nth) for place in self.calls for rank in range(RANKS)
                    for nth in range(1, self.calls[place][call] + 1)]

    def draw(self, actions, number):
        """As many of each action of each call; None: all."""
        kinds = list(self.all_cases(actions))
        cases = []
        for i, ((call, action), places) in enumerate(kinds):
            if number is None:
                chosen = places
            else:
                share = number * (i + 1) // len(kinds) - number * i // len(kinds)
                chosen = self.random.sample(places, min(share, len(places)))
            cases += [Case(*place, call, rank, nth, action, self.random.randrange(1, 1 << 16))
                      for place, rank, nth in chosen]
        return cases

    def enter(self, case, verdict, why, lines):
        self.table[case.action][verdict] += 1
        self.by_config[case.config] += 1
        times = [x["slowest_s"] for x in lines if x and "slowest_s" in x and
                 not (case.action in ("kill", "stop") and x["rank"] == case.rank)]
        self.slowest_s = max([self.slowest_s] + times)
        if verdict == "error":
            failed, naming = named(case, lines)
            self.failed_ranks += failed
            self.naming_ranks += naming
        if verdict.isupper():
            self.failures.append((case, verdict, why))
            print(f"{verdict}: {repeat(case)}: {why}", flush=True)

    def once(self, case):
        mode = "single" if is_single(case) else ""
        text = f"{case.config} {fault_of(case)}"
        return self.runner.run(case.program, case.plan, [text], mode=mode)[0]

    def settle(self, case, lines):
        """A busy machine is late, and ends ranks early: such a case is tried again by itself."""
        verdict, why = judge(case, lines)
        for _ in range(3):
            if verdict not in ("LATE", "HARMED", "cut off", "NO WORD"):
                break
            lines = self.once(case)
            verdict, why = judge(case, lines)
        self.enter(case, verdict, why, lines)

    def make_batches(self, cases):
        groups = collections.defaultdict(list)
        for case in cases:
            groups[case.program, case.plan].append(case)
        for group in groups.values():
            self.random.shuffle(group)
            for at in range(0, len(group), BATCH):
                yield group[at:at + BATCH]

    def run_batch(self, batch):
        """A hang ends the job: what follows it is for a job of its own."""
        texts = [f"{c.config} {fault_of(c)}" for c in batch]
        found = self.runner.run(batch[0].program, batch[0].plan, texts)
        made = 0
        while made < len(batch) and None not in found[made] and \
                not any("hang" in line for line in found[made]):
            made += 1
        if made < len(batch):
            made += 1
        return list(zip(batch[:made], found)), batch[made:]

    def run(self, cases):
        batches = list(self.make_batches([c for c in cases if not is_single(c)]))
        again = []
        while batches:
            rest = []
            for done, left in self.pool(self.run_batch, batches):
                again += [pair for pair in done]
                rest += [left] if left else []
            batches = rest
        singles = [c for c in cases if is_single(c)]
        again += zip(singles, self.pool(self.once, singles))
        for case, lines in again:
            self.settle(case, lines)

    def show(self):
        verdicts = sorted({v for row in self.table.values() for v in row})
        order = ["error", "unharmed", "WRONG", "HANG"]
        columns = order + [v for v in verdicts if v not in order]
        print("".join(f"{word:>12}" for word in ["fault", "injected"] + columns))
        total = collections.Counter()
        for action, row in list(self.table.items()):
            total.update(row)
            self.show_row(action, row, columns)
        self.show_row("all", total, columns)
        print(f"slowest call {self.slowest_s:.2f} s of a deadline of {DEADLINE_MS / 1000} s; of "
              f"{self.failed_ranks} failed ranks without a fault {self.naming_ranks} name the one "
              "that has it")
        bad = len(self.failures)
        for case, verdict, why in self.failures:
            print(f"{verdict}: {why}\n    python3 tests/faults/sweep.py --repeat "
                  f"\"{repeat(case)}\" {self.runner.folder} {self.runner.mpirun[-1]}")
        print(f"in {time.monotonic() - self.begin_s:.0f} s")
        print(f"{sum(total.values()) - bad - total['not reached']} passed, {bad} failed")
        return bad == 0

    @staticmethod
    def show_row(name, row, columns):
        injected = sum(row.values()) - row["not reached"]
        print(f"{name:>12}{injected:>12}" + "".join(f"{row[v]:>12}" for v in columns))


def main():
    options = argparse.ArgumentParser()
    options.add_argument("folder")
    options.add_argument("mpirun")
    options.add_argument("--cases", type=int, default=1200)
    options.add_argument("--singles", type=int, default=48, help="cases that end their job")
    options.add_argument("--full", action="store_true")
    options.add_argument("--seed", type=int, default=20261125)
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--repeat")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        runner = Runner(asked.folder, ["sh", asked.mpirun], scratch)
        sweep = Sweep(runner, asked.jobs, asked.seed)
        if asked.repeat:
            case = parse(asked.repeat)
            lines = sweep.once(case)
            print("\n".join(json.dumps(line) for line in lines))
            print(*judge(case, lines))
            return 1 if judge(case, lines)[0].isupper() else 0
        sweep.count()
        cases = sweep.draw(ACTIONS, None if asked.full else asked.cases)
        cases += sweep.draw(SINGLE, asked.singles)
        print(f"{len(cases)} cases", flush=True)
        sweep.run(cases)
        fine = sweep.show()
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
