#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Put the faults of the table into the library, one at a time, and see which test finds each.

    python3 tests/mutants/run.py [--only 3,17] [--work FOLDER] [--stages 1]
    python3 tests/mutants/run.py --list | --check

Works in a copy of the tree, made of the files that git knows: in FOLDER, which stays and is built
upon by the next run, or in a temporary one. First everything is built there and the tests run
without a fault, as otherwise no failure would show anything (--skip-baseline leaves that out). Then
for each mutant: build, test, put back. The tests run in three stages, each of which builds only the
programs that it needs: those near the fault; all of units, ranks as threads, faults, the protocol
and random cases; all others that are not slow and look at what the library does, not at its text.
Tests try a few of many similar cases (TEST_FEW). After the first stage a failure must come twice.

The last line is "N mutants, K killed, S survived"; ends with 0 if at least 95 % are killed.
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import table  # noqa: E402

TREE = pathlib.Path(__file__).resolve().parents[2]
OPTIONS = ["-DTAMIS_CUDA=OFF", "-DTAMIS_NCCL=OFF", "-DTAMIS_PYTHON=AUTO", "-DTAMIS_TESTS=ON"]
KINDS = ("unit", "multi", "faults", "explore", "fuzz")
# Tests of Python name no program: what they import is made by these targets.
PACKAGES = {"python.": "tamis_python", "cuda.python_": "cuda_python"}
NOT_OF_THE_LIBRARY = "^(slow|lint|headers|install|readme|python|mutants|energy|train|cluster)$"
STAGES = 3
ENOUGH = 0.95


class NotBuilt(Exception):
    pass


def run(command, **more):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors="replace", stdin=subprocess.DEVNULL, **more)


# -- the copy -------------------------------------------------------------------------------------

def copy_tree(tree, work):
    """What differs only, so that a build that is there stays good."""
    names = run(["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others",
                 "--exclude-standard"], check=True).stdout.split("\0")
    for name in filter(None, names):
        source, target = tree / name, work / name
        if not source.is_file():
            continue
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        shutil.copymode(source, target)


