#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""NCCL's library with the machine code of one architecture: slim.py LIBRARY SM OUT.gz

NCCL brings machine code for every architecture, and once more in a form for linkers: 200 MB. This
blanks all of it but that of architecture SM (90), in place, so that every offset stays as it was,
and compresses the rest to some 30 MB. For tests on a machine without NCCL, not for anybody's use.

Containers of machine code begin with a header of 16 bytes: magic number, version, own size, size of
the entries. An entry: kind, version, own size, size of what follows, and at byte 28 the
architecture.
"""
import gzip
import struct
import sys

MAGIC = 0xBA55ED50


def sections(elf):
    """Name, offset and size of every section of a 64-bit ELF file."""
    start, = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    heads = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    for name, _, _, _, offset, length in heads:
        begin = heads[names][4] + name
        yield elf[begin:elf.index(b"\0", begin)].decode(), offset, length


def blank(elf, offset, length):
    elf[offset:offset + length] = bytes(length)


def keep_one(elf, offset, end, sm):
    """Blank the code of every architecture but one. Returns how many bytes are kept."""
    kept = 0
    while offset + 16 <= end:
        magic, _, head, size = struct.unpack_from("<IHHQ", elf, offset)
        if magic != MAGIC:
            offset += 8
            continue
        entry, offset = offset + head, offset + head + size
        while entry < offset:
            _, _, own, length = struct.unpack_from("<HHIQ", elf, entry)
            if struct.unpack_from("<I", elf, entry + 28)[0] == sm:
                kept += length
            else:
                blank(elf, entry + own, length)
            entry += own + length
    return kept


def main(library, sm, out):
    with open(library, "rb") as file:
        elf = bytearray(file.read())
    kept = 0
    for name, offset, length in sections(elf):
        if name == "__nv_relfatbin":
            blank(elf, offset, length)
        elif name == ".nv_fatbin":
            kept = keep_one(elf, offset, offset + length, int(sm))
    if kept == 0:
        sys.exit(f"{library}: no machine code for sm_{sm}")
    with gzip.open(out, "wb", 6) as file:
        file.write(elf)
    print(f"{library}: {kept} bytes of machine code for sm_{sm}")


if __name__ == "__main__":
    main(*sys.argv[1:])
