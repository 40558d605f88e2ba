# SPDX-License-Identifier: MIT
#
# test: slow
"""Means of gradients: what would let replicas drift apart is refused, on all ranks, and what is
right is not."""

import time

import pytest
import torch
import torch.distributed as dist

import ranks
from load import stretch
from ranks import told_after
from torch_models import batch, bits, ddp, network, train
from saved import own

import tamis
import tamis.torch


def wrap(model, **options):
    options = dict(dict(density=0.05, reduce="gradient"), **options)
    inner = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    return tamis.torch.DistributedOptimizer(inner, model, **options)


def backward(model, step=0):
    rank = dist.get_rank() if dist.is_initialized() else 0
    x, y = batch(step, rank)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


def clip(model, _=None):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)


# ------------------------------------------------------------------------------ run by the ranks


def case_clipping():
    """Between backward and step, when all that can be exchanged has been."""
    rows = []
    for overlap in (True, False):
        model = network()
        optimizer = wrap(model, overlap=overlap, timeout_s=20)
        train(model, optimizer, [0])
        optimizer.zero_grad()
        backward(model, 1)
        time.sleep(0.1)
        clip(model)
        rows.append((*told_after(optimizer.step), *told_after(optimizer.step)[:2]))
        optimizer.close()
    return rows


def case_clipping_unseen():
    """By .data, which torch does not count, and by another factor on each rank."""
    model = network()
    optimizer = wrap(model, timeout_s=20)
    for step in range(6):
        optimizer.zero_grad()
        backward(model, step)
        time.sleep(0.05)
        for parameter in model.parameters():
            parameter.grad.data.mul_(0.5 + dist.get_rank())
        optimizer.step()
    optimizer.close()
    return bits(model)


def case_right():
    """synchronize, twice even, then clip; or no_sync, then clip: each rank its own gradients."""
    found = []
    for how in ("synchronize", "no_sync"):
        model = network()
        optimizer = wrap(model, timeout_s=20)
        for step in range(4):
            optimizer.zero_grad()
            if how == "no_sync":
                with optimizer.no_sync():
                    backward(model, step)
            else:
                backward(model, step)
                optimizer.synchronize()
                before = [p.grad.clone() for p in model.parameters()]
                optimizer.synchronize()
                assert all(map(torch.equal, before, [p.grad for p in model.parameters()]))
            clip(model)
            optimizer.step()
        assert optimizer.tamis.steps == 4
        found.append(bits(model))
        optimizer.close()
    return found


def case_ddp_too():
    rows = []
    for order in ("before", "after"):
        for view in (False, True):
            model = network()
            net = ddp(model, gradient_as_bucket_view=view) if order == "before" else None
            optimizer = wrap(model, timeout_s=20)
            net = net or ddp(model, gradient_as_bucket_view=view)
            rows.append((*told_after(lambda: train(net, optimizer, [0])), optimizer.tamis.steps))
            optimizer.close()
    return rows


def case_ddp_beside():
    """One that only evaluates, or is done with, is no reason to refuse."""
    model = network()
    net = ddp(model)
    optimizer = wrap(model, timeout_s=20)
    train(model, optimizer, [0])
    with torch.no_grad():
        net(batch(1, 0)[0])
    train(model, optimizer, [1])
    optimizer.close()
    train(net, torch.optim.SGD(model.parameters(), lr=0.1), [2])
    return bits(model)


def case_one_rank_clips(timeout_s=60):
    model = network()
    optimizer = wrap(model, timeout_s=timeout_s)
    train(model, optimizer, [0])
    optimizer.zero_grad()
    backward(model, 1)
    if dist.get_rank() == 0:
        clip(model)
    first = told_after(optimizer.step)
    again = told_after(lambda: train(model, optimizer, [2]))
    saved = optimizer.tamis.state_dict()
    return first, again, len(own(saved)["residual"])


def case_one_rank_clips_over_mpi():
    return case_one_rank_clips(timeout_s=3)


# ---------------------------------------------------------------------------- the ranks' tests

CASES = ["case_clipping", "case_clipping_unseen", "case_right", "case_ddp_too", "case_ddp_beside"]


@pytest.fixture(scope="module", params=["env", "mpi"])
def results(request):
    if request.param == "mpi" and not tamis.mpi_module():
        pytest.skip("this build has no MPI")
    last = "case_one_rank_clips" + ("_over_mpi" if request.param == "mpi" else "")
    found = ranks.run(__file__, [*CASES, last], launcher=request.param)
    return dict(found, last=found[last])


def test_clipping_without_synchronize_is_refused_on_all_ranks(results):
    for rows in ranks.values(results, "case_clipping"):
        for kind, sentence, took, *again in rows:
            assert kind == "RuntimeError" and took < stretch(15), sentence
            assert "was changed between backward() and step()" in sentence
            assert "call synchronize()" in sentence
            assert again == [kind, sentence]


