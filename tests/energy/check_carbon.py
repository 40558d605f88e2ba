#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What tamis-carbon-convert makes of files of others.

    check_carbon.py CONVERT

Values are those of the files in g/kWh, at their Unix times; what is unknown stays so. What could mean
two things is said or refused. Damaged files are refused by a sentence, or read.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

CONVERT = sys.argv[1]
failures = []


def demand(true, words):
    if not true:
        failures.append(words)


def run(path, *options):
    return subprocess.run([sys.executable, CONVERT, str(path), *map(str, options)], capture_output=True,
                          text=True)


def check(name, text, *options, trace=None, says):
    """@param trace  lines that are written, without the heading; None: the file is refused"""
    path = FOLDER / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = run(path, *options)
    lines = done.stdout.splitlines()
    demand((done.returncode == 0) == (trace is not None), f"{name}: {done}")
    demand(lines == (["time,g_per_kwh"] + trace if trace is not None else []), f"{name}: {lines}")
    demand(says in done.stderr and str(path) in done.stderr and done.stderr.count("\n") == 1,
           f"{name} does not say {says!r}: {done.stderr}")


# -- Electricity Maps ------------------------------------------------------------------------------

NEW = ("Datetime (UTC),Country,Zone name,Zone id,Carbon intensity gCO\u2082eq/kWh (direct),"
       "Carbon intensity gCO\u2082eq/kWh (Life cycle),Carbon-free energy percentage (CFE%)\n"
       "2024-06-10 06:00:00,France,\"a, b\",FR,12.5,38.25,97.1\n"
       "2024-06-10 07:00:00,France,\"a, b\",FR,13,39,97.0\n"
       "2024-06-10 08:00:00,France,\"a, b\",FR,,,\n"
       "2024-06-10 09:00:00,France,\"a, b\",FR,15,41,97.0\n"
       "2024-06-10 14:00:00,France,\"a, b\",FR,16,42,97.0\n")
LIFE_CYCLE = ["1717999200,38.25", "1718002800,39", "1718006400,", "1718010000,41", "1718013600,",
              "1718028000,42"]
DIRECT = ["1717999200,12.5", "1718002800,13", "1718006400,", "1718010000,15", "1718013600,", "1718028000,16"]


def check_electricity_maps():
    check("maps", NEW, trace=LIFE_CYCLE, says="(Life cycle)'; 1 of 5 are unknown")
    check("marked", ("\ufeff" + NEW).replace("\n", "\r\n"), trace=LIFE_CYCLE, says="(Life cycle)'")
    check("direct", NEW, "--take", "direct", trace=DIRECT, says="(direct)'")
    check("actual", NEW, "--take", "actual", says="no actual values: --take direct or lifecycle")
    older = NEW.replace("Carbon intensity", "Carbon Intensity").replace("\u2082", "2")
    for name in ("LCA", "life cycle assessment"):
        check(name, older.replace("Life cycle", name), trace=LIFE_CYCLE, says=f"({name})'")
    check("one", NEW.replace("gCO\u2082eq/kWh (Life cycle)", "of others"), trace=DIRECT, says="(direct)'")
    check("unit", NEW.replace("gCO\u2082eq/kWh", "lbCO2eq/MWh"), says="is not gCO2eq/kWh")
    check("local", NEW.replace("(UTC)", "(local)"), says="no columns 'Datetime (UTC)'")
    check("word", NEW.replace("38.25", "high"), says="'high' is not a number")
    check("much", NEW.replace("38.25", "38000"), says="38000 g/kWh is not between 0 and 10000")
    check("twice", NEW.replace("07:00", "06:00"), says="two values have the same time")
    check("cut", "Carbon intensity gCO2eq/kWh (direct),Datetime (UTC)\n12\n", says="Invalid isoformat")
    check("wide", NEW.replace("a, b", "a" * 200000), says="field larger than field limit")
    check("short", "".join(NEW.splitlines(True)[:2]), says="fewer than two values")


