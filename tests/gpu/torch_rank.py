# SPDX-License-Identifier: MIT
"""A rank of torch_ranks.py: its device, model, inputs and training."""

import contextlib
import os

STEPS, DENSITY = 6, 0.05


class Rank:
    """What cases need: the device, the model, its inputs, and training."""

    def __init__(self, args):
        import torch
        import torch.distributed as dist

        import tamis
        import tamis.torch

        self.torch, self.dist, self.tamis, self.tt = torch, dist, tamis, tamis.torch
        self.number, self.size = int(os.environ["RANK"]), args.ranks
        self.cuda = args.device == "cuda"
        self.device = torch.device("cuda", 0) if self.cuda else torch.device("cpu")
        has_ucx = any(row["name"] == "ucx" and row["available"] for row in tamis.features())
        self.carried = "nccl" if self.cuda else "ucx" if has_ucx else "callback"
        self.loss = torch.nn.CrossEntropyLoss()
        both = self.cuda and args.group == "nccl"
        dist.init_process_group("cpu:gloo,cuda:nccl" if both else "gloo")

    def model(self, dtype=None):
        nn = self.torch.nn
        self.torch.manual_seed(0)
        rows = (nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        return nn.Sequential(*rows).to(self.device, dtype)

    def batches(self, steps, dtype=None):
        draw = self.torch.Generator().manual_seed(100 + self.number)
        for _ in range(steps):
            x = self.torch.randn(16, 32, generator=draw)
            y = self.torch.randint(0, 10, (16,), generator=draw)
            yield x.to(self.device, dtype), y.to(self.device)

    def sgd(self, model):
        return self.torch.optim.SGD(model.parameters(), 0.1)

    def adamw(self, model, beta1=0.0):
        return self.torch.optim.AdamW(model.parameters(), 1e-3, betas=(beta1, 0.99))

    def ddp(self, model, **options):
        return self.torch.nn.parallel.DistributedDataParallel(model, **options)

    def attached(self, make=None, dtype=None, **options):
        """A model in DDP, its optimizer, and the state that exchanges its gradients."""
        model = self.model(dtype)
        ddp, optimizer = self.ddp(model), (make or self.sgd)(model)
        options = dict(dict(density=DENSITY), **options)
        return model, ddp, optimizer, self.tt.attach(ddp, optimizer=optimizer, **options)

    def train(self, ddp, optimizer, steps=STEPS, dtype=None, scaler=None, auto=False, micro=1):
        inputs = self.batches(steps * micro, dtype)
        for _ in range(steps):
            optimizer.zero_grad()
            for part in range(micro):
                x, y = next(inputs)
                last = part + 1 == micro
                inner = contextlib.nullcontext() if last else ddp.no_sync()
                with inner, self.torch.autocast(self.device.type, self.torch.bfloat16, enabled=auto):
                    loss = self.loss(ddp(x).float(), y)
                    (loss if scaler is None else scaler.scale(loss)).backward()
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
        return loss.item()

    def bits(self, model):
        self.settle()
        return self.torch.cat([p.detach().float().cpu().view(-1) for p in model.parameters()])

    def settle(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def ended(self, model, state, **more):
        """Close the state. Replicas must be the same, and NCCL must have carried those on a device."""
        self.settle()
        row = state.stats()
        out = dict(more, transport=state.comm.transport, driver=row["driver"], state=repr(state))
        out["identical"] = self.tt.replicas_identical(model)
        out["ok"] = out.get("ok", True) and out["identical"] and out["transport"] == self.carried
        state.close()
        return out
