# SPDX-License-Identifier: MIT
#
# test: slow
"""Parameters are compared over the ranks, and a state that exchanged nothing says so."""

import gc
import warnings

import pytest
import torch
import torch.distributed as dist

import jobs
import ranks
from ranks import told
from torch_models import ddp, network, train

import tamis
import tamis.torch

# ------------------------------------------------------------------------------ run by the ranks


def change(model):
    """One bit of one entry, on the last rank."""
    if dist.get_rank() == dist.get_world_size() - 1:
        with torch.no_grad():
            model[2].weight.view(-1)[17].neg_()


def make(kind, model, **options):
    """What trains, the optimizer, the state."""
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    options = dict(dict(density=0.05, timeout_s=20), **options)
    if kind == "ddp":
        net = ddp(model)
        return net, inner, tamis.torch.attach(net, **options)
    optimizer = tamis.torch.DistributedOptimizer(inner, model, **options)
    return model, optimizer, optimizer.tamis


def case_first_step():
    rows = []
    for kind in ("ddp", "optimizer"):
        model = network()
        net, optimizer, state = make(kind, model)
        change(model)
        rows.append((*told(lambda: train(net, optimizer, [0])), state.steps, state.comm.status))
        state.close()
    return rows


def case_every():
    """Changed after the first of four steps: found at the beginning of the third."""
    rows = []
    for every in (None, 0, 2):
        model = network()
        net, optimizer, state = make("ddp", model, check_every=every)
        train(net, optimizer, [0])
        change(model)
        result = told(lambda: train(net, optimizer, range(1, 4)))
        rows.append((*result, state.steps, state.comm.status))
        state.close()
    return rows


def case_none():
    model = network()
    net, optimizer, state = make("optimizer", model, check_every=0)
    change(model)
    return told(lambda: train(net, optimizer, [0]))


def case_broadcast_first():
    model = network()
    net, optimizer, state = make("optimizer", model)
    change(model)
    tamis.torch.broadcast_parameters(model, state.comm)
    return told(lambda: train(net, optimizer, [0]))


def case_options():
    rank = dist.get_rank()
    return [
        told(lambda: tamis.torch.SparseState(network(), timeout_s=20, **options))
        for options in (dict(check_every=rank), dict(warmup=rank))
    ]


def case_check_equal():
    """bytes, and tensors of any type; the ranks that differ; one that gives nonsense."""
    rank, comm = dist.get_rank(), tamis.comm(timeout_s=20)
    same = [b"", b"\0" * 100, torch.arange(9, dtype=torch.int64), torch.zeros(3, 4).double()]
    fine = [tamis.check_equal(comm, data) for data in same]
    odd = torch.zeros(5, dtype=torch.bfloat16)
    odd[3] = -0.0 if rank == 1 else 0.0
    rows = [told(lambda: tamis.check_equal(comm, odd))]
    rows.append(told(lambda: tamis.check_equal(comm, b"12" if rank else b"123")))
    strided = torch.zeros(4, 4)[:, ::2] if rank == 0 else torch.zeros(4, 2)
    rows.append(told(lambda: tamis.check_equal(comm, strided)))
    tamis.check_equal(comm, b"and it goes on")
    return fine, rows, comm.status


# ------------------------------------------------------------------------------------- the tests

CASES = [name for name in dir() if name.startswith("case_")]


@pytest.fixture(scope="module", params=["env", "mpi"])
def results(request):
    if request.param == "mpi" and not tamis.mpi_module():
        pytest.skip("this build has no MPI")
    return ranks.run(__file__, CASES, nranks=3, launcher=request.param)


def test_parameters_that_differ_are_told_on_all_ranks_before_the_first_step(results):
    for rows in ranks.values(results, "case_first_step"):
        for kind, sentence, steps, status in rows:
            assert kind == "Error" and steps == 0
            assert status == "TAMIS_OK", "a rank that aborts hides the cause from slower ones"
            assert "'2.weight' is not the same on all ranks" in sentence
            assert "rank(s) 2 differ from the other 2" in sentence
            assert "broadcast_parameters" in sentence


