#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The energy log of libtamis for other tools: a table, or metrics.

    tamis-energy-convert --csv FILE...          windows as CSV: the columns of Zeus, then more
    tamis-energy-convert --zeus FILE...         the columns of Zeus alone
    tamis-energy-convert --power FILE...        watts of all ranks over time, for OpenG2G
    tamis-energy-convert --prometheus FILE...   a textfile for node_exporter, of each rank's last run

FILE is JSON Lines, schema tamis.energy/1, also one that is still being written, or FILE.1, which
logrotate made of it. docs/energy.md describes columns and metrics. What is unknown is an empty field
and no series, never 0. With -o the output replaces PATH when it is whole.
"""
import argparse
import bisect
import decimal
import json
import os
import pathlib
import re
import sys


class Run:
    """A header, and the windows of the run that it begins; domains that another run counts."""

    def __init__(self, header):
        self.header, self.windows, self.lost, self.elsewhere = header, [], None, set()

    def beside(self, other):
        """Whether both were under way at a time."""
        ends = [(run.header["t0_unix"] + run.windows[0]["t0"], run.header["t0_unix"] + run.windows[-1]["t1"])
                for run in (self, other)]
        return max(begin for begin, _ in ends) < min(end for _, end in ends)


# What is read of a record. A number is far from where sums would not fit into an integer of 64 bits.
TEXT, COUNT, NUMBER, FLAG = (str,), (int,), (int, decimal.Decimal), (bool,)
MISSING = (type(None),)
SHAPES = {
    "header": {"schema": TEXT, "boot_id": TEXT, "run": TEXT, "host": TEXT, "rank": COUNT, "t0_unix": NUMBER,
               "domains": [{"id": TEXT, "source": TEXT, "kind": TEXT, "status": TEXT}]},
    "window": {"name": TEXT, "t0": NUMBER, "t1": NUMBER, "seconds": NUMBER, "overlaps": FLAG,
               "uj": COUNT + MISSING, "steps": COUNT + MISSING, "step0": COUNT, "step1": COUNT,
               "dropped": COUNT,
               "domains": [{"id": TEXT, "counted": FLAG, "uj": COUNT + MISSING,
                            "counted_uj": COUNT + MISSING, "status": TEXT, "tick_s": NUMBER + MISSING}],
               "phases": [{"name": TEXT, "uj": COUNT + MISSING}],
               "carbon": {"g": NUMBER + MISSING},
               "comm": {"bytes_wire": COUNT + MISSING, "elems_offered": COUNT + MISSING,
                        "elems_sent": COUNT + MISSING}},
    "summary": {"lost": COUNT},
}
NUMBER_MAX = 10**18


def fits(value, shape):
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(fits(value.get(name, Ellipsis), part)
                                               for name, part in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(entry, shape[0]) for entry in value)
    return type(value) in shape and (type(value) not in NUMBER or abs(value) < NUMBER_MAX)


def read_line(line):
    """The record, or None: the last line of a process that was killed may be incomplete."""
    try:
        record = json.loads(line, parse_float=decimal.Decimal)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def check_record(where, record, run):
    """The record's type, if it is one that is read; that all of it is there."""
    kind = record.get("type")
    if kind not in ("header", "window", "summary") or (kind != "header" and not run):
        return None
    if kind == "header" and record.get("schema", "tamis.energy/1") != "tamis.energy/1":
        sys.exit(f"{where}: schema {record['schema']} is not tamis.energy/1")
    wrong = [name for name, shape in SHAPES[kind].items() if not fits(record.get(name, Ellipsis), shape)]
    if wrong:
        sys.exit(f"{where}: \"{wrong[0]}\" of a {kind} is missing or not as tamis.energy/1 has it; "
                 "the line is damaged: delete it")
    known = {domain["id"] for domain in (record if kind == "header" else run.header)["domains"]}
    strange = {domain["id"] for domain in record.get("domains", [])} - known
    if strange:
        sys.exit(f"{where}: the header has no domain {min(strange)!r}; the line is damaged: delete it")
    return kind


def read_runs(paths):
    """All runs, in the order in which they began in the files. PATH.1 is what PATH was before it was
    rotated by copytruncate: PATH goes on with the run that PATH.1 ends with."""
    runs, last = {}, {}
    for path in sorted(paths, key=lambda path: not path.endswith(".1")):
        name = path.removesuffix(".1")
        run = last.get(name)
        lines = pathlib.Path(path).read_bytes().decode("utf-8", "replace").split("\n")
        for number, line in enumerate(lines, 1):
            record = read_line(line) or {}
            kind = check_record(f"{path}, line {number}", record, run)
            if kind == "header":
                key = (record["boot_id"], record["run"], record["rank"], record["t0_unix"])
                run = last[name] = runs.setdefault(key, Run(record))
            elif kind == "window":
                run.windows.append(record)
            elif kind == "summary":
                run.lost = record["lost"]
    if not runs:
        sys.exit(f"{' '.join(paths)}: no header of an energy log was found")
    return list(runs.values())


