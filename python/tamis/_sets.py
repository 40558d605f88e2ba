# SPDX-License-Identifier: MIT
"""Sets of states in a folder that all ranks share. A set is the state of every rank after the same
step, and a manifest, written when all of them are on disk; without it the set is not complete:

    step000000000120.rank0.state
    step000000000120.rank1.state
    step000000000120.set            JSON: step, ranks, bytes and hash of each, and a line with its
                                    own hash

A file is written beside its name, flushed, renamed, and the folder flushed.
"""

import hashlib
import json
import logging
import os
import re
import struct
from typing import Any, Dict, List, NamedTuple, Optional

from . import launcher
from ._core import Comm

log = logging.getLogger("tamis")

KEPT = 2  # sets
_NAME = re.compile(r"step(\d{12})\.(set|rank\d+\.state)(\.part)?")
_NEWS = struct.Struct("<BQ16s")  # whether it was written, bytes, hash
_NONE = 2**64 - 1


class Found(NamedTuple):
    step: int
    nranks: int


def hash_of(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class Sets:
    def __init__(self, folder: str) -> None:
        self.folder = os.fspath(folder)

    # --- names

    def file(self, step: int, rank: int) -> str:
        return os.path.join(self.folder, f"step{step:012d}.rank{rank}.state")

    def manifest(self, step: int) -> str:
        return os.path.join(self.folder, f"step{step:012d}.set")

    def _names(self) -> Dict[int, List[str]]:
        """Files by step."""
        names: Dict[int, List[str]] = {}
        for name in os.listdir(self.folder) if os.path.isdir(self.folder) else []:
            match = _NAME.fullmatch(name)
            if match:
                names.setdefault(int(match[1]), []).append(name)
        return names

    def complete(self) -> List[int]:
        """Steps of sets with a manifest, whatever it is worth, the newest first."""
        return sorted(
            (
                step
                for step, names in self._names().items()
                if os.path.basename(self.manifest(step)) in names
            ),
            reverse=True,
        )

    # --- writing

    def save(self, comm: Comm, step: int, data: bytes) -> bool:
        """Write a set. Collective. What cannot be written is logged, and False on all ranks."""
        written = self._try(comm, self.file(step, comm.rank), data)
        news = comm.allgather(_NEWS.pack(written, len(data), hash_of(data)))
        rows = [_NEWS.unpack(one) for one in news]
        bad = [rank for rank, row in enumerate(rows) if not row[0]]
        if bad:
            if comm.rank == 0:
                log.warning("the set of step %d is not complete: rank %d failed", step, bad[0])
            return False
        if comm.rank == 0 and self._try(comm, self.manifest(step), _manifest(step, rows)):
            self._remove_old()
        return True

    def _try(self, comm: Comm, path: str, data: bytes) -> bool:
        try:
            _write(path, data)
            return True
        except OSError as error:
            log.warning("rank %d: the run goes on, but %s: %s", comm.rank, path, error)
            return False

    def _remove_old(self) -> None:
        """Keep the newest complete sets; manifests go first."""
        last = self.complete()[:KEPT][-1]
        old = [name for step, names in self._names().items() if step < last for name in names]
        for name in sorted(old, key=lambda name: not name.endswith(".set")):
            try:
                os.unlink(os.path.join(self.folder, name))
            except OSError as error:
                log.info("%s stays: %s", name, error)

    # --- reading

    def read_manifest(self, step: int) -> Dict[str, Any]:
        """Errors: ValueError, OSError"""
        with open(self.manifest(step), "rb") as file:
            text, _, line = file.read().rpartition(b"\n")
        if line.decode("ascii", "replace") != hash_of(text).hex():
            raise ValueError(f"its manifest {self.manifest(step)} is damaged")
        manifest: Dict[str, Any] = json.loads(text)
        return manifest

    def read(self, step: int, rank: int) -> bytes:
        """The state of an old rank. Errors: ValueError, OSError"""
        row = self.read_manifest(step)["files"][rank]
        path = self.file(step, rank)
        with open(path, "rb") as file:
            data = file.read()
        if len(data) != row["bytes"] or hash_of(data).hex() != row["hash"]:
            raise ValueError(f"{path} is damaged, or is not the one of its set")
        return data

    def choose(self, comm: Comm) -> Optional[Found]:
        """The newest set that is complete and undamaged. Collective: each rank reads its share.

        Errors: `Error` on all ranks if there are manifests, but no set is whole
        """
        steps = self.complete() if comm.rank == 0 else []
        if comm.rank == 0:
            for step in sorted(set(self._names()) - set(steps), reverse=True):
                log.warning("the set of step %d in %s has no manifest: skipped", step, self.folder)
        tried = 0
        while True:
            mine = steps[tried] if tried < len(steps) else _NONE
            step = struct.unpack("<Q", comm.allgather(struct.pack("<Q", mine))[0])[0]
            if step == _NONE:
                break
            nranks = self._check(comm, step)
            if nranks:
                return Found(step, nranks)
            tried += 1
        if tried:
            raise launcher.error(
                f"Rank {comm.rank}: none of the {tried} sets in {self.folder} is whole, as the log"
                " says.",
                "Put one right, or name an empty folder to begin anew.",
                "TAMIS_E_FORMAT",
            )
        return None

    def _check(self, comm: Comm, step: int) -> int:
        """Number of old ranks; 0 on all if any rank finds its share damaged, and says so."""
        nranks = 0
        try:
            nranks = self.read_manifest(step)["ranks"]
            for rank in range(comm.rank, nranks, comm.nranks):
                self.read(step, rank)
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("rank %d: the set of step %d is skipped: %s", comm.rank, step, error)
            nranks = 0
        all_of = [struct.unpack("<I", one)[0] for one in comm.allgather(struct.pack("<I", nranks))]
        return nranks if all(other == nranks for other in all_of) else 0


def _manifest(step: int, rows: List[Any]) -> bytes:
    files = [{"bytes": size, "hash": digest.hex()} for _, size, digest in rows]
    text = json.dumps({"step": step, "ranks": len(rows), "files": files}, indent=1).encode()
    return text + b"\n" + hash_of(text).hex().encode()


def _write(path: str, data: bytes) -> None:
    part, folder = path + ".part", os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    with open(part, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.rename(part, path)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
