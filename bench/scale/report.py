#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""A page in Markdown of what bench/scale.sh ran.

    report.py FOLDER

Reads FOLDER/measured-NAME.jsonl (records of tamis_perf), FOLDER/verify.jsonl and scale-NAME.jsonl
(of tamis_scale) and link-NAME.json (of cluster_link), whichever there are; prints the page.
"""
import json
import pathlib
import sys

MEASURED = {
    "threads": "Ranks as threads (transport local). Beside: scheme `dense` of the library, for "
               "threads have no MPI.",
    "processes": "Ranks as processes (transport mpi) in shared memory. Beside: MPI_Allreduce, "
                 "tuned.",
    "1gbit": "Ranks on four emulated hosts with cables of 1 Gbit/s. Beside: MPI_Allreduce, tuned.",
    "100mbit": "Ranks on four emulated hosts with cables of 100 Mbit/s. Beside: MPI_Allreduce, "
               "tuned.",
    "given": "Ranks as started by the command given with --mpirun. Beside: MPI_Allreduce, as it is.",
}


def read(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def table(heads, rows):
    print("| " + " | ".join(heads) + " |")
    print("|" + "---:|" * len(heads))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print()


def ms(us):
    return "-" if us is None else f"{1e-3 * us:.3g}"


def ratio(value):
    return "-" if value is None else f"{value:.2f}"


def measured(folder):
    for name, words in MEASURED.items():
        path = folder / f"measured-{name}.jsonl"
        records = read(path) if path.exists() else []
        if not records:
            continue
        print(words + "\n")
        link = folder / f"link-{name}.json"
        if link.exists():
            said = read(link)[0]
            print(f"cluster_link: latency {said['latency_us']['median']} us, pairs "
                  f"{said['gbit_s']['pair']['median']} Gbit/s each way.\n")
        table(("ranks", "elements", "density", "dense ms", "step ms", "exchange ms", "dense / step",
               "bytes of a rank"),
              [(r["ranks"], r["n"], r["density"], ms(r["dense_us"]), ms(r["time_us"]["median"]),
                ms(r["phase_us"] and r["phase_us"]["exchange"]), ratio(r["speedup_vs_dense"]),
                round(r["wire_bytes"])) for r in sorted(records, key=lambda r: r["ranks"])])


def verified(folder):
    path = folder / "verify.jsonl"
    records = read(path) if path.exists() else []
    if not records:
        return
    print("## Bytes sent and predicted\n")
    print("Steps over MPI, of rank 0; `tamis_scale --verify` fails where any rank differs by more "
          "than 5 %.\n")
    table(("ranks", "plan", "k", "indices", "sent", "predicted", "exchange ms"),
          [(r["ranks"], r["plan"], r["entries"], r["index_codec"], round(r["sent_bytes"]),
            round(r["predicted_bytes"]), ms(r["exchange_us"])) for r in records])


def simulated(folder):
    print("## Simulated\n")
    print("The library's state machines on a simulated network, one thread and a virtual clock; "
          "formula, linear\nand dense by formula. **None of these times is measured.**\n")
    for path in sorted(folder.glob("scale-*.jsonl")):
        records = read(path)
        if not records:
            continue
        first = records[0]
        print(f"{first['net_text']}. n {first['elements']}, density {first['density']:g}, "
              f"{first['local_steps']} local steps.\n")
        table(("ranks", "plan", "messages", "bytes of a rank", "dense ms", "linear ms",
               "formula ms", "simulated ms", "dense / simulated", "local step ms"),
              [(r["ranks"], r["plan"], r["messages"], r["rank_bytes"], ms(r["dense_us"]),
                ms(r["linear_us"]), ms(r["formula_us"]), ms(r["simulated_us"]),
                ratio(r["speedup"]), ms(r["local_step_us"])) for r in records])
    if (folder / "scale.png").exists():
        print("![Communication of a step over the number of ranks](scale.png)")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    print("# Scale\n")
    notes = folder / "notes.txt"
    if notes.exists():
        print(notes.read_text(encoding="utf-8"))
    print("## Measured\n")
    print("Communication of one step and all that belongs to it, median of the repetitions; ranks "
          "share the\nprocessors of their machine.\n")
    measured(folder)
    verified(folder)
    simulated(folder)


if __name__ == "__main__":
    main()
