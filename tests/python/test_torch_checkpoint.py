# SPDX-License-Identifier: MIT
"""Checkpoints where scripts keep them: in a file of each rank, in one that rank 0 writes, in torch's
distributed ones; resumed by as many ranks with the same bits, and by others. And what is forgotten."""

import os
import pathlib
import warnings

import pytest
import torch
import torch.distributed as dist

import ranks
from ranks import told
from saved import own
from torch_models import bits, ddp, network, train

import tamis
import tamis.torch

try:
    import torch.distributed.checkpoint as dcp
except ImportError:
    dcp = None

WHOLE, HALF = 6, 3
MARKS = hasattr(torch.optim.Optimizer, "register_state_dict_post_hook")  # torch 2.3

# ------------------------------------------------------------------------------ run by the ranks


def rmsprop(parameters):
    """Has a residual, and a state of its own on each rank."""
    return torch.optim.RMSprop(parameters, 0.01)


def build(make=rmsprop, **options):
    net = ddp(network())
    optimizer = make(net.parameters())
    return net, optimizer, tamis.torch.attach(net, 0.1, optimizer=optimizer, **options)


def rank0(folder, name):
    """What one rank alone has written."""
    dist.barrier()
    return torch.load(pathlib.Path(folder, name))


def save_everywhere(folder):
    """As scripts do: model and optimizer by rank 0, tamis in three ways."""
    net, optimizer, state = build()
    train(net, optimizer, range(HALF))
    state.save(folder)
    gathered = state.gathered().state_dict()
    if dist.get_rank() == 0:
        kept = {"model": net.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(dict(kept, tamis=gathered), pathlib.Path(folder, "all.pt"))
    if hasattr(dcp, "save"):
        dcp.save({"tamis": state}, checkpoint_id=os.path.join(folder, "dcp"))
    return net, optimizer, state, gathered


def case_saved(folder):
    net, optimizer, state, gathered = save_everywhere(folder)
    names = sorted(gathered)
    files = sorted(path.name for path in pathlib.Path(folder).glob("tamis-*"))
    train(net, optimizer, range(HALF, WHOLE))
    mark = optimizer.state_dict().get("tamis_steps")
    state.close()
    return bits(net), names, files, mark, "tamis_steps" in optimizer.state_dict()


def resume(folder, load):
    net, optimizer, state = build()
    found = rank0(folder, "all.pt")
    net.module.load_state_dict(found["model"])
    optimizer.load_state_dict(found["optimizer"])
    load(state, found)
    steps = state.steps
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        train(net, optimizer, range(HALF, WHOLE))
    state.close()
    return bits(net), steps, [str(one.message) for one in heard if "tamis" in str(one.message)]


def load_dcp(state, folder):
    if not hasattr(dcp, "load"):
        return state.load(folder)
    dcp.load({"tamis": state}, checkpoint_id=os.path.join(folder, "dcp"))


def case_resumed(folder):
    return [
        resume(folder, lambda state, found: state.load(folder)),
        resume(folder, lambda state, found: state.gathered().load_state_dict(found["tamis"])),
        resume(folder, lambda state, found: load_dcp(state, folder)),
    ]


def case_fresh(folder):
    """Torch's distributed checkpoints load what is there: of an optimizer that has not stepped
    nothing. And its own calls for optimizers pass."""
    if not hasattr(dcp, "load"):
        return None
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    net, optimizer, state = build()
    said = told(lambda: load_dcp(state, folder))
    state._unused.detach()
    state.close()
    net, optimizer, state = build()
    train(net, optimizer, range(2))
    model, own = get_state_dict(net, optimizer)
    set_state_dict(net, optimizer, model_state_dict=model, optim_state_dict=own)
    train(net, optimizer, range(2, 4))
    state.close()
    return said, sorted(own), tamis.torch.replicas_identical(net.module)


def case_forgotten(folder):
    """The optimizer's alone: it says so, once. That of a dense run does not."""
    _, _, words = resume(folder, lambda state, found: None)
    net, optimizer, state = build()
    plain = rank0(folder, "all.pt")["optimizer"]
    plain.pop("tamis_steps", None)
    optimizer.load_state_dict(plain)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        train(net, optimizer, range(2))
    state.close()
    return words, [str(one.message) for one in heard if "checkpoint" in str(one.message)]


def case_order(folder):
    """The optimizer's after the state's: of rank 0, whatever torch has made of it."""
    rows = []
    for marked in (True, False):
        net, optimizer, state = build()
        found = rank0(folder, "all.pt")
        state.load(folder)
        given = found["optimizer"]
        if not marked:
            given.pop("tamis_steps", None)
        optimizer.load_state_dict(given)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            train(net, optimizer, range(2))
        state.close()
        rows.append(len([one for one in heard if "checkpoint" in str(one.message)]))
    return rows


def pending(folder, nranks):
    every = [own(torch.load(pathlib.Path(folder, f"tamis-rank{r}.pt"))) for r in range(nranks)]
    return sum(one["residual"]["0.weight"].double() for one in every) / nranks


def case_others(folder):
    """A checkpoint of two ranks, loaded by as many as there are here."""
    rows = []
    for load in (
        lambda state, found: state.load(folder),
        lambda state, found: state.load_state_dict(found["tamis"]),
    ):
        net, optimizer, state = build()
        found = rank0(folder, "all.pt")
        load(state, found)
        mean = own(state.state_dict())["residual"]["0.weight"].double()
        dist.all_reduce(mean)
        kept = torch.allclose(mean / dist.get_world_size(), pending(folder, 2), atol=1e-6)
        net.module.load_state_dict(found["model"])
        train(net, optimizer, range(HALF, WHOLE))
        rows.append((kept, state.steps, tamis.torch.replicas_identical(net.module)))
        state.close()
    return rows


def case_refused(folder):
    net, optimizer, state = build()
    rank, empty = dist.get_rank(), pathlib.Path(folder, "empty")
    said = {"nothing": told(lambda: state.load(empty))}
    saved = torch.load(pathlib.Path(folder, f"tamis-rank{1 - rank}.pt"))
    said["other"] = told(lambda: state.load_state_dict(saved))
    said["loose"] = told(lambda: state.load_state_dict(saved, strict=False))
    said["strange"] = told(lambda: state.load_state_dict({"model": 3}))
    state.save(empty)
    dist.barrier()
    if rank == 1:
        (empty / "tamis-rank1.pt").write_bytes(b"no file of torch")
    dist.barrier()
    said["damaged"] = told(lambda: state.load(empty))
    dist.barrier()
    if rank == 1:
        os.unlink(empty / "tamis-rank1.pt")
    dist.barrier()
    said["missing"] = told(lambda: state.load(empty))
    train(net, optimizer, range(2))  # nothing was lost
    state.close()
    return said, tamis.torch.replicas_identical(net.module)


# ------------------------------------------------------------------------------------- the tests


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def saved(folder):
    return ranks.run(__file__, ["case_saved"], folder=folder)


@pytest.fixture(scope="module")
def results(saved, folder):
    cases = ["case_resumed", "case_fresh", "case_order", "case_forgotten", "case_refused"]
    return dict(ranks.run(__file__, cases, folder=folder), **saved)


def test_each_rank_has_a_key_and_a_file_of_its_own(saved):
    for rank, (_, names, files, mark, left) in enumerate(ranks.values(saved, "case_saved")):
        assert names == (["rank0", "rank1"] if rank == 0 else [])
        assert files == ["tamis-rank0.pt", "tamis-rank1.pt"]
        assert mark == (WHOLE if MARKS else None) and not left


def test_a_resumed_run_has_the_bits_of_one_that_was_not_stopped(results):
    whole = [row[0] for row in ranks.values(results, "case_saved")]
    assert whole[0] == whole[1]
    for rows in ranks.values(results, "case_resumed"):
        assert rows == [(whole[0], HALF, [])] * 3, rows


def test_what_a_distributed_checkpoint_leaves_out_is_told(results):
    for found in ranks.values(results, "case_fresh"):
        if found is None:
            pytest.skip("this torch has no torch.distributed.checkpoint.load")
        said, keys, same = found
        assert said[0] == "ValueError" and "of 6 parameters" in said[1], said
        assert keys == ["param_groups", "state"] and same


def test_an_optimizer_that_was_loaded_alone_says_so(results):
    for rank, (words, dense) in enumerate(ranks.values(results, "case_forgotten")):
        if MARKS:
            assert f"rank {rank}: a checkpoint" in words[0] and "step 3" in words[0]
        assert len(words) == MARKS
        assert dense == []
    assert ranks.values(results, "case_order") == [[MARKS, MARKS]] * 2


@pytest.mark.parametrize("nranks", [1, 3])
def test_others_go_on_with_what_is_pending(results, folder, nranks):
    found = ranks.run(__file__, ["case_others"], nranks=nranks, folder=folder)
    for rows in ranks.values(found, "case_others"):
        assert rows == [(True, WHOLE, True)] * 2, rows


def test_what_does_not_fit_is_named_on_all_ranks(results):
    for rank, (said, same) in enumerate(ranks.values(results, "case_refused")):
        words = {
            "nothing": ("FileNotFoundError", f"tamis-rank{rank}.pt"),
            "other": ("ValueError", f"is of rank {1 - rank} of 2"),
            "loose": ("ValueError", f"is of rank {1 - rank} of 2"),
            "strange": ("ValueError", "not a result of SparseState"),
            "damaged": [("Error", "another rank has not"), ("ValueError", "rank1.pt is damaged")],
            "missing": [("Error", "another rank has not"), ("FileNotFoundError", "rank1.pt")],
        }
        for name, (kind, word) in said.items():
            expected = words[name][rank] if isinstance(words[name], list) else words[name]
            assert kind == expected[0] and expected[1] in word, (name, kind, word)
        assert same