def test_results_never_come_into_gradients_that_may_still_change(results):
    first, second = ranks.values(results, "case_clipping_unseen")
    assert first == second


def test_clipping_at_the_right_place_is_no_reason(results):
    (synchronized, alone_), other = ranks.values(results, "case_right")
    assert [synchronized, alone_] == other and synchronized != alone_


def test_a_model_that_ddp_wraps_too_is_refused_in_the_first_step(results):
    for rows in ranks.values(results, "case_ddp_too"):
        for kind, sentence, took, steps in rows:
            assert kind == "RuntimeError" and took < stretch(15), sentence
            assert "DistributedDataParallel" in sentence and "tamis.torch.attach" in sentence
            assert steps == 0


def test_a_ddp_that_exchanges_nothing_is_no_reason(results):
    first, second = ranks.values(results, "case_ddp_beside")
    assert first == second


def test_others_learn_that_one_rank_was_refused(results):
    first, second = ranks.values(results, "last")
    (kind, sentence, _), again, residuals = first
    assert kind == "RuntimeError" and "call synchronize()" in sentence
    assert again[:2] == (kind, sentence) and residuals == 6
    (kind, sentence, took), again, residuals = second
    assert kind == "Error" and took < stretch(20), sentence
    assert again[:2] == (kind, sentence) and residuals == 6


# ------------------------------------------------------------ what one process can find out alone


def alone(model, **options):
    return wrap(model, comm=tamis.Comm.local(1)[0], **options)


def zero_in_place(model, _):
    for parameter in model.parameters():
        parameter.grad.zero_()


def none(model, _):
    for parameter in model.parameters():
        parameter.grad = None


def replace(model, _):
    for parameter in model.parameters():
        parameter.grad = parameter.grad * 0.5


def move(model, _):
    for parameter in model.parameters():
        parameter.grad.data = parameter.grad.data * 0.5


def unscale(_, optimizer):
    """As a GradScaler does where it knows no better."""
    for group in optimizer.param_groups:
        torch._foreach_mul_([parameter.grad for parameter in group["params"]], 0.5)


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("change", [clip, zero_in_place, none, replace, move, unscale])
def test_gradients_that_are_changed_or_replaced_are_refused(change, overlap):
    model = network()
    optimizer = alone(model, overlap=overlap)
    train_alone(model, optimizer)
    optimizer.zero_grad()
    backward(model)
    change(model, optimizer)
    before = bits(model)
    with pytest.raises(RuntimeError, match=r"'0.weight' was (changed|replaced).*synchronize\(\)"):
        optimizer.step()
    assert bits(model) == before


def train_alone(model, optimizer):
    optimizer.zero_grad()
    backward(model)
    optimizer.step()


def test_a_step_of_the_optimizer_inside_is_found_in_the_next_backward():
    model = network()
    optimizer = alone(model)
    backward(model)
    optimizer.optimizer.step()
    with pytest.raises(RuntimeError, match="came twice before step"):
        backward(model)


@pytest.mark.parametrize("syncing", [True, False])
def test_a_backward_after_synchronize_is_refused(syncing):
    model = network()
    optimizer = alone(model)
    backward(model)
    optimizer.synchronize()
    optimizer._syncing = syncing  # as in no_sync()
    with pytest.raises(RuntimeError, match="called after synchronize.*zero_grad"):
        backward(model)


def test_a_step_that_is_skipped_after_synchronize_is_no_reason():
    model = network()
    optimizer = alone(model)
    for _ in range(2):
        optimizer.zero_grad()
        backward(model)
        optimizer.synchronize()
    optimizer.step()
    assert optimizer.tamis.steps == 2


@pytest.mark.parametrize("reduce", ["gradient", "step"])
def test_parameters_that_come_later_are_refused(reduce):
    model, head = network(), torch.nn.Linear(5, 2)
    optimizer = alone(model, reduce=reduce)
    train_alone(model, optimizer)
    optimizer.optimizer.add_param_group(dict(params=list(head.parameters())))
    before = bits(model)
    with pytest.raises(ValueError, match=r"param_groups\[1\] .* make a new Distributed"):
        train_alone(model, optimizer)
    assert bits(model) == before


@pytest.mark.parametrize("reduce", ["gradient", "step"])
def test_parameters_that_are_thawed_later_are_refused(reduce):
    model = network()
    model[0].weight.requires_grad_(False)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = tamis.torch.DistributedOptimizer(
        inner, model, reduce=reduce, comm=tamis.Comm.local(1)[0]
    )
    train_alone(model, optimizer)
    model[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"required no gradient.*make a new Distributed"):
        train_alone(model, optimizer)


def test_a_ddp_within_the_model_is_refused():
    class Net(torch.nn.parallel.DistributedDataParallel):
        def __init__(self, module):
            torch.nn.Module.__init__(self)
            self.module = module

    inner = Net(network())
    for model in (inner, torch.nn.Sequential(inner)):
        with pytest.raises(TypeError, match="tamis.torch.attach"):
            alone(model)