# -- ranks of a host -------------------------------------------------------------------------------

def find_readers(runs):
    """{(host, domain): {run that could read it: [joules, those that counted there]}}"""
    readers = {}
    for run in runs:
        for window in run.windows:
            for domain in window["domains"]:
                if domain["uj"] is not None:
                    found = readers.setdefault((run.header["boot_id"], domain["id"]), {})
                    sums = found.setdefault(run, [0, 0])
                    sums[:] = [sums[0] + domain["uj"], sums[1] + (domain["counted_uj"] or 0)]
    return readers


def count_once(runs):
    """Ranks of a host see the same counters. Each is counted in the run of the lowest rank that could
    read it, or of one that reads a wider one, and so counts none of what it gained."""
    for (_, name), found in find_readers(runs).items():
        owners = []
        wider = {run: uj > 0 and counted == 0 for run, (uj, counted) in found.items()}
        for run in sorted(found, key=lambda run: (not wider[run], run.header["rank"])):
            if any(run.beside(owner) for owner in owners):
                run.elsewhere.add(name)
            else:
                owners.append(run)


def own_uj(run, window):
    """Joules of the domains that are counted in this run; None: there are none, or nothing is known."""
    counted = [domain for domain in window["domains"] if domain["counted"] or domain["counted_uj"]]
    others = [domain["counted_uj"] or 0 for domain in counted if domain["id"] in run.elsewhere]
    if window["uj"] is None or others and len(others) == len(counted):
        return None
    return max(window["uj"] - sum(others), 0) if others else window["uj"]


def own_part(value, run, window):
    """The part of phases or grams that its own joules have in those of the window."""
    own = own_uj(run, window)
    if own is None or value is None or own == window["uj"]:
        return value if own is not None else None
    return value * own / window["uj"]


def micro(millionths):
    """Millionths as a decimal number, exactly: -1500000 is -1.5."""
    whole, rest = divmod(abs(millionths), 1000000)
    text = f"{whole}.{rest:06}".rstrip("0").rstrip(".")
    return "-" + text if millionths < 0 else text


def millionths(number):
    return int((decimal.Decimal(number) * 1000000).to_integral_value())


# -- CSV -------------------------------------------------------------------------------------------

# A source of which nothing was found has a domain without ':'.
GROUPS = {"gpu": lambda domain: domain["source"] == "nvml" and ":" in domain["id"],
          "cpu": lambda domain: domain["kind"] == "package" and ":" in domain["id"],
          "dram": lambda domain: domain["kind"] == "dram" and ":" in domain["id"]}


def energy_columns(header, groups):
    """{name of the column: id of its domain}"""
    columns = {}
    for group in groups:
        found = [domain["id"] for domain in header["domains"] if GROUPS[group](domain)]
        columns.update((f"{group}{i}_energy", name) for i, name in enumerate(found))
    return columns


def plain(name):
    """Readers of Zeus's files split lines at every comma."""
    return re.sub('[,"\x00-\x1f\x7f]', "_", name)


def find_interval(run, window):
    """A window begins and ends between two changes of a counter: each end may be wrong by what was
    used in one tick. None: some tick is not known."""
    half, uj = decimal.Decimal(0), own_uj(run, window)
    if uj is None:
        return None
    for domain in window["domains"]:
        if domain["counted"] and domain["uj"] and domain["id"] not in run.elsewhere:
            if not domain["tick_s"] or not window["seconds"]:
                return None
            half += decimal.Decimal(domain["uj"]) / window["seconds"] * domain["tick_s"]
    half = int(half.to_integral_value(decimal.ROUND_CEILING))
    return max(uj - half, 0), uj + half


def method_of(run, window):
    if window["uj"] is None:
        return "none"
    return "other_rank" if own_uj(run, window) is None else "counter"


def row_of(run, window, columns, ours):
    header = run.header
    begin, end = millionths(window["t0"]), millionths(window["t1"])
    gained = {domain["id"]: domain["uj"] for domain in window["domains"]
              if domain["id"] not in run.elsewhere}
    row = [micro(millionths(header["t0_unix"]) + begin), plain(window["name"]), micro(end - begin)]
    row += ["" if gained.get(name) is None else micro(gained[name]) for name in columns.values()]
    if ours:
        interval = find_interval(run, window)
        row.append(method_of(run, window))
        row += [micro(bound) for bound in interval] if interval else ["", ""]
        bad = [domain for domain in window["domains"] if domain["status"] != "ok"]
        row.append(";".join(f"{plain(domain['id'])}={domain['status']}" for domain in bad) or "ok")
        row += [str(header["rank"]), plain(header["host"]), str(window["step0"]), str(window["step1"])]
    return row


