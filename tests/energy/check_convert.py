#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What tamis-energy-convert makes of energy logs.

    check_convert.py CONVERT PROGRAM...     PROGRAM FOLDER writes the logs that are converted

Prometheus: the text format 0.0.4 and the rules of `promtool check metrics`; that the checks can fail
is seen by spoiling a page. CSV: columns and numbers. What is unknown is never 0.
"""
import decimal
import json
import pathlib
import re
import subprocess
import sys
import tempfile

CONVERT, *PROGRAM = sys.argv[1:]
failures = []


def demand(true, words):
    if not true:
        failures.append(words)


def convert(*args, code=0):
    done = subprocess.run([sys.executable, CONVERT, *map(str, args)], capture_output=True, text=True)
    demand(done.returncode == code, f"{args}: exit code {done.returncode}: {done.stderr}")
    return done.stdout if code == 0 else done.stderr


def convert_aloud(*args):
    """What is said beside the output."""
    return subprocess.run([sys.executable, CONVERT, *map(str, args)], capture_output=True, text=True,
                          check=True).stderr


def write_lines(path, lines):
    path.write_text("".join(line + "\n" for line in lines))
    return path


# -- Prometheus ------------------------------------------------------------------------------------

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SERIES = re.compile(rf"({NAME})\{{((?:{LABEL})(?:,{LABEL})*)\}} ([-+0-9.eE]+)$")


def read_page(text, complain):
    """{(name, labels): value}, types by name."""
    series, types, helped, family = {}, {}, set(), None
    if not text.endswith("\n"):
        complain("the last line has no end")
    for line in text.removesuffix("\n").split("\n"):
        words = line.split(" ", 3)
        if words[:2] == ["#", "HELP"]:
            if words[2] in helped or len(words) < 4 or not words[3]:
                complain(f"HELP twice or empty: {line}")
            helped.add(words[2])
            family = words[2]
        elif words[:2] == ["#", "TYPE"]:
            if words[2] != family or words[2] in types or words[3] not in ("counter", "gauge"):
                complain(f"TYPE of another, twice or unknown: {line}")
            types[words[2]] = words[3]
            if (words[3] == "counter") != words[2].endswith("_total"):
                complain(f"counters, and they alone, end in _total: {line}")
        else:
            match = SERIES.match(line)
            if not match or match[1] != family or family not in types:
                complain(f"no series, or of another metric: {line}")
                continue
            labels = tuple(sorted((name, value) for name, value in re.findall(LABEL, match[2])))
            if len({name for name, _ in labels}) != len(labels):
                complain(f"a label occurs twice: {line}")
            if (match[1], labels) in series:
                complain(f"a series occurs twice: {line}")
            value = decimal.Decimal(match[match.lastindex])
            if value < 0:
                complain(f"negative: {line}")
            series[match[1], labels] = value
    return series, types


def value_of(series, name, labels):
    """Values of the series that has these labels beside those of the run."""
    wanted = {"node": 'node \\"a\\"\\n', "rank": "2", **labels}
    return [value for (metric, found), value in series.items()
            if metric == name and dict(found) == wanted]


def joules_by_phase(series):
    return sum(value for (name, _), value in series.items() if name == "tamis_energy_joules_total")


def check_pages(folder):
    """The log as it grows, line after line: what is measured is shown, and no counter falls."""
    lines = (folder / "known.jsonl").read_text().splitlines()
    before, measured, pages = {}, 0, 0
    for end in range(1, len(lines) + 1):
        record = json.loads(lines[end - 1])
        page = convert("--prometheus", write_lines(folder / "part.jsonl", lines[:end]))
        series, types = read_page(page, failures.append)
        if record["type"] == "window" and not record["overlaps"]:
            measured += record["uj"]
            pages += 1
        demand(joules_by_phase(series) * 1000000 == measured,
               f"page {end}: phases add up to {joules_by_phase(series)} J, not {measured} uJ")
        for key, value in before.items():
            demand(types[key[0]] != "counter" or series.get(key, -1) >= value, f"{key} fell")
        before = series
    demand(pages == 3, f"{pages} windows that do not overlap")
    for name, labels, value in (
            ("tamis_steps_total", {}, "174"),
            ("tamis_carbon_grams_total", {}, "1.35"),
            ("tamis_energy_lost_lines_total", {}, "0"),
            ("tamis_energy_dropped_marks_total", {}, "2"),
            ("tamis_energy_joules_total", {"domain": "total", "phase": "select"}, "150"),
            ("tamis_energy_domain_joules_total", {"domain": "nvml:GPU-77e0", "source": "nvml",
                                                  "kind": "gpu"}, "4500"),
            ("tamis_power_watts", {"domain": "rapl:package-0", "source": "rapl",
                                   "kind": "package"}, "100"),
            ("tamis_energy_domain_ok", {"domain": "rapl:dram-0", "status": "denied"}, "0")):
        demand(value_of(series, name, labels) == [decimal.Decimal(value)],
               f"{name} {labels} is {value_of(series, name, labels)}, not {value}")
    demand("rapl:dram-0" not in "".join(str(key) for key in series if "joules" in key[0]),
           "memory that may not be read has joules")
    demand('phase="apply"' not in page, "a phase of which no joules are known has some")


def check_unknown_page(folder):
    series, _ = read_page(convert("--prometheus", folder / "unknown.jsonl"), failures.append)
    for metric in ("tamis_energy_joules_total", "tamis_energy_domain_joules_total",
                   "tamis_power_watts", "tamis_carbon_grams_total"):
        demand(all(name != metric for name, _ in series), f"{metric} is unknown but has a series")
    demand(series, "the page without measurements is empty")


# -- several ranks of a host -----------------------------------------------------------------------

def write_rank(folder, rank, denied=(), **header):
    """The known log as another rank of the host has it."""
    lines = []
    for line in (folder / "known.jsonl").read_text().splitlines():
        record = json.loads(line, parse_float=decimal.Decimal)
        record.update({"rank": rank, **header} if record["type"] == "header" else {})
        for domain in record["domains"]:
            if domain["id"] in denied and record["type"] != "header":
                less = record["uj"] - domain["uj"]
                record["carbon"]["g"] *= decimal.Decimal(less) / record["uj"]
                record["uj"] = less
                domain.update({"uj": None, "counted_uj": None, "status": "denied", "counted": False})
        lines.append(json.dumps(record, default=float))
    return write_lines(folder / f"rank{rank}", lines)


def sums_of(files):
    """Joules of the domains, of the phases, grams, steps; how often a domain occurs, at most."""
    series, _ = read_page(convert("--prometheus", *files), failures.append)
    sums = [sum(value for (name, _), value in series.items() if name == metric)
            for metric in ("tamis_energy_domain_joules_total", "tamis_energy_joules_total",
                           "tamis_carbon_grams_total", "tamis_steps_total")]
    names = [dict(labels)["domain"] for name, labels in series if name == "tamis_energy_domain_joules_total"]
    return sums, max(map(names.count, names))


def check_ranks(folder):
    """Each counter once, whoever reads it: 3 windows of 4100.000001 J, 1.35 g and 58 steps."""
    expected = [decimal.Decimal("12300.000003"), decimal.Decimal("12300.000003"), decimal.Decimal("1.35")]
    known, package = folder / "known.jsonl", {"rapl:package-0"}
    for what, files, ranks in (
            ("the same counters", [known, write_rank(folder, 3)], 2),
            ("in another order", [write_rank(folder, 3), known], 2),
            ("the lowest may read none", [write_rank(folder, 0, denied=package), known], 2),
            ("three", [write_rank(folder, 0, denied=package), write_rank(folder, 1), known], 3)):
        sums, most = sums_of(files)
        near = abs(sums[2] - expected[2]) < decimal.Decimal("1e-9")
        demand(sums[:2] == expected[:2] and near and most == 1, f"{what}: {sums}, a domain {most} times")
        demand(sums[3] == 174 * ranks, f"{what}: steps {sums[3]}")
    sums, _ = sums_of([known, write_rank(folder, 3, boot_id="another")])
    demand(sums[0] == 2 * expected[0] and sums[2] == 2 * expected[2], f"two hosts: {sums}")
    sums, _ = sums_of([known, write_rank(folder, 3, t0_unix=1800000000)])
    demand(sums[0] == 2 * expected[0], f"one after the other: {sums}")


def check_rank_rows(folder):
    lowest = write_rank(folder, 0, denied={"rapl:package-0"})
    rows = [row.split(",") for row in convert("--csv", folder / "known.jsonl", lowest).splitlines()]
    table = [dict(zip(rows[0], row)) for row in rows[1:]]
    demand(rows[0][-4:] == ["rank", "host", "step0", "step1"] and len(table) == 8, f"{rows[0]}")
    one, two = (table[i] for i in (0, 4))
    demand([one[name] for name in rows[0][-4:]] == ["2", "node _a__", "0", "58"], f"{one}")
    demand([two[name] for name in rows[0][-4:]] == ["0", "node _a__", "0", "58"], f"{two}")
    for name, of_one, of_two in (("gpu0_energy", "", "1650.000001"), ("cpu0_energy", "500", ""),
                                 ("method", "counter", "counter"), ("ci_lo", "490", "3528")):
        demand([one[name], two[name]] == [of_one, of_two], f"{name}: {one[name]!r}, {two[name]!r}")
    rows = convert("--csv", folder / "known.jsonl", write_rank(folder, 3)).splitlines()
    demand(rows[5].split(",")[3:11] == [""] * 5 + ["other_rank", "", ""], f"{rows[5]}")


def write_late(folder, rank, domains, windows):
    """A log of [begin, end, joules, [(domain, joules, those that count)]]."""
    lines = (folder / "known.jsonl").read_text().splitlines()
    header, window = json.loads(lines[0]), json.loads(lines[1])
    header.update(rank=rank, domains=[dict(header["domains"][0], id=name) for name in domains])
    rows = [header]
    for begin, end, joules, gains in windows:
        rows.append(dict(window, t0=begin, t1=end, seconds=end - begin, uj=joules * 10**6, phases=[],
                         domains=[dict(window["domains"][0], id=name, uj=uj * 10**6, counted=counted > 0,
                                       counted_uj=counted * 10**6) for name, uj, counted in gains]))
    return write_lines(folder / f"late{rank}", [json.dumps(row) for row in rows])


def check_late(folder):
    """A platform that is behind does not count for a while, and then less than it gained."""
    psys, package = "rapl:psys", "rapl:package-0"
    files = [write_late(folder, rank, [psys, package, f"nvml:{rank}"], [
        (0, 10, 110, [(psys, 0, 0), (package, 100, 100), (f"nvml:{rank}", 10, 10)]),
        (10, 20, 100, [(psys, 190, 90), (package, 50, 0), (f"nvml:{rank}", 10, 10)])]) for rank in (0, 1)]
    demand(sums_of(files)[0][1] == 230, f"two ranks: {sums_of(files)}")
    files = [write_late(folder, 0, [psys, package], [(0, 10, 100, [(psys, 100, 100), (package, 80, 0)])]),
             write_late(folder, 1, [psys, package], [(4, 5, 8, [(psys, 0, 0), (package, 8, 8)])])]
    demand(sums_of(files)[0][1] == 100, f"a short window: {sums_of(files)}")


def watts_of(files):
    """[second, watts] and the joules that they come to."""
    rows = [row.split(",") for row in convert("--power", *files).splitlines()]
    demand(rows[0] == ["t_s", "power_W"], f"{rows[0]}")
    points = [(decimal.Decimal(time), decimal.Decimal(watts)) for time, watts in rows[1:]]
    return points, sum((later - time) * watts for (time, watts), (later, _) in zip(points, points[1:]))


def check_watts(folder):
    """Three windows of 4100 J and one that is unknown, which has no row; hosts that are apart in time
    overlap by part of a window."""
    known, beside = folder / "known.jsonl", write_rank(folder, 3)
    other = write_rank(folder, 4, boot_id="another")
    for what, files, joules in (("one rank", [known], 12300), ("the same counters", [known, beside], 12300),
                                ("two hosts", [known, other], 24600)):
        points, sum_ = watts_of(files)
        demand(abs(sum_ - joules) < decimal.Decimal("0.1"), f"{what}: {sum_} J of {points}")
    late = write_rank(folder, 5, boot_id="another", t0_unix=decimal.Decimal("1700000002.75"))
    whole, part = (watts_of([known, *more])[0] for more in ([], [late]))
    demand([time for time, _ in whole] == [time for time, _ in part], f"{part}")
    demand(whole[0][1] < part[0][1] < 2 * whole[0][1], f"half a window of another host: {part}")


def check_spoilt_pages(folder):
    page = convert("--prometheus", folder / "known.jsonl")
    line = next(line for line in page.split("\n") if line.startswith("tamis_wire_bytes_total{"))
    for old, new in ((line, line + "\n" + line), (line, line + " 1700000000000"), (line, line[:-1] + "x"),
                     (line, line.replace(" ", " -")), ('node="', "node='"), ('rank="', 'node="'),
                     ("TYPE tamis_wire_bytes_total counter", "TYPE tamis_wire_bytes_total gauge"),
                     ("# TYPE tamis_steps_total counter\n", ""), ("\\n", "\n"), ('\\"', '"'),
                     (page, page[:-1])):
        complaints = []
        read_page(page.replace(old, new, 1), complaints.append)
        demand(old in page and complaints, f"nothing is said when {old!r} is {new!r}")


# -- CSV -------------------------------------------------------------------------------------------

ZEUS = "start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy"
OURS = ZEUS + ",cpu0_energy,cpu1_energy,dram0_energy,method,ci_lo,ci_hi,status,rank,host,step0,step1"


def check_tables(folder):
    """4100.000001 J in 5 s are 82.00000002 J in a tick of 0.1 s, rounded up."""
    rows = convert("--zeus", folder / "known.jsonl").splitlines()
    demand(rows[0] == ZEUS and rows[2] == "1700000005.25,window,5,1650.000001,1500", f"{rows}")
    demand(rows[3].split(",")[1] == "a__name__", f"a name with commas: {rows[3]}")
    rows = convert("--csv", folder / "known.jsonl").splitlines()
    demand(rows[0] == OURS and len(rows) == 5, f"{rows}")
    demand(rows[1] == "1700000000.25,window,5,1650.000001,1500,500,450,,counter,4018,4182.000002,"
                      "rapl:dram-0=denied,2,node _a__,0,58", f"{rows[1]}")
    rows = convert("--csv", folder / "unknown.jsonl").splitlines()
    demand(rows[1].split(",", 1)[1] ==
           "window,5,,,,,,none,,,nvml:GPU-5a1c=absent;rapl:package-0=absent;nvml:GPU-77e0=absent;"
           "rapl:dram-0=absent;rapl:package-1=absent,2,node _a__,0,58", f"{rows[1]}")


def check_files(folder):
    """Rotated files, files that are cut, several runs, and what is no log."""
    lines = (folder / "known.jsonl").read_text().splitlines()
    older = write_lines(folder / "log.1", lines[:2])
    newer = write_lines(folder / "log", lines[2:])
    for form in ("--prometheus", "--csv"):
        for files in ((older, newer), (newer, older)):
            demand(convert(form, *files) == convert(form, folder / "known.jsonl"),
                   f"{form}: a rotated file is another one")
    torn = folder / "torn"
    torn.write_text("\n".join(lines[:2]) + "\n" + lines[2][:100])
    demand(len(convert("--csv", torn).splitlines()) == 2, "an incomplete line is a window")
    rank = write_lines(folder / "rank", [line.replace('"rank":2', '"rank":3') for line in lines])
    series, _ = read_page(convert("--prometheus", folder / "known.jsonl", rank), failures.append)
    demand(len([name for name, _ in series if name == "tamis_steps_total"]) == 2, "ranks are mixed")
    bare = json.loads(lines[0])
    bare["domains"] = [{**bare["domains"][0], "id": "nvml"}]
    bare["rank"] = 9
    bare = write_lines(folder / "bare", [json.dumps(bare)])
    demand(convert("--zeus", bare) == "start_time,window_name,elapsed_time\n",
           "a source without devices has a column")
    demand("no GPU" in convert_aloud("--zeus", bare) and not convert_aloud("--zeus", rank),
           "it is not said that there are no joules, or said of others")
    demand("different columns" in convert("--zeus", bare, rank, code=1), "columns are mixed")
    demand("no header" in convert("--csv", write_lines(folder / "no", ["{}"]), code=1), "no header")
    demand("none: No such file" in convert("--csv", folder / "none", code=1), "no file")
    page = folder / "page.prom"
    demand(convert("--prometheus", "-o", page, rank) == "" and page.exists()
           and not (folder / "page.prom.tmp").exists(), "-o leaves other files")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([*PROGRAM, name], check=True)
        check_pages(folder)
        check_unknown_page(folder)
        check_ranks(folder)
        check_rank_rows(folder)
        check_watts(folder)
        check_late(folder)
        check_spoilt_pages(folder)
        check_tables(folder)
        check_files(folder)
    for words in failures:
        print(words, file=sys.stderr)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