# -- WattTime, carbonintensity.org.uk --------------------------------------------------------------

def watttime(units="lbs_co2_per_mwh", signal="co2_moer", zone="+00:00", values=(1000, 870.5, 0)):
    points = [{"point_time": f"2024-06-10T06:{5 * i:02}:00{zone}", "value": value, "version": "3"}
              for i, value in enumerate(values)]
    return json.dumps({"data": points, "meta": {"region": "CAISO_NORTH", "signal_type": signal,
                                                "units": units, "data_point_period_seconds": 300}})


def check_watttime():
    """1000 lb/MWh are 453.59237 g/kWh."""
    trace = ["1717999200,453.59237", "1717999500,394.852158", "1717999800,0"]
    check("watttime", watttime(), trace=trace, says="took co2_moer in lbs_co2_per_mwh")
    check("zulu", watttime(zone="Z"), trace=trace, says="took co2_moer")
    later = [f"{int(line.split(',')[0]) - 7200},{line.split(',')[1]}" for line in trace]
    check("offset", watttime(zone="+02:00"), trace=later, says="took co2_moer")
    check("health", watttime("usd_per_mwh", "health_damage"), says="the unit usd_per_mwh of health_damage")
    check("bare", watttime(zone=""), says="has no offset from UTC")
    check("choice", watttime(), "--take", "direct", says="leave out --take")
    check("nan", watttime().replace("870.5", "NaN"), says="is not a number")
    check("other", json.dumps({"data": [{"time": 1}], "meta": {"units": "lbs_co2_per_mwh"}}), says="neither as")
    check("list", "[1, 2]", says="neither as")
    check("torn", watttime()[:-5], says="line 1 column")


def carbonintensity(actual=(100, 104, None)):
    entries = [{"from": f"2024-06-10T{6 + i // 2:02}:{30 * (i % 2):02}Z",
                "to": "2024-06-10T07:00Z", "intensity": {"forecast": 90 + i, "actual": value, "index": "low"}}
               for i, value in enumerate(actual)]
    return {"data": entries}


def check_carbonintensity():
    trace = ["1717999200,100", "1718001000,104", "1718002800,"]
    forecast = ["1717999200,90", "1718001000,91", "1718002800,92"]
    found = carbonintensity()
    check("uk", json.dumps(found), trace=trace, says="took actual values; 1 of 3 are unknown")
    check("ahead", json.dumps(found), "--take", "forecast", trace=forecast, says="took forecast values")
    for entry in found["data"]:
        del entry["intensity"]["actual"]
    check("region", json.dumps({"data": {"regionid": 3, **found}}), trace=forecast, says="took forecast values")


# -- files -----------------------------------------------------------------------------------------

def check_files():
    path = FOLDER / "maps"
    done = run(path, "-o", FOLDER / "trace.csv")
    demand(done.stdout == "" and (FOLDER / "trace.csv").read_text().splitlines()[1:] == LIFE_CYCLE
           and not (FOLDER / "trace.csv.tmp").exists(), f"-o: {done}")
    demand("none: No such file" in run(FOLDER / "none").stderr, "no file")


def check_damage():
    """A sentence and no traceback, whatever is changed."""
    draw = random.Random(1)
    for i in range(60):
        good = (NEW, watttime(), json.dumps(carbonintensity()))[i % 3].encode()
        at = draw.randrange(len(good))
        bad = good[:at] if i % 2 else good[:at] + bytes([draw.randrange(256)]) + good[at + 1:]
        path = FOLDER / "damaged"
        path.write_bytes(bad)
        done = run(path)
        demand(done.returncode in (0, 1) and done.stderr.startswith(str(path)), f"{bad!r}: {done}")


def main():
    check_electricity_maps()
    check_watttime()
    check_carbonintensity()
    check_files()
    check_damage()
    for words in failures:
        print(words, file=sys.stderr)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        FOLDER = pathlib.Path(name)
        sys.exit(main())
