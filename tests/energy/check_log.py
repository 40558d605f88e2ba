#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What the energy log writes, against what docs/energy.md says of it; decisions of a governor, against
docs/energy.md beside it.

    check_log.py DOCS PROGRAM...     PROGRAM FOLDER writes the files that are looked at

Each record has exactly the fields of the tables in DOCS, with their types. That the checks can fail
is seen by spoiling each row of the table.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

failures = []


def demand(true, words):
    if not true:
        failures.append(words)


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


def main():
    docs, program = pathlib.Path(sys.argv[1]), sys.argv[2:]
    rows = read_schema(docs)
    demand(len(rows) > 50, f"{docs} has {len(rows)} rows of the schema")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        subprocess.run([*program, name], check=True)
        lines = [line for name in ("known", "unknown", "decisions")
                 for line in read_lines(folder / f"{name}.jsonl")]
        check_json(rows, lines)
    for words in failures:
        print(words, file=sys.stderr)
    print(f"{len(lines)} lines, {len(rows)} rows of the schema, "
          f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