class Copy:
    def __init__(self, work, jobs, limit):
        self.work, self.jobs, self.limit = work, jobs, limit
        self.build_folder = work / "build" / "release"
        self.tests = {}

    def configure(self):
        environment = dict(os.environ)
        if shutil.which("ccache"):
            environment.setdefault("CMAKE_C_COMPILER_LAUNCHER", "ccache")
            environment.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
        done = run(["cmake", "--preset", "release", *OPTIONS], cwd=self.work, env=environment)
        if done.returncode:
            sys.exit(f"{done.stdout}\nThe copy in {self.work} could not be configured.")
        for path in self.build_folder.rglob("CTestTestfile.cmake"):
            path.write_text(re.sub(r'TIMEOUT "[\d.]+"', f'TIMEOUT "{self.limit}"',
                                   path.read_text()))

    def build(self, targets):
        done = run(["cmake", "--build", str(self.build_folder), "-j", str(self.jobs), "--target",
                    *targets], cwd=self.work) if targets else run(["true"])
        if done.returncode:
            raise NotBuilt(done.stdout[-3000:])

    def read_tests(self):
        """Name -> labels and programs, which need not be built."""
        text = run(["ctest", "--test-dir", str(self.build_folder), "--show-only=json-v1"],
                   check=True).stdout
        commands = self.read_commands()
        made = run(["ninja", "-C", str(self.build_folder), "-t", "targets", "all"],
                   check=True).stdout
        made = re.findall(r"^(\S+): \S+_EXECUTABLE_LINKER", made, re.MULTILINE)
        for test in json.loads(text)["tests"]:
            labels = [p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"]
            self.tests[test["name"]] = (labels[0] if labels else [],
                                        self.programs(commands[test["name"]], made))

    def read_commands(self):
        """Commands of tests, also of those whose programs are not built, which ctest leaves out."""
        commands = {}
        for path in self.build_folder.rglob("CTestTestfile.cmake"):
            for name, command in re.findall(r"^add_test\((?:\[=\[)?([\w.]+)(?:\]=\])? (.*)\)$",
                                            path.read_text(), re.MULTILINE):
                commands[name] = re.findall(r'"([^"]*)"', command)
        return commands

    def programs(self, command, made):
        """Those that the words of a command name, or the folders that they are in."""
        words = {os.path.relpath(word, self.build_folder) for word in command
                 if word.startswith(str(self.build_folder))}
        return {p for p in made if p in words or os.path.dirname(p) in words}

    def build_for(self, names):
        packages = {target for start, target in PACKAGES.items()
                    if any(name.startswith(start) for name in names)}
        self.build(sorted(packages.union(*(self.tests[n][1] for n in names))))

    def select(self, kinds=None):
        barred = re.compile(NOT_OF_THE_LIBRARY)
        return [name for name, (labels, _) in self.tests.items()
                if not any(barred.match(label) for label in labels) and
                (kinds is None or name.split(".")[0] in kinds)]

    def test(self, names, twice):
        """-> names of tests that failed, with how; @twice: twice, however busy the machine is."""
        pattern = "^(" + "|".join(re.escape(n) for n in names) + ")$"
        command = ["ctest", "--test-dir", str(self.build_folder), "-R", pattern,
                   "-j", str(2 * self.jobs), "--stop-on-failure"]
        if twice:
            command += ["--repeat", "until-pass:2"]
        done = run(command, cwd=self.work, env=dict(os.environ, TEST_FEW="1"))
        failed = failed_tests(done.stdout)
        if done.returncode and not failed:
            sys.exit(f"{done.stdout}\nctest failed, but names no test.")
        return failed


def failed_tests(text):
    """Read ctest's report: name -> Failed, Timeout, SEGFAULT, ..."""
    tail = text.partition("The following tests FAILED:")[2]
    return dict(re.findall(r"^\s*\d+ - (\S+) \(([^)]*)\)", tail, re.MULTILINE))


# -- mutants --------------------------------------------------------------------------------------

def stages(copy, near):
    """Tests of each stage, none twice."""
    done = []
    for names in (near, copy.select(KINDS), copy.select()):
        stage = [n for n in names if n in copy.tests and n not in done]
        done += stage
        if stage:
            yield stage


def judge(copy, near, nstages):
    """-> (killed, by what)."""
    for number, stage in enumerate(itertools.islice(stages(copy, near), nstages)):
        copy.build_for(stage)
        failed = copy.test(stage, twice=number > 0)
        if failed:
            return True, ", ".join(f"{n} ({how})" if how != "Failed" else n
                                   for n, how in sorted(failed.items()))
    return False, ""


def try_mutant(copy, m, nstages=STAGES):
    """-> killed, survived or not built, and by what."""
    before = m.apply(copy.work)
    try:
        killed, by = judge(copy, m.near, nstages)
        return ("killed" if killed else "survived"), by
    except NotBuilt as error:
        return "not built", str(error)
    finally:
        m.revert(copy.work, before)


def summary(results):
    counts = {how: results.count(how) for how in ("killed", "survived", "not built")}
    line = f"{len(results)} mutants, {counts['killed']} killed, {counts['survived']} survived"
    if counts["not built"]:
        line += f", {counts['not built']} not built"
    return line, counts["killed"] >= ENOUGH * len(results) and not counts["not built"]


def try_all(copy, mutants, nstages):
    results = []
    for m in mutants:
        began = time.monotonic()
        how, by = try_mutant(copy, m, nstages)
        results.append(how)
        print(f"{m.number:3} {how:9} {time.monotonic() - began:4.0f} s  {m.file}: {m.what}"
              + (f"\n    by {by}" if by else ""), flush=True)
    return summary(results)


def prepare(arguments, work):
    copy = Copy(work, arguments.jobs, arguments.limit)
    copy_tree(TREE, work)
    copy.configure()
    copy.read_tests()
    if arguments.skip_baseline:
        return copy
    try:
        copy.build_for(copy.select())
    except NotBuilt as error:
        sys.exit(f"{error}\nThe tree does not build without a mutant.")
    failed = copy.test(copy.select(), twice=True)
    if failed:
        sys.exit(f"Without a mutant these tests fail: {', '.join(failed)}")
    return copy


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="numbers of mutants, with commas between them")
    parser.add_argument("--list", action="store_true", help="show the table")
    parser.add_argument("--check", action="store_true", help="whether the table fits the tree")
    parser.add_argument("--work", type=pathlib.Path, help="folder of the copy, which stays")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the build")
    parser.add_argument("--stages", type=int, default=STAGES, help="only so many of the three")
    parser.add_argument("--limit", type=int, default=600, help="seconds of one test")
    parser.add_argument("--skip-baseline", action="store_true")
    return parser.parse_args()


def main():
    arguments = parse()
    mutants = table.read()
    stale = table.check(mutants, TREE)
    if stale:
        sys.exit("\n".join(stale))
    if arguments.only:
        wanted = {int(n) for n in arguments.only.split(",")}
        mutants = [m for m in mutants if m.number in wanted]
    if arguments.list:
        for m in mutants:
            print(f"{m.number:3} {m.file}: {m.what}")
    if arguments.list or arguments.check:
        print(f"{len(mutants)} mutants, none stale")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        work = (arguments.work or pathlib.Path(folder)).resolve()
        line, enough = try_all(prepare(arguments, work), mutants, arguments.stages)
    print(line)
    return 0 if enough else 1


if __name__ == "__main__":
    sys.exit(main())
