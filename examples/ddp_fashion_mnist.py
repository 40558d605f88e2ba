#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small network on Fashion-MNIST with DistributedDataParallel and a sparse exchange.

    mpirun -np 4 python3 examples/ddp_fashion_mnist.py
    torchrun --nproc_per_node 4 examples/ddp_fashion_mnist.py
    srun --mpi=pmix -n 4 python3 examples/ddp_fashion_mnist.py
    examples/launch.py -n 4 examples/ddp_fashion_mnist.py --dense
    mpirun -np 4 python3 examples/ddp_fashion_mnist.py --optimizer adamw

The same script runs under each launcher: tamis.init_process_group connects the ranks, and
tamis.torch.attach takes the transport that fits. With AdamW the ranks exchange steps, not
gradients. Rank 0 prints; the exit status is 1 if the replicas differ.
"""

import argparse
import gzip
import hashlib
import json
import logging
import os
import pathlib
import sys
import time
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tamis
import tamis.torch


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    exchange = parser.add_argument_group("exchange")
    exchange.add_argument("--density", type=float, help="share that travels; what suits the optimizer")
    exchange.add_argument("--scheme", help="see tamis.schemes(); what suits the optimizer")
    exchange.add_argument("--value-codec", default="auto", help="auto, float32, ..., fp4, fp2")
    exchange.add_argument("--dense", action="store_true", help="torch's own all-reduce, no tamis")
    exchange.add_argument("--transport", default="auto", help="auto, mpi, torch, nccl, local")
    exchange.add_argument("--overlap", choices=("on", "off"), default="on")
    training = parser.add_argument_group("training")
    training.add_argument("--model", choices=("mlp", "cnn"), default="mlp")
    training.add_argument("--epochs", type=int, default=8)
    training.add_argument("--batch", type=int, default=32, help="per rank")
    training.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    training.add_argument(
        "--lr", type=float, help="at the start; falls as a cosine; 0.2 for sgd, 0.001 for adamw"
    )
    training.add_argument("--momentum", type=float, default=0.0, help="sgd only")
    training.add_argument("--seed", type=int, default=1)
    files = parser.add_argument_group("files")
    files.add_argument("--data", default="/usr/share/datasets/fashion-mnist", metavar="FOLDER")
    files.add_argument("--limit", type=int, default=60000, help="of the training images")
    files.add_argument("--save", metavar="FOLDER", help="after each epoch, one file per rank")
    files.add_argument("--resume", metavar="FOLDER", help="go on from what --save wrote")
    files.add_argument("--stop-after", type=int, metavar="EPOCHS", help="end early, as if stopped")
    files.add_argument("--json", metavar="FILE", help="append one line of results")
    files.add_argument("--plot", metavar="FILE", help="picture of rank 0's steps (matplotlib)")
    options = parser.parse_args()
    if options.lr is None:
        options.lr = 0.2 if options.optimizer == "sgd" else 0.001
    return options


def make_optimizer(options: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    if options.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=options.lr, momentum=options.momentum)
    return torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.01)


def read_idx(folder: str, name: str) -> torch.Tensor:
    """Images (n, 28, 28) or labels (n), uint8, from an IDX file."""
    with gzip.open(pathlib.Path(folder) / f"{name}.gz") as file:
        data = bytearray(file.read())
    ndim = data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(ndim)]
    return torch.frombuffer(data, dtype=torch.uint8, offset=4 + 4 * ndim).view(shape)


def load(
    folder: str, part: str, limit: Optional[int] = None
) -> Tuple[torch.Tensor, torch.Tensor]:
    images = read_idx(folder, f"{part}-images-idx3-ubyte")[:limit]
    labels = read_idx(folder, f"{part}-labels-idx1-ubyte")[:limit]
    images = images.float().div_(255).sub_(0.2860).div_(0.3530)  # mean 0, deviation 1
    return images.unsqueeze(1), labels.long()


def make_model(name: str) -> nn.Module:
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


class Run:
    """Everything that a step needs, and that a checkpoint holds."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.rank, self.nranks = dist.get_rank(), dist.get_world_size()
        self.device = choose_device()
        images, labels = load(options.data, "train", options.limit)
        self.images, self.labels = images.to(self.device), labels.to(self.device)
        self.steps_per_epoch = len(labels) // (options.batch * self.nranks)
        if not self.steps_per_epoch:
            raise SystemExit("not one step per epoch: raise --limit or lower --batch")

        torch.manual_seed(options.seed)
        self.model = DistributedDataParallel(make_model(options.model).to(self.device))
        self.optimizer = make_optimizer(options, self.model)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
            self.optimizer, options.epochs * self.steps_per_epoch
        )
        self.epoch = 0
        self.losses: List[torch.Tensor] = []
        self.state: Optional[tamis.torch.SparseState] = None
        if not options.dense:
            # The only lines that sparse training adds.
            self.state = tamis.torch.attach(
                self.model,
                density=options.density,
                value_codec=options.value_codec,
                scheme=options.scheme,
                transport=options.transport,
                overlap=options.overlap == "on",
                optimizer=self.optimizer,
            )

    def train_epoch(self) -> float:
        """One pass over the data; rank r takes every nranks-th sample of a common order."""
        order = torch.randperm(
            len(self.labels),
            generator=torch.Generator().manual_seed(1000 * self.options.seed + self.epoch),
        ).to(self.device)
        batch = self.options.batch
        mine = order[self.rank :: self.nranks]
        for step in range(self.steps_per_epoch):
            rows = mine[step * batch : (step + 1) * batch]
            self.optimizer.zero_grad()
            guesses = self.model(self.images[rows])
            loss: Any = nn.functional.cross_entropy(guesses, self.labels[rows])
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.losses.append(loss.detach())
        self.epoch += 1
        return float(loss)

    def save(self, folder: str) -> None:
        """The residual differs from rank to rank, so each rank writes its own file."""
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        path = pathlib.Path(folder) / f"rank{self.rank}.pt"
        part = path.with_suffix(".part")
        torch.save(
            {
                "epoch": self.epoch,
                "model": self.model.module.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "schedule": self.schedule.state_dict(),
                "tamis": self.state.state_dict() if self.state else None,
            },
            part,
        )
        os.replace(part, path)

    def resume(self, folder: str) -> None:
        saved = torch.load(
            pathlib.Path(folder) / f"rank{self.rank}.pt", map_location=self.device
        )
        self.epoch = saved["epoch"]
        self.model.module.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        if self.state:
            self.state.load_state_dict(saved["tamis"])

    def accuracy(self) -> float:
        """Percent of all test images. One rank suffices, for the replicas are the same."""
        images, labels = load(self.options.data, "t10k")
        with torch.no_grad():
            guesses = self.model.module(images.to(self.device)).argmax(1).cpu()
        return float(100 * (guesses == labels).float().mean())


