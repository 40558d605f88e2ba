#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiled code: what nvcc makes of the kernels, on a machine without a GPU or a disassembler.

    widths.py NVCC TREE hot    the accumulate kernels move 128 bits at a time, have all loads of a
                               chunk under way before they use one, and spill nothing
    widths.py NVCC TREE all    all kernels compile for all processors and spill nothing

A cubin is an ELF file with a section .text.NAME for each kernel. From sm_70 on an instruction has
16 bytes: the operation in bits 0 to 11, its result's register in 16 to 23, those that it reads in 24
to 31, 32 to 39 and 64 to 71. Bits 73 to 75 have the width of a memory access; bits 78 to 80 of a load
say how far it must be coherent (5, STRONG: the whole system, a volatile one; 2: not at all, for the
memory is constant). That is not documented, so widths.cu, where it is known what must come out, is compiled
and counted first.
"""
import collections
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

OPERATIONS = {0x981: "LDG", 0x986: "STG", 0x983: "LDL", 0x387: "STL"}
COMPARISONS = {0x00B, 0x00C}  # FSETP, ISETP in all forms: they read two registers
BITS = {0: 8, 1: 8, 2: 16, 3: 16, 4: 32, 5: 64, 6: 128}

CONSTANT = 2  # __ldg: chunks and thresholds are read so

CONTROL = {"words": {"LDG.32", "STG.32"}, "pairs": {"LDG.64", "STG.64"},
           "quads": {"LDG.128", "STG.128"}, "together": {"LDG.128", "STG.128"},
           "apart": {"LDG.128", "STG.128"}, "strong": {"LDG.32.STRONG", "STG.32"}}
CONTROL_AHEAD = {"quads": [1], "together": [4], "apart": [2, 2]}

# Kernel -> what a warp needs to take a chunk of 512 elements, 16 in each lane, in the fewest
# accesses: residual in and out, gradient in and, in the first `Lb1` ones, zeros out; in the second, of
# updates, two moments in and out. More may be there:
# the same for memory that stays in cache, and narrow ones for chunks that are short or misaligned.
HOT = {r"accumulateI7float32Lb0ELb0E": {"LDG.128": 8, "STG.128": 4},
       r"accumulateI7float32Lb1ELb0E": {"LDG.128": 8, "STG.128": 8},
       r"accumulateI7float32Lb1ELb1E": {"LDG.128": 16, "STG.128": 16},
       r"accumulateI6bits16.*Lb0ELb0E": {"LDG.128": 4, "LDG.64": 4, "STG.128": 4},
       r"accumulateI6bits16.*Lb1ELb0E": {"LDG.128": 4, "LDG.64": 4, "STG.128": 4, "STG.64": 4}}
# How many loads of a chunk are issued before the first use of one: vectors; elements of residual
# and gradient where one of them is not aligned.
AHEAD = {"Lb[01]ELb0E": {(64, 128): 8, (16, 32): 32}, "Lb[01]ELb1E": {(64, 128): 16, (16, 32): 32}}
# So that so many blocks of 256 threads fit a multiprocessor, or two where updates are made: four,
# and three for what needs more (accumulate.cu).
MOST_REGISTERS = {4: {"": 64, "Lb[01]ELb1E": 128}, 3: {"": 80, "Lb[01]ELb1E": 128}}

failures = []


def demand(true, words):
    if not true:
        failures.append(words)
        print("FAILED:", words)


def sections(path):
    """Name and bytes of every section of a 64-bit little-endian ELF file."""
    data = path.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        sys.exit(f"{path} is no 64-bit ELF file")
    table, = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQ", data, table + size * i) for i in range(count)]
    for name, _, _, _, begin, length in heads:
        start = heads[names][4] + name
        yield data[start:data.index(b"\0", start)].decode(), data[begin:begin + length]


def count_accesses(code):
    """{"LDG.128": 8, ...} of one kernel."""
    counts = collections.Counter()
    for low, high in struct.iter_unpack("<QQ", code):
        operation = OPERATIONS.get(low & 0xFFF)
        if operation:
            strong = ".STRONG" if operation == "LDG" and high >> 14 & 7 == 5 else ""
            counts[f"{operation}.{BITS.get(high >> 9 & 7, '?')}{strong}"] += 1
    return counts


def kernels_of(cubin, count=count_accesses, *how):
    return {name[6:]: count(code, *how) for name, code in sections(cubin)
            if name.startswith(".text.")}


def count_ahead(code, widths):
    """Loads of these widths, of memory that is not constant, in each stretch of code that uses none of them."""
    lengths, loaded = [0], set()
    for low, high in struct.iter_unpack("<QQ", code):
        load = OPERATIONS.get(low & 0xFFF) == "LDG"
        read = {low >> 24 & 255} | (set() if load else {low >> 32 & 255})
        read |= set() if load or low & 0x1FF in COMPARISONS else {high & 255}
        if read & loaded:
            lengths, loaded = lengths + [0], set()
        width = BITS.get(high >> 9 & 7)
        if load and width in widths and high >> 14 & 7 != CONSTANT:
            first = low >> 16 & 255
            loaded |= set(range(first, first + (width + 31) // 32))
            lengths[-1] += 1
    return [n for n in lengths if n]


def version(nvcc):
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    return tuple(map(int, re.search(r"release (\d+)\.(\d+)", said).groups()))


def build(nvcc, tree, source, arch, folder):
    """@return the compiled file and what ptxas said of it, or nothing if it does not compile"""
    out = folder / f"{source.stem}.{arch}"
    kind = "-ptx" if arch.startswith("compute") else "-cubin"
    done = subprocess.run(
        [nvcc, "-std=c++17", kind, f"-arch={arch}", "-fmad=false", "-Xptxas=-v", f"-I{tree}",
         f"-I{tree}/include", "-o", out, source], capture_output=True, text=True)
    demand(done.returncode == 0, f"{source.name} does not compile for {arch}:\n{done.stderr}")
    return (out, done.stderr) if done.returncode == 0 else None


def check_spills(source, arch, report, limits={"": 255}):
    """What ptxas says of each kernel."""
    names = re.findall(r"Compiling entry function '(\S+)'", report)
    spills = re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    registers = re.findall(r"Used (\d+) registers", report)
    demand(names and len(names) == len(registers) <= len(spills), f"ptxas said nothing of {source}")
    demand(all(pair == ("0", "0") for pair in spills), f"{source} spills on {arch}: {spills}")
    for name, number in zip(names, map(int, registers)):
        print(f"{arch} {number:3} registers  {name[:70]}")
        most = max(limit for pattern, limit in limits.items() if re.search(pattern, name))
        demand(number <= most, f"{name} needs {number} registers on {arch}, more than {most}")


def check_control(nvcc, tree, arch, folder):
    built = build(nvcc, tree, tree / "tests/cuda/widths.cu", arch, folder)
    if not built:
        return
    found = {re.sub(r"^_Z\d+([a-z]+).*", r"\1", name): set(counts)
             for name, counts in kernels_of(built[0]).items()}
    for name, expected in CONTROL.items():
        demand(found.get(name) == expected,
               f"the table does not hold on {arch}: {name} has {found.get(name)}")
    ahead = kernels_of(built[0], count_ahead, (128,))
    for name, expected in CONTROL_AHEAD.items():
        lengths = [v for k, v in ahead.items() if re.search(rf"^_Z\d+{name}P", k)]
        demand(lengths == [expected], f"the table does not hold on {arch}: {name} has {lengths}")
    local = {access[:3] for access in found.get("spilled", ())}
    demand({"LDL", "STL"} <= local, f"the table does not hold on {arch}: spilled has {local}")


def check_ahead(cubin, pattern, widths, least):
    found = {name: lengths for name, lengths in kernels_of(cubin, count_ahead, widths).items()
             if re.search(pattern, name)}
    demand(found, f"no kernel is called {pattern}")
    for name, lengths in found.items():
        demand(max(lengths, default=0) >= least,
               f"{name} uses what it loads after {lengths} loads of {widths}, not {least}")


def check_hot(nvcc, tree, folder):
    arch = "sm_90"
    check_control(nvcc, tree, arch, folder)
    built = build(nvcc, tree, tree / "kernels/cuda/accumulate.cu", arch, folder)
    if not built:
        return
    resident = 4 if version(nvcc) < (13, 1) else 3
    check_spills("accumulate.cu", arch, built[1], MOST_REGISTERS[resident])
    found = kernels_of(built[0])
    for pattern, leasts in AHEAD.items():
        for widths, least in leasts.items():
            check_ahead(built[0], pattern, widths, least)
    for pattern, least in HOT.items():
        matching = [name for name in found if re.search(pattern, name)]
        demand(matching, f"no kernel is called {pattern}")
        for name in matching:
            counts = found[name]
            print(pattern, dict(sorted(counts.items())))
            for access, number in least.items():
                demand(counts[access] >= number,
                       f"{pattern} has {counts[access]} {access}, not {number}")
            demand(not any(a[:3] in ("LDL", "STL") for a in counts),
                   f"{pattern} uses local memory")
            demand(not any(a.endswith("STRONG") for a in counts),
                   f"{pattern} has strong loads: a round trip to the L2 for every chunk")


def check_all(nvcc, tree, folder):
    for source in sorted(tree.glob("kernels/cuda/*.cu")):
        for arch in "sm_80", "sm_90", "compute_90":
            built = build(nvcc, tree, source, arch, folder)
            if built and arch != "compute_90":
                check_spills(source.name, arch, built[1])


def main():
    if len(sys.argv) != 4 or sys.argv[3] not in ("hot", "all"):
        sys.exit(__doc__)
    nvcc, tree, what = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    with tempfile.TemporaryDirectory() as folder:
        (check_hot if what == "hot" else check_all)(nvcc, tree, pathlib.Path(folder))
    sys.exit(len(failures) > 0)


if __name__ == "__main__":
    main()
