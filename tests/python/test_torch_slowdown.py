# SPDX-License-Identifier: MIT
"""A density that follows what steps wait: the steps are those of a run that sets the densities."""

import threading

import pytest
import torch

from saved import own

import tamis
from tamis.torch import SparseState

NRANKS, STEPS = 2, 60  # a window of 40 ends, whose decision is half the density

OPTIMIZERS = {
    "AdamW": lambda rows: torch.optim.AdamW(rows, lr=1e-3),
    "SGD": lambda rows: torch.optim.SGD(rows, lr=0.1, momentum=0.9),  # its scale follows the density
}


def make(kind, comm, **options):
    draw = torch.Generator().manual_seed(0)
    rows = [torch.nn.Parameter(torch.randn(shape, generator=draw)) for shape in ((40, 30), (301,))]
    optimizer = OPTIMIZERS[kind](rows)
    named = [(f"p{number}", row) for number, row in enumerate(rows)]
    state = SparseState(named, optimizer=optimizer, comm=comm, check_every=0, **options)
    return rows, optimizer, state


def step(rows, optimizer, rank, number):
    draw = torch.Generator().manual_seed(1000 * number + rank)
    for row in rows:
        row.grad = torch.randn(row.shape, generator=draw)
    optimizer.step()


def train(comm, kind, densities, **options):
    """The densities, of each step and the next one; the parameters; what the state saves."""
    rows, optimizer, state = make(kind, comm, **options)
    found = []
    for number in range(STEPS):
        if densities is not None:
            state.set_density(densities[number])
        found.append(state.groups[0].density)
        step(rows, optimizer, comm.rank, number)
    found.append(state.groups[0].density)
    saved = state.state_dict()
    state.close()
    return found, torch.cat([row.detach().reshape(-1) for row in rows]), saved


def ranks(call):
    results = [None] * NRANKS
    comms = tamis.Comm.local(NRANKS)

    def work(rank):
        results[rank] = call(comms[rank])

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(NRANKS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert None not in results
    return results


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_are_those_of_a_run_that_sets_the_densities(kind):
    (densities, found, _), other = ranks(lambda comm: train(comm, kind, None, slowdown=0.001))
    assert densities == other[0] and densities[-1] == densities[0] / 2
    assert torch.equal(found, other[1])
    (_, again, _), _ = ranks(lambda comm: train(comm, kind, densities))
    assert torch.equal(found, again)


@pytest.mark.parametrize("density", [float("nan"), 0.0, -1.0, 2.0])
def test_a_density_that_cannot_be_is_refused(density):
    comms = [tamis.Comm.local(1)[0] for _ in range(2)]
    _, _, saved = train(comms[0], "AdamW", None)
    own(saved)["density"] = density
    _, _, state = make("AdamW", comms[1])
    with pytest.raises(ValueError, match=f"its density is {density}"):
        state.load_state_dict(saved)
    state.close()


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_state_has_the_density_of_the_next_step(kind):
    def work(comm):
        densities, _, saved = train(comm, kind, None, slowdown=0.001)
        _, _, state = make(kind, comm, slowdown=0.001)
        state.load_state_dict(saved)
        loaded, asked = state.groups[0].density, state.density
        state.close()
        return densities[-1], loaded, asked

    for ended, loaded, asked in ranks(work):
        assert loaded == ended < asked