def choose_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(tamis.local_rank())
    return torch.device("cuda", tamis.local_rank())


def report(run: Run, seconds: float, identical: bool) -> Dict[str, Any]:
    """What rank 0 reports, as a dictionary."""
    options = run.options
    told = {
        "ranks": run.nranks,
        "model": options.model,
        "exchange": run.state.scheme if run.state else "dense",
        "density": run.state.density if run.state else 1.0,
        "transport": run.state.comm.transport if run.state else dist.get_backend(),
        "seed": options.seed,
        "epochs": run.epoch,
        "optimizer": options.optimizer,
        "lr": options.lr,
        "accuracy": round(run.accuracy(), 2),
        "identical": identical,
        "seconds": round(seconds, 2),
        "hash": hash_of(run.model),
    }
    if run.state:
        total = run.state.stats()["total"]
        steps = max(1, total["steps"])
        told["bytes_per_step"] = total["wire_bytes"] // steps  # sent by rank 0
        told["dense_bytes_per_step"] = total["dense_bytes"] // steps  # a ring would send
    return told


def hash_of(model: nn.Module) -> str:
    """A hash of all parameters' bits, to compare runs."""
    digest = hashlib.blake2b(digest_size=8)
    for parameter in model.parameters():
        elements = parameter.detach().cpu().contiguous().view(-1)
        digest.update(bytes(elements.view(torch.uint8).tolist()))
    return digest.hexdigest()


def main() -> int:
    options = parse()
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.WARNING)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))
    tamis.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    if dist.get_rank() == 0:
        logging.getLogger("tamis").setLevel(logging.INFO)
    run = Run(options)
    if options.resume:
        run.resume(options.resume)
    begin = time.monotonic()
    last = min(options.epochs, options.stop_after or options.epochs)
    while run.epoch < last:
        loss = run.train_epoch()
        if run.rank == 0:
            print(f"epoch {run.epoch}: loss {loss:.4f}", file=sys.stderr)
        if options.save:
            run.save(options.save)
    seconds = time.monotonic() - begin

    identical = tamis.torch.replicas_identical(run.model)
    if run.rank == 0:
        told = report(run, seconds, identical)
        print(" ".join(f"{name}={value}" for name, value in told.items()))
        if options.plot and run.state:
            run.state.plot(options.plot, [loss.item() for loss in run.losses])
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps(told) + "\n")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
