# SPDX-License-Identifier: MIT
"""Local steps on CUDA tensors: the bits of the CPU, and copies in steps that exchange alone."""

import copy

import pytest
import stand_in
import tamis
import tamis.torch
import torch
from rig import cuda, here, run, same
from stand_in import Stream, current_stream, parameter
from tamis import _core, launch

SHAPES = [("a", (20, 30)), ("b", (30,))]


def trained(kind, device, copies=None, **options):
    """Ten local steps, on a stream of their own. The rank is alone, so rounds are outer steps."""
    draw = torch.Generator().manual_seed(3)
    values = [torch.randn(shape, generator=draw) for _, shape in SHAPES]
    made = [parameter(v, 0) if device else torch.nn.Parameter(v.clone()) for v in values]
    rows = [(name, p) for (name, _), p in zip(SHAPES, made)]
    found = []
    with stand_in.stream(Stream(0)):
        options = dict(dict(steps=3, outer_lr=0.5), **options)
        opt = kind(torch.optim.SGD(made, lr=0.1), rows, comm=_core.Comm.local(1)[0], **options)
        if copies is not None:
            fetch = opt._fetch
            opt._fetch = lambda: (copies.append(len(found)), fetch())
        for step in range(10):
            for p in made:
                p.grad = torch.randn(p.shape, generator=draw)
                if device:
                    p.grad = parameter(p.grad, 0).detach()
            opt.step()
            found.append(torch.cat([p.detach().cpu().view(-1) for p in made]))
        with opt.base():
            found.append(torch.cat([p.detach().cpu().view(-1) for p in made]))
        found.append(torch.cat([p.detach().cpu().view(-1) for p in made]))
        current_stream(0).synchronize()
        opt.close()
    return torch.stack(found)


@pytest.mark.parametrize("kind", ["LocalSGD", "DiLoCo", "SparseLoCo"])
@pytest.mark.parametrize("delay, due", [(0, [2, 5, 8]), (1, [2, 3, 5, 6, 8, 9])])
def test_a_device_has_the_bits_of_the_cpu(kind, delay, due):
    kind, copies = getattr(tamis.torch, kind), []
    wanted = trained(kind, False, delay=delay)
    assert torch.equal(trained(kind, True, copies, delay=delay), wanted)
    assert not torch.equal(wanted[-2], wanted[-3])  # the base is not what the steps made
    assert torch.equal(wanted[-1], wanted[-3]) and copies == due


def test_a_shorter_first_round_is_copied_when_it_ends():
    copies = []
    wanted = trained(tamis.torch.LocalSGD, False, offset=1)
    assert torch.equal(trained(tamis.torch.LocalSGD, True, copies, offset=1), wanted)
    assert copies == [1, 4, 7]


def test_parameters_that_change_their_device_are_refused():
    made = parameter(torch.ones(5), 0)
    opt = tamis.torch.LocalSGD(
        torch.optim.SGD([made], lr=0.1), [("a", made)], steps=2, comm=_core.Comm.local(1)[0]
    )
    made.data = torch.ones(5)  # as model.cpu() does
    with pytest.raises(RuntimeError, match="move the model before LocalSGD is made"):
        opt.step()
    opt.close()


# -- its communicator ------------------------------------------------------------------------------


def one_parameter():
    made = parameter(torch.ones(5), 0)
    return torch.optim.SGD([made], lr=0.1), [("a", made)]


@pytest.fixture
def opened(monkeypatch):
    """The communicators that were made because none was given."""
    found, make = [], launch.comm
    monkeypatch.setattr(launch, "comm", lambda *given: found.append(make(*given)) or found[-1])
    return found


def is_open(comm):
    """Whether a reducer can be made over it."""
    try:
        _core.Reducer(comm, _core.Layout([("a", 5)]), density=0.5).close()
    except tamis.Error as error:
        assert "closed" in str(error)
        return False
    return True


def test_its_own_communicator_is_closed_with_it(opened):
    opt = tamis.torch.LocalSGD(*one_parameter(), steps=2, transport="local", timeout_s=20)
    assert opened == [opt.comm] and is_open(opt.comm)
    opt.close()
    assert not is_open(opt.comm)


@pytest.mark.parametrize("options", [dict(delay=3), dict(scheme="no such")])
def test_what_cannot_be_made_leaves_nothing_open(opened, options):
    """delay=3 of 2 steps is refused when there is a reducer already, the scheme before."""
    with pytest.raises(tamis.Error, match="delay|no such"):
        tamis.torch.LocalSGD(*one_parameter(), steps=2, **options)
    assert not is_open(opened[0])
    given = _core.Comm.local(1)[0]
    with pytest.raises(tamis.Error, match="delay|no such"):
        tamis.torch.LocalSGD(*one_parameter(), steps=2, comm=given, **options)
    assert is_open(given)
    given.close()  # which a reducer that is left would refuse


def test_a_scheduler_changes_the_wrapped_optimizer():
    inner, rows = one_parameter()
    opt = tamis.torch.LocalSGD(inner, rows, steps=2, comm=_core.Comm.local(1)[0])
    assert opt.defaults is inner.defaults
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.5**step)
    rows[0][1].grad = parameter(torch.ones(5), 0).detach()
    opt.step()
    scheduler.step()
    assert inner.param_groups[0]["lr"] == 0.05
    opt.step()
    with pytest.raises(AttributeError, match="no_such"):
        opt.no_such
    opt.close()


