# SPDX-License-Identifier: MIT
#
# test: slow
"""What is not allowed is met with a sentence, in time, and never in silence."""

import copy
import gc
import pickle

import pytest
import torch
import torch.distributed as dist

import ranks
from load import stretch
from ranks import told_after
from torch_models import batch, ddp, network
from saved import own

import tamis
import tamis.torch

TIMEOUT_S = 6.0


def alone(parameters, **options):
    """A state of one rank."""
    return tamis.torch.SparseState(parameters, comm=tamis.Comm.local(1)[0], **options)


# ------------------------------------------------------------------------------ run by the ranks


def step(net, number=0):
    x, y = batch(number, dist.get_rank())
    torch.nn.functional.cross_entropy(net(x), y).backward()


def case_second_model():
    """The hook of one state on two models."""
    first, second = ddp(network()), ddp(network())
    state = tamis.torch.attach(first, density=0.05, timeout_s=TIMEOUT_S)
    second.register_comm_hook(state, tamis.torch.sparse_hook)
    step(first)
    told = told_after(lambda: step(second))
    again = told_after(lambda: step(first))
    return told, again, told_after(state.check)


def case_missing_parameter():
    """A state of more parameters than DDP has."""
    model = network()
    more = list(model.named_parameters()) + [("extra", torch.nn.Parameter(torch.ones(5)))]
    net = ddp(model)
    state = tamis.torch.SparseState(more, density=0.05, timeout_s=TIMEOUT_S)
    net.register_comm_hook(state, tamis.torch.sparse_hook)
    return told_after(lambda: step(net)), told_after(lambda: step(net))


def case_one_rank_fails(timeout_s=60):
    """One rank raises inside the hook and lives on: the others learn it before the deadline."""
    net = ddp(network())
    state = tamis.torch.attach(net, density=0.05, timeout_s=timeout_s, bucket_length=2000)
    step(net)
    if dist.get_rank() == 0:
        state._cache.clear()
        state._index.pop(id(net.module[2].weight))
    told = told_after(lambda: step(net))
    again = told_after(lambda: step(net))
    saved = state.state_dict()
    return told, again, len(own(saved)["residual"]), state.comm.status


def case_one_rank_fails_over_mpi():
    """Over MPI they learn it at their deadline."""
    return case_one_rank_fails(timeout_s=stretch(3))


def case_one_rank_is_late():
    """A rank that does not come: a deadline, not a hang."""
    net = ddp(network())
    state = tamis.torch.attach(net, density=0.05, timeout_s=stretch(2))
    step(net)
    step(net)  # here DDP rebuilds its buckets, over its own group
    told = None
    if dist.get_rank() == 0:
        told = told_after(lambda: step(net))
    dist.barrier()
    return told


def case_backward_breaks_off():
    """An exception in the middle of backward, on all ranks; then another backward."""

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            raise ArithmeticError("in the middle")

    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()
            self.breaks = False

        def forward(self, x):
            x = self.net[:3](x)
            return self.net[3:](Breaks.apply(x) if self.breaks else x)

    net = ddp(Broken(), bucket_cap_mb=0.001)
    state = tamis.torch.attach(net, density=0.05, timeout_s=TIMEOUT_S)
    step(net)
    step(net)
    net.module.breaks = True
    first = told_after(lambda: step(net))
    net.module.breaks = False
    return first, told_after(lambda: step(net))


def case_ranks_differ():
    """Other densities, or other models, on other ranks."""
    rank = dist.get_rank()
    density = told_after(lambda: tamis.torch.SparseState(network(), density=0.01 * (1 + rank)))
    model = told_after(lambda: tamis.torch.SparseState(network(20 + rank)))
    return density, model


def case_other_number_of_ranks():
    net = ddp(network())
    return told_after(lambda: tamis.torch.attach(net, comm=tamis.Comm.local(1)[0])), told_after(
        lambda: tamis.torch.SparseState(network(), transport="local")
    )


def case_carrier_refuses():
    given = tamis.torch.carrier(dist.group.WORLD, timeout_s=TIMEOUT_S)
    return given.rank, given.nranks, given.transport


def case_hook_without_copy_of_the_state():
    net = ddp(network())
    state = tamis.torch.attach(net, density=0.05)
    told = [told_after(lambda: pickle.dumps(state)), told_after(lambda: copy.deepcopy(state)),
            told_after(lambda: copy.copy(state))]
    state.close()
    state.close()
    told.append(told_after(lambda: step(net)))
    return told


