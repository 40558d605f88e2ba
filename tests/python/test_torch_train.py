# SPDX-License-Identifier: MIT
#
# test: slow
"""Training: it learns, replicas have the same bits, and a resumed run ends with the same bits."""

import gzip
import os

import pytest
import torch
import torch.distributed as dist

import jobs
import ranks
from torch_models import bits, ddp, network, train
from saved import own

import tamis
import tamis.torch

IMAGES = "/usr/share/datasets/fashion-mnist"  # Debian: dataset-fashion-mnist


# ------------------------------------------------------------------------------ run by the ranks


def idx(name, header, count):
    """The first `count` bytes of a file of Fashion-MNIST, after its header."""
    with gzip.open(f"{IMAGES}/{name}-ubyte.gz") as file:
        return torch.frombuffer(bytearray(file.read(header + count)), dtype=torch.uint8)[header:]


def images(part, count):
    x = idx(f"{part}-images-idx3", 16, count * 784).view(count, 784).float() / 255
    return x, idx(f"{part}-labels-idx1", 8, count).long()


def case_images(dense, transport="auto"):
    """Accuracy on 1,000 images after two epochs over 6,000, and what it cost."""
    x, y = images("train", 6000)
    torch.manual_seed(5)
    model = torch.nn.Sequential(
        torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
    )
    net = ddp(model)
    state = tamis.torch.attach(
        net, density=0.01, scheme="dense" if dense else "tamis", transport=transport
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.2)
    order = torch.Generator().manual_seed(11)
    rank, nranks = dist.get_rank(), dist.get_world_size()
    for _ in range(2):
        mine = torch.randperm(6000, generator=order)[rank::nranks]
        for part in mine.split(60 // nranks):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[part]), y[part]).backward()
            optimizer.step()
    x, y = images("t10k", 1000)
    accuracy = (model(x).argmax(1) == y).float().mean().item()
    same = tamis.torch.replicas_identical(net)
    on_comm = tamis.torch.replicas_identical(net, state.comm)
    name, total = state.comm.transport, state.stats()["total"]
    state.close()
    return dict(
        accuracy=accuracy, bits=bits(model), same=same, on_comm=on_comm, transport=name,
        share=total["wire_bytes"] / total["dense_bytes"], steps=total["steps"],
    )


def case_sparse(**_):
    return case_images(False)


def case_dense(**_):
    return case_images(True)


def case_torch_carries(**_):
    return case_images(False, "torch")


def case_overlap_keeps_bits(**_):
    found = []
    for overlap in (True, False):
        net = ddp(network())
        state = tamis.torch.attach(net, density=0.05, overlap=overlap, bucket_length=3000)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), range(8))
        found.append((bits(net), len(state.groups[0].reducer.buckets())))
        state.close()
    return found


def case_replicas_that_differ_are_found(**_):
    net = network()
    before = tamis.torch.replicas_identical(net)
    if dist.get_rank() == 1:
        net[0].weight.data[0, 0] = torch.nextafter(net[0].weight.data[0, 0], torch.tensor(9.0))
    return before, tamis.torch.replicas_identical(net)


def build():
    net = ddp(network())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    state = tamis.torch.attach(net, density=0.02, warmup=3, density_max=0.05)
    return net, optimizer, state


def case_whole_run(folder):
    """12 steps, saved after 6; density changes in step 4."""
    net, optimizer, state = build()
    train(net, optimizer, range(4))
    state.set_density(0.05)
    train(net, optimizer, range(4, 6))
    saved = dict(model=net.state_dict(), optimizer=optimizer.state_dict(), tamis=state.state_dict())
    torch.save(saved, f"{folder}/{dist.get_rank()}.pt")
    train(net, optimizer, range(6, 12))
    norm = state.residual_norm()
    state.close()
    return bits(net), norm


def resume(folder):
    net, optimizer, state = build()
    saved = torch.load(f"{folder}/{dist.get_rank()}.pt")
    net.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return net, optimizer, state, saved["tamis"]


