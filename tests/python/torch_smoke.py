# SPDX-License-Identifier: MIT
"""Two ranks train a small model with DistributedDataParallel and tamis; prints versions and ok.

    python3 torch_smoke.py           needs torch (with gloo), tamis and nothing else
"""

import os
import socket
import subprocess
import sys

NRANKS = 2
SECONDS = 120


def launch():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = dict(os.environ, WORLD_SIZE=str(NRANKS))
    common.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    common.update(OMP_NUM_THREADS="1", TAMIS_TRANSPORT="torch")
    processes = [
        subprocess.Popen([sys.executable, __file__], env=dict(common, RANK=str(rank)))
        for rank in range(NRANKS)
    ]
    try:
        return max(abs(process.wait(SECONDS)) for process in processes)
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        return "a rank did not end in time"


def train():
    import torch
    import torch.distributed as dist

    import tamis
    import tamis.torch

    dist.init_process_group("gloo")
    torch.manual_seed(7)
    target = torch.nn.Linear(20, 3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 3))
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.005)
    state = tamis.torch.attach(ddp, density=0.05, timeout_s=60)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(200):
        x = torch.randn(32, 20)
        loss = torch.nn.functional.mse_loss(ddp(x), target(x).detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    total = state.stats()["total"]
    assert total["steps"] == 200, total
    assert total["wire_bytes"] < total["dense_bytes"], total
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20]), (losses[:3], losses[-3:])
    assert tamis.torch.replicas_identical(ddp)
    saved = state.state_dict()
    assert state.load_state_dict(saved) == [name for name, _ in model.named_parameters()]
    state.close()
    if dist.get_rank() == 0:
        python = ".".join(str(part) for part in sys.version_info[:3])
        version = ".".join(str(part) for part in tamis.version())
        print(f"tamis {version}, torch {torch.__version__}, Python {python}: ok")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        train()
    else:
        sys.exit(launch())
