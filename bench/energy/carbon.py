#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Carbon intensity from others, as the trace that libtamis reads: time,g_per_kwh.

    tamis-carbon-convert [--take WHICH] FILE [-o TRACE]

FILE is what these services give:

    Electricity Maps   CSV of a zone. Takes life cycle emissions; --take direct: of burning alone
    WattTime, API v3   JSON of /v3/historical or /v3/forecast with a signal in lbs_co2_per_mwh
    carbonintensity.org.uk   JSON of /intensity/... or of a region. Takes actual values; --take
                       forecast: those that were forecast

What was taken is said on standard error. Values in an unknown unit are refused. A value that is
missing, and the time behind a value of which the next is late, are unknown, never an average.
"""
import argparse
import csv
import datetime
import decimal
import io
import json
import os
import pathlib
import re
import statistics
import sys

# Grams a kWh in one of WattTime's unit.
UNITS = {"lbs_co2_per_mwh": decimal.Decimal("0.45359237")}
MOST = 10000  # g/kWh that the library accepts


def unix_s(text, utc=False):
    """Seconds of a date with its offset, or, if `utc`, without one."""
    date = datetime.datetime.fromisoformat(re.sub("Z$", "+00:00", (text or "").strip()))
    if date.tzinfo is None and not utc:
        raise ValueError(f"the time {text!r} has no offset from UTC")
    date = date if date.tzinfo else date.replace(tzinfo=datetime.timezone.utc)
    return int(date.timestamp())


def choose(take, names, default):
    """The name that was asked for, else the default; what was taken is said by the caller."""
    wanted = take or (default if default in names else min(names))
    if wanted not in names:
        raise ValueError(f"it has no {wanted} values: --take {' or '.join(sorted(names))}")
    return wanted


def read_electricity_maps(text, take):
    """[time, value], what was taken, grams a kWh in one of it. A column's name has the unit, with a
    subscript 2 or a plain one, and what it covers: direct, LCA, Life cycle, life cycle assessment."""
    rows = csv.DictReader(io.StringIO(text))
    names = rows.fieldnames or []
    times = [name for name in names if name.strip().lower() == "datetime (utc)"]
    columns = {}
    for name in names:
        match = re.fullmatch(r"carbon intensity (\S+) \((direct|lca|life ?cycle.*)\)",
                             name.strip().lower().replace("\u2082", "2"))
        if match and match[1] != "gco2eq/kwh":
            raise ValueError(f"the unit of the column {name!r} is not gCO2eq/kWh")
        if match:
            columns["direct" if match[2] == "direct" else "lifecycle"] = name
    if not times or not columns:
        raise ValueError("the first line has no columns 'Datetime (UTC)' and "
                         "'Carbon intensity gCO\u2082eq/kWh (direct)' or '(Life cycle)'")
    taken = columns[choose(take, columns, "lifecycle")]
    return [(unix_s(row[times[0]], utc=True), row[taken]) for row in rows], repr(taken), 1


def read_watttime(found, take):
    if take:
        raise ValueError("a signal of WattTime has values of one kind: leave out --take")
    signal, unit = found["meta"].get("signal_type"), str(found["meta"].get("units"))
    if unit not in UNITS:
        raise ValueError(f"the unit {unit} of {signal} is unknown; known: {', '.join(UNITS)}")
    return ([(unix_s(point["point_time"]), point["value"]) for point in found["data"]],
            f"{signal} in {unit}", UNITS[unit])


def read_carbonintensity(found, take):
    """A region's are one level deeper, and are forecasts alone."""
    data = found["data"]["data"] if isinstance(found["data"], dict) else found["data"]
    kinds = {kind for entry in data for kind in ("actual", "forecast") if kind in entry["intensity"]}
    kind = choose(take, kinds or {"actual"}, "actual")
    rows = [(unix_s(entry["from"]), entry["intensity"].get(kind)) for entry in data]
    return rows, f"{kind} values", 1


def read_any(text, take):
    if not text.lstrip().startswith(("{", "[")):
        return read_electricity_maps(text, take)
    found = json.loads(text, parse_float=decimal.Decimal)
    try:
        return (read_watttime if "meta" in found else read_carbonintensity)(found, take)
    except (KeyError, TypeError, AttributeError):
        raise ValueError("it is JSON, but neither as WattTime's API v3 nor as carbonintensity.org.uk "
                         "has it") from None


def convert(value, factor):
    """Grams as text, '': unknown."""
    if value is None or str(value).strip() == "":
        return ""
    try:
        grams = decimal.Decimal(str(value)) * factor
        if 0 <= grams <= MOST:
            return f"{round(grams, 6).normalize():f}"
    except decimal.DecimalException:
        raise ValueError(f"{value!r} is not a number") from None
    raise ValueError(f"{grams} g/kWh is not between 0 and {MOST}")


def lay_out(rows):
    """In the order of time; a row without value ends what is followed late."""
    rows = sorted(rows)
    times = [time for time, _ in rows]
    if len(rows) < 2:
        raise ValueError("it has fewer than two values; give a single one as a constant")
    if len(set(times)) < len(times):
        raise ValueError("two values have the same time: give a file of one place")
    step = statistics.median_low(later - time for time, later in zip(times, times[1:]))
    lines = ["time,g_per_kwh"]
    for i, (time, grams) in enumerate(rows):
        lines.append(f"{time},{grams}")
        if i + 1 < len(rows) and times[i + 1] - time >= 2 * step:
            lines.append(f"{time + step},")
    return "".join(line + "\n" for line in lines)


def make_trace(path, take):
    text = pathlib.Path(path).read_bytes().decode("utf-8-sig", "replace")
    rows, taken, factor = read_any(text, take)
    rows = [(time, convert(value, factor)) for time, value in rows]
    trace = lay_out(rows)
    unknown = sum(not grams for _, grams in rows)
    print(f"{path}: took {taken}" + (f"; {unknown} of {len(rows)} are unknown" if unknown else ""),
          file=sys.stderr)
    return trace


def main():
    parser = argparse.ArgumentParser(description=__doc__, prog="tamis-carbon-convert",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--take", metavar="WHICH", help="which values, where FILE has several",
                        choices=("lifecycle", "direct", "actual", "forecast"))
    parser.add_argument("-o", "--output", metavar="TRACE", help="in place of standard output")
    parser.add_argument("file", metavar="FILE")
    given = parser.parse_args()
    try:
        trace = make_trace(given.file, given.take)
        if not given.output:
            sys.stdout.write(trace)
            return
        beside = pathlib.Path(given.output + ".tmp")
        beside.write_text(trace, encoding="utf-8")
        os.replace(beside, given.output)
    except OSError as error:
        sys.exit(f"{error.filename}: {error.strerror}")
    except (ValueError, OverflowError, RecursionError, csv.Error) as error:
        sys.exit(f"{given.file}: {error}")


if __name__ == "__main__":
    main()
