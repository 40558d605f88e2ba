# SPDX-License-Identifier: MIT
"""tamis.torch with a meter: stats() has joules by phase, or None."""

import time

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from counter import Counter, await_joules

import tamis
import tamis.torch
from tamis.energy import Governor, Meter


def network():
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))


def train(net, optimizer, seconds):
    end, steps = time.monotonic() + seconds, 0
    while steps == 0 or time.monotonic() < end:
        optimizer.zero_grad()
        net(torch.ones(4, 32)).square().sum().backward()
        optimizer.step()
        steps += 1
        time.sleep(0.005)
    return steps


@pytest.mark.parametrize("options", [dict(reduce="gradient", warmup=2), dict(reduce="step")])
def test_the_optimizer_tells_joules_by_phase(tmp_path, options):
    with Counter(tmp_path) as counter:
        with Meter(sources="file", files=counter.files, settle_s=0.1) as meter:
            model = network()
            inner = torch.optim.SGD(model.parameters(), lr=0.01)
            optimizer = tamis.torch.DistributedOptimizer(
                inner, model, density=0.1, transport="local", meter=meter, **options)
            steps = train(model, optimizer, 1.5)
            totals = await_joules(meter, 100.0)
            energy = optimizer.tamis.stats()["energy"]
            assert {"select", "exchange", "apply", "idle"} <= set(energy)
            assert sum(joules or 0.0 for joules in energy.values()) > 50.0
            assert totals["steps"] <= steps
            optimizer.close()


def test_without_counters_it_is_none_and_without_a_meter_it_is_not_there():
    tamis.init_process_group()
    for meter in (None, Meter(sources="none")):
        model = DistributedDataParallel(network())
        state = tamis.torch.attach(model, density=0.1, transport="local", meter=meter)
        train(model, torch.optim.SGD(model.parameters(), lr=0.01), 0.0)
        stats = state.stats()
        assert stats["energy"] is None if meter else "energy" not in stats
        state.close()
        if meter:
            meter.close()


def test_a_governor_sets_the_density_of_a_state(tmp_path):
    with Counter(tmp_path) as counter:
        with Meter(sources="file", files=counter.files, settle_s=0.1, window_s=0.2) as meter:
            await_joules(meter, 1.0)
            model = network()
            optimizer = tamis.torch.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.01), model, density=0.1, transport="local",
                meter=meter)
            state = optimizer.tamis
            governor = Governor(policy="budget", budget_w=20.0, density_min=0.05, density_max=0.1)
            with governor.drive(tamis.Comm.local(1)[0], meter, state, every=5) as drive:
                for _ in range(12):
                    train(model, optimizer, 0.0)
                    drive.step()
            assert drive.decision["density"] == state.density < 0.1
            optimizer.close()