def case_broadcast():
    """The bits of rank 0, in any dtype, over torch and over a communicator."""
    same = []
    for comm in (None, tamis.torch.carrier(timeout_s=TIMEOUT_S)):
        generator = torch.Generator().manual_seed(5 + dist.get_rank())
        expected = torch.Generator().manual_seed(5)
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64,
                      torch.bool, torch.complex64, torch.uint8):
            def make(generator):
                raw = torch.randint(0, 256, (3, 5 * 16), generator=generator, dtype=torch.uint8)
                if dtype == torch.bool:
                    return (raw > 127)[:, ::2]
                return raw.view(dtype)[:, ::2]  # any bits, NaN too, and not contiguous

            tensor, wanted = make(generator), make(expected)
            tamis.torch.broadcast_parameters([tensor], comm)
            same.append(tamis.torch._comm._bytes_of(tensor).equal(
                tamis.torch._comm._bytes_of(wanted)))
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor += dist.get_rank()
        before = tamis.torch.replicas_identical(model, comm)
        tamis.torch.broadcast_parameters(model, comm)
        same.append(not before and tamis.torch.replicas_identical(model, comm))
        same.append(model[1].num_batches_tracked.item() == 0)
    return same


# ------------------------------------------------------------------------------------- the tests

CASES = [name for name in dir() if name.startswith("case_")]


@pytest.fixture(scope="module")
def results():
    names = [name for name in CASES if name != "case_one_rank_fails_over_mpi"]
    return ranks.run(__file__, names, nranks=2)


def said(results, name):
    return ranks.values(results, name)


def test_a_state_serves_one_model(results):
    for (kind, sentence, took), again, check in said(results, "case_second_model"):
        assert kind == "RuntimeError" and "does not know" in sentence and "one model" in sentence
        assert took < TIMEOUT_S + stretch(10)
        assert again[:2] == (kind, sentence) and check[:2] == (kind, sentence)


def test_a_parameter_that_never_comes_is_named(results):
    for (kind, sentence, took), again in said(results, "case_missing_parameter"):
        assert kind == "RuntimeError" and "extra" in sentence and "1 of 7" in sentence
        assert took < TIMEOUT_S + stretch(10)
        assert again[:2] == (kind, sentence)


def test_others_learn_at_once_that_a_rank_gave_up(results):
    first, second = said(results, "case_one_rank_fails")
    (kind, sentence, took), again, residuals, status = first
    assert kind == "RuntimeError" and "does not know" in sentence and took < stretch(8)
    assert again[:2] == (kind, sentence) and residuals == 6 and status == "TAMIS_E_ABORTED"
    (kind, sentence, took), again, residuals, status = second
    assert kind == "Error" and took < stretch(15), sentence
    assert again[:2] == (kind, sentence) and residuals == 6 and status != "TAMIS_OK"


def test_over_mpi_they_meet_their_deadline():
    if not tamis.mpi_module():
        pytest.skip("this build has no MPI")
    name = "case_one_rank_fails_over_mpi"
    first, second = ranks.values(ranks.run(__file__, [name], launcher="mpi"), name)
    (kind, sentence, _), again, residuals, _ = first
    assert kind == "RuntimeError" and "does not know" in sentence
    assert again[:2] == (kind, sentence) and residuals == 6
    (kind, sentence, took), again, residuals, status = second
    assert kind == "Error" and took < 5 + stretch(10), sentence
    assert again[:2] == (kind, sentence) and residuals == 6 and status == "TAMIS_E_TIMEOUT"


def test_a_rank_that_does_not_come_meets_a_deadline(results):
    (kind, sentence, took), _ = said(results, "case_one_rank_is_late")
    assert kind == "Error" and 1 < took < 5 + stretch(10), sentence


def test_a_backward_pass_that_broke_off_ends_the_state(results):
    for first, second in said(results, "case_backward_breaks_off"):
        assert first[0] == "ArithmeticError"
        assert second[0] == "RuntimeError" and second[2] < TIMEOUT_S + 1
        assert "prior iteration" in second[1] or "previous backward pass ended" in second[1]


def test_ranks_that_differ_are_told_so(results):
    for density, model in said(results, "case_ranks_differ"):
        assert density[0] == "Error" and "density" in density[1]
        assert model[0] == "Error"


def test_ddp_and_communicator_have_the_same_ranks(results):
    for attached, alone_ in said(results, "case_other_number_of_ranks"):
        assert attached[0] == "ValueError" and "2 ranks" in attached[1]
        assert alone_[0] == "Error" and "2" in alone_[1]


def test_a_state_is_neither_copied_nor_used_after_close(results):
    for pickled, deep, shallow, closed in said(results, "case_hook_without_copy_of_the_state"):
        for kind, sentence, _ in (pickled, deep, shallow):
            assert kind == "TypeError" and "state_dict" in sentence
        assert closed[0] is not None and "closed" in closed[1]


def test_a_group_of_the_caller_carries(results):
    assert said(results, "case_carrier_refuses") == [(0, 2, "callback"), (1, 2, "callback")]


def test_broadcast_gives_the_bits_of_rank_0(results):
    for same in said(results, "case_broadcast"):
        assert all(same), same


# ------------------------------------------------------------ what one process can find out alone


def refusal(kind, word, call):
    with pytest.raises(kind) as caught:
        call()
    assert word in str(caught.value)