def case_resumed_run(folder):
    net, optimizer, state, saved = resume(folder)
    state.load_state_dict(saved)
    assert state.density == 0.05
    train(net, optimizer, range(6, 12))
    norm = state.residual_norm()
    state.close()
    return bits(net), norm


def case_resynced_run(folder):
    """Rank 0 has made a step that rank 1 has not: they agree on the step before, and go on."""
    net, optimizer, state, saved = resume(folder)
    state.load_state_dict(saved)
    train(net, optimizer, range(6, 7))
    ahead = state.state_dict()
    state.close()
    steps, ends = [], []
    for _ in range(2):
        net, optimizer, state, _ = resume(folder)
        state.load_state_dict(ahead if dist.get_rank() == 0 else saved)
        steps += [state.steps, state.resync()]
        agreed = state.state_dict()
        train(net, optimizer, range(6, 12))
        ends.append((bits(net), state.residual_norm()))
        state.close()
        ahead = saved = agreed  # which now need no resync
    return steps, ends


def case_resumed_without_residual(folder):
    net, optimizer, state, _ = resume(folder)
    train(net, optimizer, range(6, 12))
    state.close()
    return bits(net), 0.0


def case_weights_only(folder):
    """A checkpoint holds nothing that torch.load must trust."""
    net, _, state = build()
    saved = torch.load(f"{folder}/{dist.get_rank()}.pt", weights_only=True)
    taken = state.load_state_dict(saved["tamis"])
    steps = state.steps
    state.close()
    return len(taken), steps


def refused(state, saved, **change):
    try:
        state.load_state_dict({f"rank{dist.get_rank()}": dict(saved, **change)})
    except ValueError as error:
        return str(error)
    return None


def case_load_names_what_differs(folder):
    net, _, state = build()
    saved = own(torch.load(f"{folder}/{dist.get_rank()}.pt")["tamis"])
    before = own(state.state_dict())
    other = dict(saved["parameters"])
    other["0.weight"] = ["float32", 3, 3]
    more = dict(saved["parameters"], extra=["float32", 2])
    less = dict(saved["parameters"])
    del less["2.bias"]
    told = [
        refused(state, saved, rank=1 - dist.get_rank()),
        refused(state, saved, nranks=7),
        refused(state, saved, scheme="topk"),
        refused(state, saved, format=99),
        refused(state, saved, warmup=4),
        refused(state, saved, parameters=other),
        refused(state, saved, parameters=more),
        refused(state, saved, parameters=less),
        refused(state, saved, residual={}),
        refused(state, saved, exchanges=["steps of SGD"]),
        refused(state, saved, optimizers=[{}]),
    ]
    damaged = dict(saved, control=[saved["control"][0].clone()])
    damaged["control"][0][40] ^= 1
    try:
        state.load_state_dict({f"rank{dist.get_rank()}": damaged})
        told.append(None)
    except tamis.Error as error:
        told.append(error.status)
    after = own(state.state_dict())
    same = all(torch.equal(before["residual"][n], after["residual"][n]) for n in before["residual"])
    partly = dict(saved, scheme="topk", residual={"0.bias": saved["residual"]["0.bias"]})
    taken = state.load_state_dict({f"rank{dist.get_rank()}": partly}, strict=False)
    now = own(state.state_dict())["residual"]["0.bias"]
    fits = torch.equal(now, saved["residual"]["0.bias"]) and bool(now.any())
    state.close()
    return told, same, taken, fits


# ------------------------------------------------------------------------------------- the tests

BITS = ["case_overlap_keeps_bits", "case_replicas_that_differ_are_found"]


@pytest.fixture(scope="module")
def learned():
    if not os.path.isdir(IMAGES):
        pytest.skip("the images are not installed (Debian: apt-get install dataset-fashion-mnist)")
    found = {("env", 2): ranks.run(__file__, ["case_sparse", "case_dense", *BITS])}
    found["env", 4] = ranks.run(__file__, ["case_sparse"], nranks=4, launcher="env")
    if tamis.mpi_module():
        names = ["case_sparse", "case_torch_carries", *BITS]
        found["mpi", 2] = ranks.run(__file__, names, launcher="mpi")
        found["mpi", 4] = ranks.run(__file__, ["case_sparse"], nranks=4, launcher="mpi")
    return found


