#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Golden bytes of the value codecs (kernels/codecs/value_codecs.h), made with NumPy from their definitions.

    value_codecs.py     write value_codecs.h beside this file
    value_codecs.py --check    compare it with what would be written; exit 77 without NumPy

Levels are looked up by distance here, where the library works on bits.
"""
import os
import sys

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

BLOCK = 256
F = np.float32
LEVELS = np.array([0.0] + [2.0 ** (m - 7) for m in range(1, 8)])


def values_of(count):
    """A heavy tail, zeros, both signs; whole numbers times a power of two."""
    x = (np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(20)
    size = (x % np.uint64(1009)).astype(np.float64) ** 3 / 65536.0
    size[x % np.uint64(8) == 0] = 0.0
    sign = np.where((x >> np.uint64(12)) % np.uint64(2) == 1, -1.0, 1.0)
    v = F(size * sign)
    v[-20:] *= F(2.0 ** -100)
    return v


def half_up(x):
    """Bits of the least bfloat16 that is not below x."""
    bits = int(np.array([x], F).view(np.uint32)[0])
    return (bits + 0xFFFF) >> 16


def half_nearest(x):
    bits = int(np.array([F(x)], F).view(np.uint32)[0])
    low = bits >> 16
    rest = bits & 0xFFFF
    return low + (1 if rest > 0x8000 or (rest == 0x8000 and low & 1) else 0)


def widen(half):
    return np.array([half << 16], np.uint32).view(F)[0]


def pack16(half):
    return [half & 255, half >> 8]


def bfloat16(v):
    halves = [half_nearest(abs(x)) | (0x8000 if np.signbit(x) else 0) for x in v]
    return [b for h in halves for b in pack16(h)], [widen(h) for h in halves]


def int8(v):
    half = half_up(F(np.max(np.abs(v)) / F(127)))
    scale = widen(half)
    q = np.rint(v / scale) if half else np.zeros(len(v))
    return pack16(half) + [int(x) & 255 for x in q], [F(F(int(x)) * scale) for x in q]


def fp4(v):
    half = half_up(np.max(np.abs(v)))
    scale = widen(half)
    codes, decoded = [], []
    for x in v:
        ratio = float(F(abs(x)) / scale) if half else 0.0
        distance = np.abs(LEVELS - ratio)
        m = int(np.max(np.flatnonzero(distance == np.min(distance))))
        codes.append(m | (8 if x < 0 and m else 0))
        decoded.append(F(F(LEVELS[m]) * scale * (F(-1) if x < 0 and m else F(1))))
    codes += [0] * (len(codes) % 2)
    return pack16(half) + [a | b << 4 for a, b in zip(codes[::2], codes[1::2])], decoded


def lane_sum(sizes):
    """The order in which the library adds: value i in lane i % 8, then lane after lane."""
    lanes = [0.0] * 8
    for i, s in enumerate(sizes):
        lanes[i % 8] += s
    total = 0.0
    for s in lanes:
        total += s
    return total


def fp2(v):
    size = [float(abs(x)) for x in v]
    border = float(F(lane_sum(size) / len(size)))
    halves = []
    for part in ([s < border for s in size], [s >= border for s in size]):
        total = lane_sum([s if chosen else 0.0 for s, chosen in zip(size, part)])
        halves.append(half_nearest(total / sum(part)) if any(part) else 0)
    codes = [int(s >= border) | (2 if np.signbit(x) else 0) for s, x in zip(size, v)]
    decoded = [widen(halves[c & 1]) * (F(-1) if c & 2 else F(1)) for c in codes]
    codes += [0] * (-len(codes) % 4)
    quads = [a | b << 2 | c << 4 | d << 6 for a, b, c, d in zip(*(codes[i::4] for i in range(4)))]
    return pack16(halves[0]) + pack16(halves[1]) + quads, decoded


def encode(block_of, v):
    out, decoded = [], []
    for at in range(0, len(v), BLOCK):
        b, d = block_of(v[at:at + BLOCK])
        out += b
        decoded += d
    return out, decoded


def lines(words, width=100, indent="    "):
    row = indent
    for w in words:
        if len(row) + len(w) + 2 > width:
            yield row.rstrip()
            row = indent
        row += w + ", "
    yield row.rstrip()


def number(x):
    mantissa, exponent = float(x).hex().split("p")
    return mantissa.rstrip("0").rstrip(".") + "p" + exponent + "f"


def text():
    v = values_of(290)
    cases = [(1, 1), (2, 7), (0, 290)]
    types = [("BFLOAT16", bfloat16), ("INT8", int8), ("FP4", fp4), ("FP2", fp2)]
    out = ["/* Made by value_codecs.py. */", "/* clang-format off */", f"enum {{ GOLDEN_VALUES = {len(v)} }};", "",
           "static const float golden_values[] = {", *lines(map(number, v)), "};", ""]
    rows = []
    for name, block_of in types:
        for first, count in cases:
            data, decoded = encode(block_of, v[first:first + count])
            label = f"golden_{name.lower()}_{first}_{count}"
            out += [f"static const unsigned char {label}[] = {{", *lines(map(str, data)), "};",
                    f"static const float {label}_decoded[] = {{", *lines(map(number, decoded)), "};", ""]
            rows.append(f"    {{TAMIS_VALUE_{name}, {first}, {count}, {len(data)}, {label}, {label}_decoded}},")
    out += ["typedef struct golden_codec {", "    tamis_value_codec type;",
            "    size_t first, count, nbytes; /* of golden_values */",
            "    const unsigned char *bytes;", "    const float *decoded;", "} golden_codec;", "",
            "static const golden_codec golden_codecs[] = {", *rows, "};"]
    return "\n".join(out) + "\n"


def main():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "value_codecs.h")
    if "--check" not in sys.argv[1:]:
        with open(path, "w", encoding="ascii") as file:
            file.write(text())
        return 0
    with open(path, encoding="ascii") as file:
        same = file.read() == text()
    print("value_codecs.h is " + ("what NumPy makes" if same else "not what NumPy makes"))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