def test_dtypes_that_cannot_be_exchanged():
    refusal(TypeError, "model.float()", lambda: alone(torch.nn.Linear(2, 2).double()))
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = tamis.torch.DistributedOptimizer(inner, model, comm=tamis.Comm.local(1)[0])
    model.double()
    refusal(
        ValueError,
        "parameter 'weight' has torch.float64, shape (2, 2)",
        lambda: (model(torch.ones(1, 2).double()).sum().backward(), optimizer.step()),
    )
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = tamis.torch.DistributedOptimizer(
        inner, model, reduce="gradient", comm=tamis.Comm.local(1)[0]
    )
    model.double()
    with pytest.raises((ValueError, tamis.Error), match="float64"):  # in step(), or in backward()
        model(torch.ones(1, 2).double()).sum().backward()
        optimizer.step()
    half = torch.nn.Linear(2, 2).bfloat16()
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        refusal(
            TypeError,
            f"the step of {kind.__name__} is exchanged as what it changes, which 16 bits round",
            lambda: alone(half, optimizer=kind(half.parameters(), lr=0.1)),
        )
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.complex64))
    refusal(TypeError, "'w' is torch.complex64", lambda: alone([("w", weight)]))


def test_an_optimizer_has_one_state():
    model = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    state = alone(model, optimizer=inner)
    refusal(RuntimeError, "this SGD already", lambda: alone(model, optimizer=inner))
    del state  # not closed
    gc.collect()
    model(torch.ones(1, 2)).sum().backward()
    refusal(RuntimeError, "keep what attach returned", inner.step)
    state = alone(model, optimizer=inner)
    inner.step()
    assert state.steps == 1
    state.close()
    inner.step()  # is its own again
    state = alone(model, optimizer=inner)
    inner.step()
    assert state.steps == 1


def test_parameters_without_names():
    refusal(TypeError, "named_parameters", lambda: alone(torch.nn.Linear(2, 2).parameters()))


def test_parameters_that_repeat():
    p = torch.nn.Parameter(torch.zeros(2))
    q = torch.nn.Parameter(torch.zeros(2))
    refusal(ValueError, "same parameter", lambda: alone([("a", p), ("b", p)]))
    refusal(ValueError, "named 'a'", lambda: alone([("a", p), ("a", q)]))


def test_nothing_to_exchange():
    refusal(ValueError, "no parameter", lambda: alone(torch.nn.ReLU()))
    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    refusal(ValueError, "requires_grad", lambda: alone(frozen))


def test_devices():
    here = ("a", torch.nn.Parameter(torch.zeros(2)))
    there = ("b", torch.nn.Parameter(torch.zeros(2, device="meta")))
    refusal(ValueError, "one device", lambda: alone([here, there]))
    refusal(TypeError, "only cpu and cuda", lambda: alone([there]))


def test_parameters_on_cuda_without_cuda(monkeypatch):
    feature = next(row for row in tamis.features() if row["name"] == "cuda")
    if feature["available"]:
        pytest.skip("this build has CUDA")
    refusal(
        RuntimeError, "cannot use CUDA: ", lambda: tamis.torch._ranks._need_cuda(torch.device("cuda", 0))
    )


def test_sharded_models():
    class FullyShardedDataParallel(torch.nn.Linear):
        """As torch's own is called; that of torch 1.13 cannot be imported on Python 3.11."""

    refusal(TypeError, "FSDP", lambda: alone(FullyShardedDataParallel(2, 2)))


def test_sparse_embeddings():
    refusal(TypeError, "sparse=False", lambda: alone(torch.nn.Embedding(5, 2, sparse=True)))


def test_strides_with_holes():
    p = torch.nn.Parameter(torch.zeros(4, 4)[:, ::2])
    refusal(ValueError, "make it contiguous", lambda: alone([("w", p)]))


def test_options():
    model = torch.nn.Linear(2, 2)
    refusal(ValueError, "warmup", lambda: alone(model, warmup=-1))
    for density in (0.0, 1.5, -0.1):
        refusal(ValueError, "not a share in (0, 1]", lambda: alone(model, density=density))
    refusal(tamis.Error, "nonsense", lambda: alone(model, scheme="nonsense"))
    refusal(TypeError, "no_such_option", lambda: alone(model, no_such_option=1))
    two = [("a", torch.nn.Parameter(torch.zeros(2))),
           ("b", torch.nn.Parameter(torch.zeros(2, dtype=torch.bfloat16)))]
    refusal(ValueError, "2 dtypes", lambda: alone(two))


def test_attach_wants_ddp():
    refusal(TypeError, "DistributedOptimizer", lambda: tamis.torch.attach(torch.nn.Linear(2, 2)))


def test_nobody_to_speak_to():
    refusal(RuntimeError, "init_process_group", tamis.torch.carrier)
    refusal(
        RuntimeError, "comm=", lambda: tamis.torch.broadcast_parameters(torch.nn.Linear(2, 2))
    )
