#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PTX, as nvcc writes it, to a program for machine.cpp.

    assemble.py FILE.ptx... > PROGRAM

Names become places in the register file of a warp, labels become numbers of instructions, and
names of instructions lose what changes nothing here (rounding to nearest, hints for caches, signs
where they do not matter). What the kernels of this project do not use is refused by name, so a new
compiler's PTX cannot be taken for something else. A program is lines of words:

    kernel NAME REGISTER_BYTES SHARED_BYTES LOCAL_BYTES
    parameter OFFSET BYTES            the launch copies them into one block
    constant PLACE BYTES VALUE        the same in all lanes, written before a warp starts
    code INSTRUCTION LINE GUARD OPERAND...

GUARD is -1, or 2 * the place of a predicate, + 1 where it must be false.

A register has a place for each of 32 lanes, one lane after another, as wide as its type.
"""
import pathlib
import re
import sys

BITS = {"pred": 8, "b8": 8, "u8": 8, "s8": 8, "b16": 16, "u16": 16, "s16": 16, "b32": 32, "u32": 32,
        "s32": 32, "f32": 32, "b64": 64, "u64": 64, "s64": 64, "f64": 64}
LANES = 32
SPECIAL = {"%tid.x": 0, "%laneid": 128, "%ctaid.x": 256, "%nctaid.x": 384, "%ntid.x": 512}
PARAMETERS, FIRST_PLACE = 640, 896  # where the address of the parameters lies; behind it, registers

# Bits of the destination, then of the sources. T: those of the type; W: twice as many.
SHAPES = {"add": "TTT", "sub": "TTT", "mul": "TTT", "mad": "TTTT", "div": "TTT", "rem": "TTT",
          "min": "TTT", "max": "TTT", "neg": "TT", "sqrt": "TT", "and": "TTT", "or": "TTT",
          "xor": "TTT", "not": "TT", "shl": "TT4", "shr": "TT4", "mov": "TT", "cvta": "TT",
          "setp": "1TT", "selp": "TTT1", "popc": "4T", "brev": "TT", "bfind": "4T", "bfi": "TTT44",
          "prmt": "TTTT", "redux": "444", "mul.wide": "WTT"}
SIGNLESS = {"add", "sub", "mul", "mad", "and", "or", "xor", "not", "shl", "selp", "brev", "bfi"}
MEANINGLESS = {"rn", "lo", "uni", "cs", "to", "sync", "shiftamt", "cta"}


class Refused(Exception):
    pass


def split_operands(text):
    """At commas outside brackets."""
    return [part.strip() for part in re.split(r",(?![^{\[]*[}\]])", text) if part.strip()]


class Kernel:
    """One .entry: its head and body become lines of a program."""

    def __init__(self, name, line):
        self.name, self.line = name, line
        self.at = FIRST_PLACE
        self.places, self.constants = {}, {}  # register -> (place, bits); (bits, value) -> place
        self.symbols = {}                     # of shared and local memory and parameters -> offset
        self.shared = self.local = self.block = 0
        self.parameters, self.code, self.labels = [], [], {}

    # -- names ------------------------------------------------------------------------------------

    def new_place(self, bits):
        place = self.at
        self.at += bits // 8 * LANES
        return place

    def declare_registers(self, kind, names):
        for name in split_operands(names):
            many = re.fullmatch(r"(\S+)<(\d+)>", name)
            for i in range(int(many[2])) if many else [""]:
                self.places[(many[1] if many else name) + str(i)] = \
                    self.new_place(BITS[kind]), BITS[kind]

    def declare_memory(self, space, align, kind, name, count):
        used = -(-getattr(self, space) // align) * align
        size = BITS[kind] // 8 * count
        self.symbols[name] = used
        setattr(self, space, used + size)
        return used, size

    def constant(self, value, bits):
        if bits == 8:
            value = int(value != 0)  # of predicates, where true is written -1
        if (bits, value) not in self.constants:
            self.constants[bits, value] = self.new_place(bits)
        return self.constants[bits, value]

    def place(self, text, bits):
        """The address of an operand of so many bits, which may be a number."""
        if text in self.places:
            place, width = self.places[text]
            if width != bits:
                raise Refused(f"{text} has {width} bits, not {bits}")
            return place
        if text in SPECIAL and bits == 32:
            return SPECIAL[text]
        if re.fullmatch(r"0[fFdD][0-9A-Fa-f]+", text):
            return self.constant(int(text[2:], 16), bits)
        if re.fullmatch(r"-?(0x)?[0-9A-Fa-f]+U?", text):
            return self.constant(int(text.rstrip("U"), 0) % 2**bits, bits)
        if text in self.symbols:
            return self.constant(self.symbols[text], bits)
        raise Refused(f"an operand {text} of {bits} bits")

    def bits_of(self, text, otherwise=None):
        return self.places[text][1] if text in self.places else otherwise

    # -- instructions -----------------------------------------------------------------------------

    def emit(self, name, *operands):
        self.code.append([name, self.line, self.guard, *operands])

    def take(self, text):
        """One statement."""
        guarded = re.match(r"@(!?)(%?\w+)\s+(.*)", text, re.S)
        self.guard = -1
        if guarded:
            self.guard = 2 * self.place(guarded[2], 8) + (guarded[1] == "!")
            text = guarded[3]
        opcode, _, rest = text.partition(" ") if " " in text else (text, "", "")
        words = opcode.split(".")
        operands = split_operands(rest.strip())
        special = getattr(self, "take_" + words[0], None)
        if special:
            special(words, operands)
        elif words[0] in SHAPES:
            self.take_plain(words, operands)
        else:
            raise Refused(opcode)

    def take_plain(self, words, operands):
        base, kind = words[0], words[-1]
        bits = BITS[kind]
        rest = [w for w in words[1:-1] if w not in MEANINGLESS]
        if kind[0] == "f" and base in ("add", "sub", "mul", "div", "sqrt") and "rn" not in words:
            raise Refused(".".join(words) + ": rounded otherwise than to nearest")
        if base == "cvta":
            base, rest = "mov", [w for w in rest if w != "global"]
        shape = SHAPES["mul.wide" if "wide" in rest else base]
        signless = base in SIGNLESS and kind[0] in "us" and not {"wide", "hi"} & set(rest)
        if base == "mov" or signless:
            kind = f"b{bits}"
        if base in ("mov", "selp", "and", "or", "xor", "not"):
            kind = f"b{bits}" if kind != "pred" else kind
        widths = {"T": bits, "W": 2 * bits, "1": 8, "4": 32}
        self.emit(".".join([base, *rest, kind]),
                  *(self.place(o, widths[s]) for o, s in zip(operands, shape, strict=True)))

    def take_mov(self, words, operands):
        """Also packs halves into a register, or takes it apart; also the address of parameters."""
        to, what = operands
        half = BITS[words[-1]] // 2
        if what.startswith("{"):
            self.emit(f"pack.b{2 * half}", self.place(to, 2 * half),
                      *(self.place(o, half) for o in split_operands(what[1:-1])))
        elif to.startswith("{"):
            self.emit(f"unpack.b{2 * half}", self.place(what, 2 * half),
                      *(self.place(o, half) for o in split_operands(to[1:-1])))
        elif what.startswith(self.name + "_param_"):
            self.emit("add.b64", self.place(to, 64), PARAMETERS,
                      self.constant(self.symbols[what], 64))
        else:
            self.take_plain(words, operands)

    def take_cvt(self, words, operands):
        to, source = words[-2:]
        rest = [w for w in words[1:-2] if w != "rn"]
        if BITS[source] == 8:  # of a wider register the lowest byte
            return self.take_byte(to, source, operands)
        self.emit(".".join(["cvt", *rest, to, source]), self.place(operands[0], BITS[to]),
                  self.place(operands[1], BITS[source]))

    def take_byte(self, to, source, operands):
        """There are no registers of 8 bits: shifts carry on its sign."""
        bits = self.bits_of(operands[1])
        place, word = self.place(operands[1], bits), self.new_place(32)
        if bits != 32:
            self.emit(f"cvt.u32.u{bits}", word, place)
            place = word
        self.emit("shl.b32", word, place, self.constant(24, 32))
        self.emit(f"shr.{source[0]}32", word, word, self.constant(24, 32))
        self.emit("mov.b32" if BITS[to] == 32 and to[0] != "f" else f"cvt.{to}.{source[0]}32",
                  self.place(operands[0], BITS[to]), word)

    def address(self, text):
        """-> place and bits of a register, and what is added to it."""
        base, offset = re.fullmatch(r"\[([^+\]]+)(?:\+(-?\d+))?\]", text).groups()
        base, offset = base.strip(), int(offset or 0)
        if base in self.places:
            return [*self.places[base], offset]
        if base.startswith(self.name + "_param_"):
            return [PARAMETERS, 64, self.symbols[base] + offset]
        return [self.constant(0, 64), 64, self.symbols[base] + offset]

    def take_ld(self, words, operands, store=False):
        kind, rest = words[-1], set(words[1:-1]) - {"cs", "v2", "v4"}
        how = {frozenset(): "global", frozenset({"global"}): "global",
               frozenset({"shared"}): "shared", frozenset({"local"}): "local",
               frozenset({"param"}): "param", frozenset({"global", "nc"}): "constant",
               frozenset({"volatile", "global"}): "volatile"}.get(frozenset(rest))
        if not how:
            raise Refused(".".join(words))
        values, memory = operands[::-1] if store else operands
        values = split_operands(values.strip("{}"))
        bits = 16 if BITS[kind] == 8 else BITS[kind]  # there are no registers of 8 bits
        address = self.address(memory)
        places = [self.place(v, bits) if self.bits_of(v, bits) == bits else self.new_place(bits)
                  for v in values]
        others = [(v, p) for v, p in zip(values, places) if self.bits_of(v, bits) != bits]
        for value, place in others if store else ():  # the lower part of a wider register
            self.emit(f"cvt.u{bits}.u{self.bits_of(value)}", place, self.places[value][0])
        self.emit(f"{words[0]}.{how}.{BITS[kind]}", *address, *places)
        for place in places if kind == "s8" and not store else ():  # loads do not carry on the sign
            self.emit("shl.b16", place, place, self.constant(8, 32))
            self.emit("shr.s16", place, place, self.constant(8, 32))
        for value, place in () if store else others:
            self.emit(f"cvt.{kind[0]}{self.bits_of(value)}.{kind[0]}{bits}",
                      self.places[value][0], place)

    def take_st(self, words, operands):
        self.take_ld(words, operands, store=True)

    def take_atom(self, words, operands):
        bits = BITS[words[-1]]
        space = "shared" if "shared" in words else "global"
        to = self.new_place(bits) if operands[0] == "_" else self.place(operands[0], bits)
        self.emit(f"atom.{space}.{words[-2]}.{words[-1]}", *self.address(operands[1]), to,
                  *(self.place(o, bits) for o in operands[2:]))

    def take_bra(self, words, operands):
        self.emit("bra", operands[0])  # the label's number follows at the end

    def take_ret(self, words, operands):
        self.emit("ret")

    def take_membar(self, words, operands):
        self.emit("fence")

    def take_fence(self, words, operands):
        if words[1:] != ["acq_rel", "gpu"]:
            raise Refused(".".join(words))
        self.emit("fence")

    def take_bar(self, words, operands):
        if words[1] == "red" and operands[1] == "0":
            self.emit("bar." + words[2], self.place(operands[0], 32), self.place(operands[2], 8))
        elif words[1] == "sync" and operands == ["0"]:
            self.emit("bar.sync")
        elif words[1:] == ["warp", "sync"]:
            self.emit("bar.warp", self.place(operands[0], 32))
        else:
            raise Refused(".".join(words) + " " + ", ".join(operands))

    def take_vote(self, words, operands):
        self.emit("vote." + words[2], self.place(operands[0], 32), self.place(operands[1], 8),
                  self.place(operands[2], 32))

    def take_shfl(self, words, operands):
        to, _, inside = operands[0].partition("|")
        self.emit("shfl." + words[2], self.place(to, 32),
                  self.place(inside, 8) if inside else self.new_place(8),
                  *(self.place(o, 32) for o in operands[1:]))

    # -- the program ------------------------------------------------------------------------------

    def lines(self):
        yield f"kernel {self.name} {self.at} {self.shared} {self.local}"
        for offset, size in self.parameters:
            yield f"parameter {offset} {size}"
        for (bits, value), place in self.constants.items():
            yield f"constant {place} {bits // 8} {value}"
        for name, line, guard, *operands in self.code:
            numbers = [self.labels[o] if isinstance(o, str) else o for o in operands]
            yield " ".join(map(str, ["code", name, line, guard, *numbers]))


STATEMENT = re.compile(r"\s*(?:(\$L\w+):|([{}])|([^;{}]*(?:\{[^{};]*\}[^;{}]*)*;))")
MEMORY = re.compile(r"\.(shared|local) \.align (\d+) \.(\w+)\s+([^\s\[;]+)(?:\[(\d+)\])?\s*;")
PARAMETER = re.compile(r"\.param (?:\.align (\d+) )?\.(\w+) ([^\s,\[]+)(?:\[(\d+)\])?")


def assemble_body(kernel, body):
    """Statements in order; names declared within braces, those of inline PTX, end with them."""
    kept = []
    for m in STATEMENT.finditer(body):
        label, brace, text = m.groups()
        kernel.line += m[0].count("\n")
        if brace == "{":
            kept.append(dict(kernel.places))
        elif brace == "}":
            kernel.places = kept.pop()
        elif label:
            kernel.labels[label] = len(kernel.code)
        else:
            assemble_statement(kernel, re.sub(r"\s+", " ", text[:-1].strip()))


def assemble_statement(kernel, text):
    registers = re.match(r"\.reg \.(\w+)\s+(.*)", text)
    memory = MEMORY.match(text + ";")
    if registers:
        kernel.declare_registers(registers[1], registers[2])
    elif memory:
        space, align, kind, name, count = memory.groups()
        kernel.declare_memory(space, int(align), kind, name, int(count or 1))
    elif text and not text.startswith((".loc", ".pragma")):
        kernel.take(text)


def assemble_file(path):
    text = re.sub(r"//[^\n]*", "", path.read_text())
    entries = re.finditer(r"\.entry\s+(\S+?)\s*\((.*?)\)(.*?)\n\{(.*?)\n\}\n", text, re.S)
    outside = MEMORY.findall(text.split(".entry")[0])
    for name, parameters, _, body in (m.groups() for m in entries):
        kernel = Kernel(name, text.count("\n", 0, text.index(body)) + 1)
        for space, align, kind, symbol, count in outside:
            kernel.declare_memory(space, int(align), kind, symbol, int(count or 1))
        for align, kind, symbol, count in PARAMETER.findall(parameters):
            kernel.parameters.append(kernel.declare_memory(
                "block", int(align or BITS[kind] // 8), kind, symbol, int(count or 1)))
        try:
            assemble_body(kernel, body)
        except Refused as why:
            sys.exit(f"{path}, near line {kernel.line}, in {name}: not known here: {why}")
        yield from kernel.lines()


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    for path in map(pathlib.Path, sys.argv[1:]):
        print(*assemble_file(path), sep="\n")


if __name__ == "__main__":
    main()
