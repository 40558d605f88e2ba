# SPDX-License-Identifier: MIT
"""FSDP2 inside nodes, a sparse exchange across them: 4 ranks as 2 nodes. Needs torch 2.6."""

import pytest
import torch
import torch.distributed as dist

import ranks
from ranks import told

import tamis
import tamis.torch

try:
    from torch.distributed.fsdp import fully_shard
except (ImportError, ValueError):  # torch 1.13 cannot import its own FSDP in Python 3.11
    pytest.skip("torch has no fully_shard", allow_module_level=True)

STEPS = 12


def mesh():
    return dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("across", "inside"))


def sharded(over):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 33), torch.nn.GELU(), torch.nn.Linear(33, 5))
    for unit in (model[0], model[2], model):
        fully_shard(unit, mesh=over)
    return model


def adamw(model):
    return torch.optim.AdamW(model.parameters(), 0.01)


def momentum(model):
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def train(model, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(16, 20, generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), x[:, :5].argmax(1)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def whole(model):
    return torch.cat([p.full_tensor().detach().flatten() for p in model.parameters()])


def identical(values):
    found = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(found, values)
    return all(torch.equal(one, values) for one in found)


# ------------------------------------------------------------------------------ run by the ranks


def beside_hsdp(make):
    """Whether density 1 has HSDP's bits; replicas, and bytes, of 10 %."""
    rows = []
    for over, density in ((mesh(), None), (mesh()["inside"], 1.0), (mesh()["inside"], 0.1)):
        model = sharded(over)
        optimizer = make(model)
        state = density and tamis.torch.attach(model, density, optimizer=optimizer)
        train(model, optimizer, range(STEPS))
        rows.append(whole(model))
    stats = state.stats()["total"]
    state.close()
    moved = (rows[2] - whole(sharded(mesh()))).abs().max().item()
    return torch.equal(rows[0], rows[1]), identical(rows[2]), stats["compression"], moved


def case_adamw():
    return beside_hsdp(adamw)


def case_momentum():
    return beside_hsdp(momentum)


def case_resume():
    """Saved and taken back in the middle, by other objects, each rank its own."""
    found = []
    for resume in (False, True):
        model = sharded(mesh()["inside"])
        optimizer = adamw(model)
        state = tamis.torch.attach(model, 0.1, optimizer=optimizer)
        train(model, optimizer, range(4))
        if resume:
            saved = state.state_dict()
            weights = [p.to_local().clone() for p in model.parameters()]
            state.close()
            model = sharded(mesh()["inside"])
            optimizer = adamw(model)
            state = tamis.torch.attach(model, 0.1, optimizer=optimizer)
            for p, weight in zip(model.parameters(), weights):
                p.to_local().data.copy_(weight)
            state.load_state_dict(saved)
        train(model, optimizer, range(4, 8))
        found.append(whole(model))
        state.close()
    return torch.equal(*found)


def case_refused():
    both = sharded(mesh())
    inside = sharded(mesh()["inside"])
    flat = sharded(dist.device_mesh.init_device_mesh("cpu", (4,)))
    return [
        told(lambda: tamis.torch.attach(model, 0.1, optimizer=given))
        for model, given in ((both, adamw(both)), (inside, None), (flat, adamw(flat)))
    ]


def case_closed():
    """A closed state does not let nodes train apart; another one may follow."""
    model = sharded(mesh()["inside"])
    optimizer = adamw(model)
    state = tamis.torch.attach(model, 0.1, optimizer=optimizer)
    train(model, optimizer, [0])
    state.close()
    said = told(lambda: train(model, optimizer, [1]))
    again = tamis.torch.attach(model, 0.1, optimizer=optimizer)
    train(model, optimizer, [1])
    return said, again.steps, identical(whole(model))


CASES = ["case_adamw", "case_momentum", "case_resume", "case_refused", "case_closed"]


@pytest.fixture(scope="module")
def results():
    return ranks.run(__file__, CASES, nranks=4)


@pytest.mark.parametrize("case", ["case_adamw", "case_momentum"])
def test_density_1_is_hsdp_and_replicas_are_identical(results, case):
    for same, replicas, compression, moved in ranks.values(results, case):
        assert same and replicas and compression > 4 and moved > 0.01


def test_a_run_that_was_stopped_has_the_same_bits(results):
    assert ranks.values(results, "case_resume") == [True] * 4


def test_a_closed_state_is_refused(results):
    for said, steps, same in ranks.values(results, "case_closed"):
        assert said[0] == "RuntimeError" and "was closed" in said[1] and (steps, same) == (1, True)


def test_meshes_that_do_not_show_the_nodes_are_refused(results):
    for both, nothing, flat in ranks.values(results, "case_refused"):
        assert both[0] == flat[0] == "ValueError" and nothing[0] == "TypeError"
        assert "mesh of a node" not in both[1] and "that of a node" in both[1]
        assert "optimizer=optimizer" in nothing[1] and 'across=mesh["across"]' in flat[1]
