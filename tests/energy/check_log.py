#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the energy log writes, against what docs/energy.md says of it.

    check_log.py DOCS PROGRAM     PROGRAM FOLDER writes the files that are looked at

JSON Lines: each record has exactly the fields of the tables in DOCS, with their types. Prometheus:
the text format 0.0.4 and the rules of `promtool check metrics`. CSV: columns and numbers. That the
checks can fail is seen by spoiling each row of the table, and pages of metrics.
"""
import csv
import decimal
import json
import pathlib
import re
import subprocess
import sys
import tempfile

failures = []


def demand(true, words):
    if not true:
        failures.append(words)


# -- JSON Lines ------------------------------------------------------------------------------------

def read_schema(docs):
    """[record, field, type] of every row of the tables that begin with these three columns."""
    rows, inside = [], False
    for line in docs.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            inside = False
        elif cells[:3] == ["record", "field", "type"]:
            inside = True
        elif inside and not set(line) <= set("|-"):
            rows.append([cells[0], cells[1].strip("`"), cells[2]])
    return rows


def records_of(rows):
    records = {}
    for names, field, kind in rows:
        for name in names.split(", "):
            demand(field not in records.setdefault(name, {}), f"{name}.{field} is described twice")
            records[name][field] = kind
    return records


TYPES = {"text": lambda value: isinstance(value, str),
         "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
         "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
         "boolean": lambda value: isinstance(value, bool)}


def compare(records, kind, value, where, complain, seen):
    if kind.endswith(" or null"):
        seen.add((where, value is None))
        if value is None:
            return
        kind = kind.removesuffix(" or null")
    if kind.startswith("list of "):
        if not isinstance(value, list):
            complain(f"{where} is no list")
            return
        for entry in value:
            compare(records, kind.removeprefix("list of "), entry, where + "[]", complain, seen)
    elif kind in TYPES:
        if not TYPES[kind](value):
            complain(f"{where} is {value!r}, not {kind}")
    else:
        name = kind.removeprefix("object ")
        fields = records.get(name, {})
        if not isinstance(value, dict) or set(value) != set(fields):
            complain(f"{where}: {set(value) ^ set(fields)} is in the file or in the table of {name}"
                     " alone")
            return
        for field, kind_of_field in fields.items():
            seen.add((f"{name}.{field}", "value"))
            compare(records, kind_of_field, value[field], f"{name}.{field}", complain, seen)


def no_constant(name):
    raise ValueError(f"{name} is no JSON")


def no_twins(pairs):
    if len(dict(pairs)) != len(pairs):
        raise ValueError(f"a key occurs twice: {pairs}")
    return dict(pairs)


def read_lines(path):
    text = path.read_bytes().decode("utf-8")
    demand(text.endswith("\n"), f"{path.name} ends within a line")
    return [json.loads(line, parse_constant=no_constant, object_pairs_hook=no_twins)
            for line in text[:-1].split("\n")]


def compare_all(rows, lines):
    complaints, seen = [], set()
    records = records_of(rows)
    for line in lines:
        compare(records, line["type"], line, line["type"], complaints.append, seen)
    return complaints, seen


def check_json(rows, lines):
    complaints, seen = compare_all(rows, lines)
    failures.extend(complaints)
    for name, fields in records_of(rows).items():
        for field, kind in fields.items():
            where = f"{name}.{field}"
            demand((where, "value") in seen, f"{where} was never written")
            for null in (True, False) if kind.endswith(" or null") else ():
                demand((where, null) in seen, f"{where} was never {'' if null else 'but '}null")
    for i, (names, field, kind) in enumerate(rows):
        others = [[names, field + "x", kind],
                  [names, field, "boolean" if kind.startswith("text") else "text"]]
        if kind.endswith(" or null"):
            others.append([names, field, kind.removesuffix(" or null")])
        for other in others + [None]:
            spoilt = rows[:i] + ([other] if other else []) + rows[i + 1:]
            demand(compare_all(spoilt, lines)[0], f"nothing is said when {rows[i]} is {other}")


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


def joules_by_phase(series):
    return sum(value for (name, _), value in series.items() if name == "tamis_energy_joules_total")


def check_pages(folder, lines):
    before, measured = {}, 0
    windows = [line for line in lines if line["type"] == "window" and not line["overlaps"]]
    for i, window in enumerate(windows):
        series, types = read_page((folder / f"known.{i}.prom").read_text(), failures.append)
        measured += window["uj"]
        demand(joules_by_phase(series) * 1000000 == measured,
               f"page {i}: phases add up to {joules_by_phase(series)} J, not {measured} uJ")
        for key, value in before.items():
            demand(types[key[0]] != "counter" or series.get(key, -1) >= value, f"{key} fell")
        before = series
    demand(len(windows) >= 3 and types, "there are fewer than 3 pages")
    demand(not (folder / "known.prom.tmp").exists(), "a file was left beside the page")


def check_unknown_page(folder):
    series, _ = read_page((folder / "unknown.prom").read_text(), failures.append)
    for metric in ("tamis_energy_joules_total", "tamis_energy_domain_joules_total",
                   "tamis_power_watts", "tamis_carbon_grams_total", "tamis_slack_p95_seconds"):
        demand(all(name != metric for name, _ in series), f"{metric} is unknown but has a series")
    demand(series, "the page without measurements is empty")


def check_spoilt_pages(folder):
    page = (folder / "known.2.prom").read_text()
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

def check_csv(path, columns, lines):
    text = path.read_text()
    rows = list(csv.reader(text.splitlines()))
    windows = [line for line in lines if line["type"] == "window"]
    demand('"' not in text and ",".join(rows[0]) == columns, f"{path.name} begins with {rows[0]}")
    demand(len(rows) == 1 + len(windows), f"{path.name} has {len(rows)} lines")
    for row, window in zip(rows[1:], windows):
        cells = dict(zip(rows[0], row))
        demand(len(row) == len(rows[0]), f"{path.name}: {len(row)} fields in {row}")
        demand(float(cells["elapsed_time"]) == window["t1"] - window["t0"], f"elapsed: {row}")
        gpus = [entry["uj"] for entry in window["domains"] if entry["id"].startswith("nvml:")]
        for i, uj in enumerate(gpus):
            cell = cells[f"gpu{i}_energy"]
            demand(cell == "" if uj is None else decimal.Decimal(cell) * 1000000 == uj, f"{row}")


ZEUS = "start_time,window_name,elapsed_time,gpu0_energy,gpu1_energy"
OURS = ZEUS + ",cpu0_energy,cpu1_energy,dram0_energy,method,ci_lo,ci_hi,status"


def main():
    docs, program = pathlib.Path(sys.argv[1]), sys.argv[2]
    rows = read_schema(docs)
    demand(len(rows) > 50, f"{docs} has {len(rows)} rows of the schema")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([program, name], check=True)
        known, unknown = read_lines(folder / "known.jsonl"), read_lines(folder / "unknown.jsonl")
        check_json(rows, known + unknown)
        check_pages(folder, known)
        check_unknown_page(folder)
        check_spoilt_pages(folder)
        check_csv(folder / "known.csv", ZEUS, known)
        check_csv(folder / "unknown.csv", OURS, unknown)
    for words in failures:
        print(words, file=sys.stderr)
    print(f"{len(known) + len(unknown)} lines, {len(rows)} rows of the schema, "
          f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