OURS = ["method", "ci_lo", "ci_hi", "status", "rank", "host", "step0", "step1"]


def write_csv(runs, ours):
    groups = list(GROUPS) if ours else ["gpu"]
    first = energy_columns(runs[0].header, groups)
    rows = [["start_time", "window_name", "elapsed_time", *first] + (OURS if ours else [])]
    if not first and not ours:
        print("the log has no GPU, so the file holds no joules; --csv has those of other domains",
              file=sys.stderr)
    count_once(runs)
    for run in runs:
        columns = energy_columns(run.header, groups)
        if list(columns) != list(first):
            sys.exit("the files hold runs with different columns: convert them one by one")
        rows += [row_of(run, window, columns, ours) for window in run.windows]
    return "".join(",".join(row) + "\n" for row in rows)


# -- watts ----------------------------------------------------------------------------------------

class Curve:
    """Joules of a run until a time; windows of which they are unknown."""

    def __init__(self, run):
        self.times, self.uj, self.unknown = [], [decimal.Decimal(0)], []
        for window in (w for w in run.windows if not w["overlaps"] and w["t0"] < w["t1"]):
            begin, end = (run.header["t0_unix"] + window[key] for key in ("t0", "t1"))
            self.times += [begin, end] if not self.times else [end]
            self.uj.append(self.uj[-1] + (own_uj(run, window) or 0))
            self.unknown += [(begin, end)] if window["uj"] is None else []

    def at(self, time):
        i = bisect.bisect_left(self.times, time)
        if i == 0 or i == len(self.times):
            return self.uj[0 if i == 0 else -1]
        begin, end = self.times[i - 1], self.times[i]
        return self.uj[i - 1] + (self.uj[i] - self.uj[i - 1]) * (time - begin) / (end - begin)

    def knows(self, begin, end):
        return all(last <= begin or end <= first for first, last in self.unknown)


def write_power(runs):
    """t_s,power_W: watts of all counters, each counted once, from each time on, as often as the run
    with the most windows has one. Stretches in which some are unknown have no row."""
    count_once(runs)
    curves = [Curve(run) for run in runs]
    times = max((curve.times for curve in curves), key=len)
    lines, end = ["t_s,power_W"], None
    for begin, end in zip(times, times[1:]):
        if all(curve.knows(begin, end) for curve in curves):
            uj = sum(curve.at(end) - curve.at(begin) for curve in curves)
            last = f"{uj / 1000000 / (end - begin):.3f}"
            lines.append(f"{begin - times[0]:.6f},{last}")
    if len(lines) > 1:
        lines.append(f"{end - times[0]:.6f},{last}")
    return "".join(line + "\n" for line in lines)


# -- Prometheus ------------------------------------------------------------------------------------

METRICS = {
    "tamis_energy_joules_total": "Joules of the counted domains by phase; the phases, unattributed "
                                 "included, add up to what was measured.",
    "tamis_energy_domain_joules_total": "Joules of a domain; domains may contain each other.",
    "tamis_steps_total": "Steps of the job, which each rank counts: their maximum, not their sum.",
    "tamis_wire_bytes_total": "Bytes that this rank, or those that share its meter, put on the wire.",
    "tamis_elements_offered_total": "Gradient elements that could be sent.",
    "tamis_elements_sent_total": "Gradient elements that were sent.",
    "tamis_energy_dropped_marks_total": "Marks of phases that did not fit.",
    "tamis_energy_lost_lines_total": "Log lines that could not be written.",
    "tamis_carbon_grams_total": "Grams of CO2 of the windows in which the grid's intensity was "
                                "known.",
    "tamis_power_watts": "Mean power over the last window.",
    "tamis_energy_domain_ok": "1 while the domain can be read, else 0 and the status says why.",
}


def settle(gains):
    """Counters never fall: where the fit attributes more than was measured, the largest gives."""
    owed = -sum(uj for uj in gains.values() if uj < 0)
    gains = {part: max(uj, 0) for part, uj in gains.items()}
    while owed > 0 and any(gains.values()):
        most = max(gains, key=gains.get)
        given = min(gains[most], owed)
        gains[most] -= given
        owed -= given
    return gains


def add(sums, key, value):
    if value is not None:
        sums[key] = sums.get(key, 0) + value