# -- what is saved and what a failed round leaves --------------------------------------------------


def flat(rows):
    return torch.cat([p.detach().cpu().view(-1) for _, p in rows])


def local(rank, comm, values, device=True, lr=0.1, **options):
    """LocalSGD of a rank over `comm`, and its parameters."""
    make = (lambda v: parameter(v, rank)) if device else (lambda v: torch.nn.Parameter(v.clone()))
    rows = [(name, make(v)) for (name, _), v in zip(SHAPES, values)]
    inner = torch.optim.SGD([p for _, p in rows], lr=lr)
    return tamis.torch.LocalSGD(inner, rows, comm=comm, **options), rows


def step(opt, rows, rank, number):
    draw = torch.Generator().manual_seed(100 * number + rank)
    opt.zero_grad()
    for _, p in rows:
        gradient = torch.randn(p.shape, generator=draw)
        p.grad = parameter(gradient, rank).detach() if p.device.type == "cuda" else gradient
    opt.step()


def alone(numbers, lr=0.1, **options):
    """A rank that has made local steps by itself, and its parameters."""
    values = [torch.ones(shape) for _, shape in SHAPES]
    opt, rows = local(0, _core.Comm.local(1)[0], values, lr=lr, **options)
    for number in numbers:
        step(opt, rows, 0, number)
    return opt, rows


def fail_to_load(opt, saved):
    before = opt.state_dict()
    with pytest.raises(tamis.Error):
        opt.load_state_dict(saved)
    after = opt.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for kind in ("control", "local", "residual"):
        old, new = before["tamis_local"][kind], after["tamis_local"][kind]
        assert old is new is None or torch.equal(old, new), kind


@pytest.mark.parametrize("damage", ["local", "control"])
@pytest.mark.parametrize("scheme", ["topk", "dense"])
def test_a_load_that_fails_changes_nothing(monkeypatch, damage, scheme):
    monkeypatch.setattr(stand_in, "LATE_S", 0.002)
    options = dict(steps=2, scheme=scheme, density=0.1 if scheme == "topk" else 1.0)
    other, _ = alone(range(50, 55), lr=0.3, **options)
    saved = copy.deepcopy(other.state_dict())
    other.close()
    saved["tamis_local"][damage][40] ^= 1
    found = []
    for fails in (True, False):
        opt, rows = alone(range(3), **options)
        if fails:
            fail_to_load(opt, saved)
        for number in range(3, 6):
            step(opt, rows, 0, number)
        found.append(flat(rows))
        opt.close()
    assert torch.equal(*found)


OPTIONS = dict(steps=3, delay=1, scheme="topk", density=0.1, momentum=0.0)


def resumed(device):
    """Two ranks go on with what they have, and in a new object, from what was saved with an
    exchange under way."""
    values = [torch.randn(shape, generator=torch.Generator().manual_seed(3)) for _, shape in SHAPES]

    def body(rank):
        opt, rows = local(rank, here.carriers.pop(), values, device, **OPTIONS)
        for number in range(4):
            step(opt, rows, rank, number)
        saved, kept = opt.state_dict(), [p.detach().cpu().clone() for _, p in rows]
        found = []
        for resume in (False, True):
            if resume:
                opt.close()
                opt, rows = local(rank, here.carriers.pop(), values, device, **OPTIONS)
                opt.load_state_dict(saved)
                for (_, p), one in zip(rows, kept):
                    p.data = parameter(one, rank).detach() if device else one.clone()
            for number in range(4, 10):
                step(opt, rows, rank, number)
            found.append(flat(rows))
        with opt.base():
            found.append(flat(rows))
        assert opt.stats()["rounds"] >= 2 and "steps=3" in repr(opt)
        opt.set_steps(5)
        assert opt.stats()["steps"] == 5
        opt.close()
        return torch.stack(found)

    return run(body)


def test_two_ranks_resume_at_any_step(monkeypatch):
    monkeypatch.setattr(stand_in, "LATE_S", 0.004)
    found, wanted = resumed(True), resumed(False)
    same(found, wanted)
    for alone, again, _ in found:
        assert torch.equal(alone, again)
    assert torch.equal(found[0][2], found[1][2]) and not torch.equal(found[0][0], found[1][0])


def test_what_a_failed_round_leaves_is_on_the_device():
    values = [torch.ones(shape) for _, shape in SHAPES]

    def body(rank):
        opt, rows = local(rank, here.carriers.pop(), values, steps=2)
        step(opt, rows, rank, 0)
        bad = rows[0][1]
        stand_in.put(bad.detach(), torch.full(bad.shape, float("nan") if rank == 1 else 1.0))
        with pytest.raises(_core.Error) as caught:
            step(opt, rows, rank, 1)
        found = flat(rows)
        assert torch.equal(found, torch.cat([copy.view(-1) for copy in opt._shared]))
        opt.close()
        return caught.value.lost, found

    (lost, first), (other, second) = run(body)
    assert lost == other == "step"
    assert first.isfinite().all()