def test_every_nth_step_looks_again_if_asked(results):
    for first, none, second in ranks.values(results, "case_every"):
        assert first == none == (None, "", 4, "TAMIS_OK")
        assert second[0] == "Error" and "Before step 2 parameter '2.weight'" in second[1]
        assert second[2:] == (2, "TAMIS_OK")


def test_nobody_looks_if_not_asked_or_where_they_were_broadcast(results):
    assert ranks.values(results, "case_none") == [(None, "")] * 3
    assert ranks.values(results, "case_broadcast_first") == [(None, "")] * 3


def test_options_of_the_state_are_compared(results):
    for check, warmup in ranks.values(results, "case_options"):
        assert check[0] == warmup[0] == "Error"
        assert "check_every=" in check[1] and "not the same on all ranks" in check[1]
        assert "warmup=" in warmup[1] and "not the same on all ranks" in warmup[1]


def test_check_equal_names_the_ranks(results):
    for rank, (fine, rows, status) in enumerate(ranks.values(results, "case_check_equal")):
        assert fine == [None] * 4 and status == "TAMIS_OK"
        (_, value), (_, length), (_, strided) = rows
        assert "rank(s) 1 differ from the other 2" in value
        assert "rank(s) 0 differ" in length and "rank 0 gave 3 bytes" in length
        assert ("not contiguous" if rank == 0 else "rank 0") in strided


# ------------------------------------------------------------ what one process can find out alone


def alone(model, **options):
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    options = dict(dict(comm=tamis.Comm.local(1)[0], reduce="gradient"), **options)
    return tamis.torch.DistributedOptimizer(inner, model, **options)


def step(model, optimizer):
    model(torch.ones(2, 20)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("end", ["close", "collect"])
def test_a_state_without_steps_warns_once_and_one_with_steps_does_not(end):
    for number in (0, 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = network()
            optimizer = alone(model)
            for _ in range(number):
                step(model, optimizer)
            if end == "close":
                optimizer.close()
                optimizer.close()
            del optimizer, model
            gc.collect()
        texts = [str(row.message) for row in caught if "0 steps" in str(row.message)]
        assert len(texts) == (number == 0), texts
        assert all("register_comm_hook" in text and "inside" in text for text in texts)


def test_a_state_that_failed_does_not_warn():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = network()
        optimizer = alone(model)
        model(torch.ones(2, 20)).sum().backward()
        model[0].weight.grad.mul_(0.5)
        with pytest.raises(RuntimeError):
            optimizer.step()
        optimizer.close()
    assert not [row for row in caught if "0 steps" in str(row.message)]


UNUSED = """
import torch, tamis, tamis.torch
model = torch.nn.Linear(3, 3)
inner = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = tamis.torch.DistributedOptimizer(inner, model, reduce=REDUCE)
for step in range(STEPS):
    inner.zero_grad()
    with optimizer.no_sync():
        model(torch.ones(2, 3)).sum().backward()
    STEP
END
"""


@pytest.mark.parametrize(
    "stepper, reduce, end, words",
    [
        ("inner.step()", "gradient", "", 1),
        ("optimizer.step()", "gradient", "", 0),
        ("inner.step()", "gradient", "raise ValueError()", 0),
        ("inner.step()", "step", "", 0),  # which exchanges, whoever calls it
        ("pass", "step", "", 1),
    ],
)
def test_at_exit_a_state_without_steps_warns(stepper, reduce, end, words):
    script = UNUSED.replace("STEPS", "2").replace("STEP", stepper).replace("END", end)
    script = script.replace("REDUCE", repr(reduce))
    job = jobs.alone(script)
    assert job.err.count("ends after 0 steps") == words, job
    assert (job.status == 0) == (end == ""), job


def test_a_lost_communicator_is_not_taken_for_ranks_that_differ():
    one, other = tamis.Comm.local(2, timeout_ms=20000)
    one.abort()
    with pytest.raises(tamis.Error) as error:
        tamis.torch._guard.check_options(one, "a density of 0.1")
    assert error.value.status == "TAMIS_E_ABORTED" and "density" not in str(error.value)
    one.close()
    other.close()


def test_a_number_of_steps_that_is_none():
    with pytest.raises(ValueError, match="check_every is -1"):
        alone(network(), check_every=-1)
