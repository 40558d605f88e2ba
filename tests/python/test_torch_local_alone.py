# SPDX-License-Identifier: MIT
"""Local steps of one rank: what happens to parameters and states between steps."""

import copy
import gc
import threading
import time

import pytest
import torch

import tamis
import tamis.torch
from tamis import _core


def made(seed=0, **options):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    inner = torch.optim.SGD(model.parameters(), 0.1, momentum=0.5)
    usual = dict(steps=2, outer_lr=1.0, momentum=0.0, comm=tamis.Comm.local(1)[0])
    return model, tamis.torch.LocalSGD(inner, model, **dict(usual, **options))


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(3, 4)).pow(2).mean().backward()
        optimizer.step()


def vector(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def base(optimizer):
    whole = torch.empty(optimizer.reducer.layout.length)
    optimizer.local.base(whole)
    return whole


def test_another_order_of_elements_is_refused():
    model = torch.nn.Conv2d(3, 4, 3)
    before = model.weight.detach().clone()
    inner = torch.optim.SGD(model.parameters(), 0.0)
    optimizer = tamis.torch.LocalSGD(inner, model, steps=2, comm=tamis.Comm.local(1)[0])
    model.to(memory_format=torch.channels_last)
    for use in (optimizer.step, lambda: optimizer.base().__enter__()):
        with pytest.raises(RuntimeError, match="'weight' now has shape .*channels_last"):
            use()
    assert torch.equal(model.weight, before)


def test_another_shape_is_refused():
    model, optimizer = made()
    model[0].weight.data = model[0].weight.data[:4]
    with pytest.raises(RuntimeError, match="'0.weight' now has shape .4, 4."):
        optimizer.step()


def test_the_base_is_shown_in_memory_that_was_replaced():
    model, optimizer = made(steps=8)
    train(model, optimizer, 3)
    own = vector(model)
    torch.nn.utils.vector_to_parameters(own.clone(), model.parameters())
    with optimizer.base():
        assert torch.equal(vector(model), base(optimizer))
    assert torch.equal(vector(model), own) and not torch.equal(own, base(optimizer))


@pytest.mark.parametrize("damage", ["inner", "local", "control", "residual"])
def test_a_load_that_fails_changes_nothing(damage):
    scheme = dict(scheme="topk", density=0.3)
    saved_model, saving = made(**scheme)
    train(saved_model, saving, 3)
    saved = copy.deepcopy(saving.state_dict())
    if damage == "inner":
        saved["param_groups"] = saved["param_groups"] * 2
    elif damage == "residual":
        saved["tamis_local"]["residual"] = None
    else:
        saved["tamis_local"][damage][40] ^= 1
    runs = [made(seed=5, **scheme), made(seed=5, **scheme)]
    for model, optimizer in runs:
        train(model, optimizer, 3)
    with pytest.raises((ValueError, tamis.Error)):
        runs[0][1].load_state_dict(saved)
    for model, optimizer in runs:
        train(model, optimizer, 4)
    assert torch.equal(vector(runs[0][0]), vector(runs[1][0]))
    assert torch.equal(base(runs[0][1]), base(runs[1][1]))


def test_counts_do_not_wrap_around():
    for name in ("steps", "steps_max", "delay", "offset"):
        for value, error in ((2**32 + 2, tamis.Error), (-1, tamis.Error), (2.5, TypeError)):
            with pytest.raises(error, match=name):
                made(**{name: value})


def test_one_that_is_collected_while_another_thread_is_in_the_communicator_leaves_it_alone():
    """It may not wait there for its exchange, which is under way."""
    comms = tamis.Comm.local(2, timeout_ms=20000)
    layout = _core.Layout([("s", 100)])
    found = {}

    def make(number, **options):
        weight = torch.zeros(100)
        reducer = _core.Reducer(comms[number], layout, scheme="tamis", density=0.2)
        return weight, reducer, _core.Local(reducer, [weight], steps=1, lr=1.0, **options)

    def begin(number):
        found["delayed", number] = make(number, delay=1)
        found["other", number] = make(number)
        found["delayed", number][2].step()

    def go_on(number):
        try:
            found["other", number][2].step()
            found[number] = "stepped"
        except tamis.Error as error:
            found[number] = str(error)

    def collect():
        del found["delayed", 0]
        gc.collect()

    both = [threading.Thread(target=begin, args=(number,)) for number in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    waiting = threading.Thread(target=go_on, args=(0,))
    waiting.start()  # inside, until rank 1 comes
    time.sleep(0.3)
    collecting = threading.Thread(target=collect)
    collecting.start()
    collecting.join(10)
    assert not collecting.is_alive()
    go_on(1)
    waiting.join(30)
    assert (found[0], found[1]) == ("stepped", "stepped")