def test_sparse_training_learns_as_dense_training_does(learned):
    dense = ranks.values(learned["env", 2], "case_dense")[0]
    for results in learned.values():
        for row in ranks.values(results, "case_sparse"):
            print(row["transport"], row["accuracy"], "dense", dense["accuracy"], row["share"])
            assert row["accuracy"] > dense["accuracy"] - 0.03
            assert row["accuracy"] > 0.7
            assert row["share"] < 0.1


def test_replicas_have_the_same_bits_whatever_carries(learned):
    for (launcher, nranks), results in learned.items():
        rows = ranks.values(results, "case_sparse")
        assert len({row["bits"] for row in rows}) == 1
        assert all(row["same"] and row["on_comm"] for row in rows)
        assert {row["transport"] for row in rows} == {jobs.CARRIED if launcher == "env" else "mpi"}
    if ("mpi", 2) in learned:
        torch_carried = ranks.values(learned["mpi", 2], "case_torch_carries")[0]
        assert torch_carried["transport"] == "callback"
        found = [ranks.values(learned[key, 2], "case_sparse")[0]["bits"] for key in ("env", "mpi")]
        assert {*found, torch_carried["bits"]} == {found[0]}


@pytest.mark.parametrize("launcher", ["env", "mpi"])
def test_overlap_keeps_the_bits(learned, launcher):
    if (launcher, 2) not in learned:
        pytest.skip("this build has no MPI")
    for (first, buckets), (second, _) in ranks.values(
        learned[launcher, 2], "case_overlap_keeps_bits"
    ):
        assert buckets > 1
        assert first == second


def test_replicas_that_differ_in_one_bit_are_found(learned):
    for before, after in ranks.values(
        learned["env", 2], "case_replicas_that_differ_are_found"
    ):
        assert before and not after


@pytest.fixture(scope="module")
def resumed(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("checkpoint"))
    whole = ranks.run(__file__, ["case_whole_run"], folder=folder)
    ranks.values(whole, "case_whole_run")
    names = ["case_resumed_run", "case_resumed_without_residual", "case_load_names_what_differs",
             "case_weights_only", "case_resynced_run"]
    return dict(ranks.run(__file__, names, folder=folder), case_whole_run=whole["case_whole_run"])


def test_a_resumed_run_ends_with_the_same_bits(resumed):
    whole = ranks.values(resumed, "case_whole_run")
    assert ranks.values(resumed, "case_resumed_run") == whole
    assert ranks.values(resumed, "case_resumed_without_residual")[0][0] != whole[0][0]


def test_ranks_a_step_apart_go_on_from_the_step_before(resumed):
    resynced = ranks.values(resumed, "case_resynced_run")
    assert [steps for steps, _ in resynced] == [[7, 6, 6, 6], [6, 6, 6, 6]]
    for _, ends in resynced:
        assert ends[0] == ends[1]
    assert len({ends[0][0] for _, ends in resynced}) == 1


@pytest.mark.skipif(torch.__version__.startswith("1."), reason="torch 1 refuses any float there")
def test_a_checkpoint_loads_with_weights_only(resumed):
    assert ranks.values(resumed, "case_weights_only") == [(6, 6), (6, 6)]


def test_load_names_what_differs_and_changes_nothing(resumed):
    for rank, (told, same, taken, fits) in enumerate(
        ranks.values(resumed, "case_load_names_what_differs")
    ):
        words = ["of rank", "saved by 7", "scheme", "format", "warmup", "0.weight", "extra", "2.bias",
                 "residual", "exchanges", "1 optimizers were saved", "TAMIS_E_FORMAT"]
        for word, sentence in zip(words, told):
            assert sentence and word in sentence
        assert same
        assert taken == ["0.bias"] and fits
