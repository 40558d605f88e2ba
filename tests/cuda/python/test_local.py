# SPDX-License-Identifier: MIT
"""Local steps on CUDA tensors: the bits of the CPU, and copies in those steps alone that exchange."""

import pytest
import stand_in
import tamis.torch
import torch
from stand_in import Stream, current_stream, parameter
from tamis import _core

SHAPES = [("a", (20, 30)), ("b", (30,))]


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    stand_in.install(monkeypatch)


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


def test_parameters_that_change_their_device_are_refused():
    made = parameter(torch.ones(5), 0)
    opt = tamis.torch.LocalSGD(
        torch.optim.SGD([made], lr=0.1), [("a", made)], steps=2, comm=_core.Comm.local(1)[0]
    )
    made.data = torch.ones(5)  # as model.cpu() does
    with pytest.raises(RuntimeError, match="move the model before LocalSGD is made"):
        opt.step()
    opt.close()