def sum_windows(run, windows):
    """{phase: uj}, {domain's id: uj}, {metric: value}: what is not known has no key."""
    phases, domains, counts = {}, {}, {}
    for name in ("steps", "wire_bytes", "elements_offered", "elements_sent"):
        counts[f"tamis_{name}_total"] = 0
    for window in windows:
        comm, uj = window["comm"], own_uj(run, window)
        if uj is not None and uj >= 0:
            gains = {phase["name"]: int(own_part(phase["uj"] or 0, run, window))
                     for phase in window["phases"]}
            gains["unattributed"] = uj - sum(gains.values())
            for phase, uj in settle(gains).items():
                add(phases, phase, uj)
        for domain in window["domains"]:
            if domain["id"] not in run.elsewhere:
                add(domains, domain["id"], domain["uj"])
        add(counts, "tamis_carbon_grams_total", own_part(window["carbon"]["g"], run, window))
        add(counts, "tamis_steps_total", window["steps"])
        add(counts, "tamis_wire_bytes_total", comm["bytes_wire"])
        add(counts, "tamis_elements_offered_total", comm["elems_offered"])
        add(counts, "tamis_elements_sent_total", comm["elems_sent"])
    return phases, domains, counts


def series_of(run):
    """(metric, labels, value as text) of a run."""
    header = run.header
    who = {"node": header["host"], "rank": str(header["rank"])}
    about = {domain["id"]: {"domain": domain["id"], "source": domain["source"],
                            "kind": domain["kind"]} for domain in header["domains"]}
    windows = [window for window in run.windows if not window["overlaps"]]
    last = windows[-1] if windows else {"domains": [], "seconds": 0}
    phases, domains, counts = sum_windows(run, windows)
    for phase, uj in phases.items():
        if uj > 0 or phase == "unattributed":
            yield ("tamis_energy_joules_total", who | {"domain": "total", "phase": phase},
                   micro(uj))
    for name, uj in domains.items():
        yield "tamis_energy_domain_joules_total", who | about[name], micro(uj)
    counts["tamis_energy_dropped_marks_total"] = max(
        (window["dropped"] for window in windows), default=0)
    if run.lost is not None:
        counts["tamis_energy_lost_lines_total"] = run.lost
    for metric, value in counts.items():
        yield metric, who, str(value)
    for domain in last["domains"]:
        if domain["uj"] is not None and last["seconds"] > 0 and domain["id"] not in run.elsewhere:
            yield ("tamis_power_watts", who | about[domain["id"]],
                   str(float(domain["uj"] / (last["seconds"] * 1000000))))
    for domain in last["domains"] or header["domains"]:
        yield ("tamis_energy_domain_ok", who | {"domain": domain["id"], "status": domain["status"]},
               "1" if domain["status"] == "ok" else "0")


def escape(value):
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def write_metrics(runs):
    newest = {}
    for run in sorted(runs, key=lambda run: run.header["t0_unix"]):
        newest[run.header["host"], run.header["rank"]] = run
    count_once(newest.values())
    found = [series for run in newest.values() for series in series_of(run)]
    lines = []
    for metric, about in METRICS.items():
        series = [(labels, value) for name, labels, value in found if name == metric]
        if not series:
            continue
        kind = "counter" if metric.endswith("_total") else "gauge"
        lines += [f"# HELP {metric} {about}", f"# TYPE {metric} {kind}"]
        for labels, value in series:
            inside = ",".join(f'{name}="{escape(text)}"' for name, text in labels.items())
            lines.append(f"{metric}{{{inside}}} {value}")
    return "".join(line + "\n" for line in lines)


# -- main ------------------------------------------------------------------------------------------

def write(path, text):
    if not path:
        sys.stdout.write(text)
        return
    beside = pathlib.Path(path + ".tmp")
    beside.write_text(text, encoding="utf-8")
    os.replace(beside, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, prog="tamis-energy-convert",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--csv", action="store_true", help="a table with all columns")
    form.add_argument("--zeus", action="store_true", help="a table with the columns of Zeus")
    form.add_argument("--power", action="store_true", help="watts over time: t_s,power_W")
    form.add_argument("--prometheus", action="store_true", help="metrics, text format 0.0.4")
    parser.add_argument("-o", "--output", metavar="PATH", help="in place of standard output")
    parser.add_argument("files", metavar="FILE", nargs="+")
    given = parser.parse_args()
    try:
        runs = read_runs(given.files)
        if given.power or given.prometheus:
            write(given.output, (write_power if given.power else write_metrics)(runs))
        else:
            write(given.output, write_csv(runs, given.csv))
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")


if __name__ == "__main__":
    main()
