# SPDX-License-Identifier: MIT
"""DistributedOptimizer on CUDA tensors: whose elements lie in another order, whose gradients are
changed while they are exchanged, or that DistributedDataParallel has, too."""

import pytest
import stand_in
from saved import own
import tamis.torch
import torch
from ddp import on as with_ddp, world
from rig import Model, cuda, gradients, here, host, run, same
from stand_in import empty, parameter, put


@pytest.fixture(autouse=True)
def early(monkeypatch, world):
    monkeypatch.setattr(stand_in, "LATE_S", 0.002)


# -- order of elements -----------------------------------------------------------------------------


def last(tensor):
    """Its elements with the second axis last in memory, as channels_last has them."""
    return tensor.permute(0, 2, 3, 1).contiguous()


def as_seen(made):
    return made.permute(0, 3, 1, 2)


class Convolution(torch.nn.Module):
    """Weights on the host or on a device: `a` in channels_last, `b` with an axis of length 1, whose
    stride means nothing."""

    def __init__(self, index):
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        place = (lambda v: v) if index is None else lambda v: parameter(v, index).detach()
        a = as_seen(place(last(torch.randn((6, 5, 3, 4), generator=draw))))
        b = place(torch.randn((8, 1, 3, 3), generator=draw)).as_strided((8, 1, 3, 3), (9, 7, 3, 1))
        self.a, self.b = torch.nn.Parameter(a), torch.nn.Parameter(b)

    def give(self, rank, step):
        """Gradients in the order of the parameters."""
        draw = torch.Generator().manual_seed(100 * step + rank)
        for p, order in ((self.a, True), (self.b, False)):
            given = torch.randn(p.shape, generator=draw)
            if p.device.type == "cpu":
                p.grad = as_seen(last(given)) if order else given
            elif order:
                p.grad = as_seen(empty(last(given).shape, index=rank))
                put(p.grad.permute(0, 2, 3, 1), last(given))
            else:
                p.grad = parameter(given, rank).detach()


def trained(rank, device):
    net = Convolution(rank if device else None)
    more = dict(transport="nccl") if device else dict(comm=here.carriers.pop())
    inner = torch.optim.SGD(net.parameters(), lr=0.1)
    opt = tamis.torch.DistributedOptimizer(inner, net, density=0.1, timeout_s=20, **more)
    for step in range(3):
        net.give(rank, step)
        opt.step()
    saved = own(opt.tamis.state_dict())["residual"]
    opt.close()
    every = [p.detach().cpu() for p in net.parameters()] + list(saved.values())
    assert every[0].stride() == every[2].stride() == (60, 1, 20, 5)
    return torch.cat([one.reshape(-1) for one in every])


def test_a_module_in_channels_last_has_the_bits_of_the_host():
    found = run(lambda rank: trained(rank, True))
    same(found, run(lambda rank: trained(rank, False)))


@pytest.mark.parametrize("device", [True, False])
def test_gradients_in_another_order_than_their_parameters_are_refused(device):
    """Also contiguous ones: a rank that had none would have zeros in the order of the parameter."""

    def body(rank):
        net = Convolution(rank if device else None)
        more = dict(transport="nccl") if device else dict(comm=here.carriers.pop())
        inner = torch.optim.SGD(net.parameters(), lr=0.1)
        more.update(density=0.1, reduce="gradient", timeout_s=20)
        opt = tamis.torch.DistributedOptimizer(inner, net, **more)
        net.give(rank, 0)
        zeros = torch.zeros(net.a.shape)
        net.a.grad = parameter(zeros, rank).detach() if device else zeros
        with pytest.raises(ValueError, match="gradient of 'a' has another memory layout than it"):
            opt.step()
        opt.close()

    run(body)


# -- gradients during the exchange -----------------------------------------------------------------


def changed(model):
    model.parameters[1].grad.mul_(0.5)


def replaced(model):
    model.parameters[1].grad = model.parameters[1].grad.clone()


@pytest.mark.parametrize("act", [changed, replaced])
def test_a_gradient_may_not_change_until_step(act):
    remedy = "call synchronize.. of this optimizer first"

    def body(rank):
        model = Model(rank)
        before = model.values()
        model.backward(0)
        act(model)
        words = f"gradient of 'b' was {act.__name__} between backward.. and step.*{remedy}"
        with pytest.raises(RuntimeError, match=words):
            model.opt.step()
        assert torch.equal(model.values(), before)
        model.opt.close()

    run(body)


def test_a_gradient_may_come_once():
    def body(rank):
        model = Model(rank)
        model.backward(0)
        with pytest.raises(RuntimeError, match="gradient of 'c' came twice before step"):
            model.opt._arrived(2)
        model.opt.close()

    run(body)


def test_results_stay_until_step_and_may_be_asked_for_twice():
    def body(rank):
        model = Model(rank)
        for step in range(3):
            assert not model.opt._step_supports_amp_scaling
            model.backward(step)
            assert model.opt._step_supports_amp_scaling  # a GradScaler is to leave them
            model.opt.synchronize()
            model.opt.synchronize()
            assert not model.opt._step_supports_amp_scaling
            model.opt.step()
        assert model.opt.tamis.steps == 3 and model.opt.defaults is model.inner.defaults
        with pytest.raises(AttributeError, match="no_such"):
            model.opt.no_such
        assert "density=0.1, reduce='gradient'" in repr(model.opt)
        found = model.values()
        model.opt.close()
        return found

    same(run(body), host(3))


class Handle:
    """What registering a hook gives; `hooks` has the calls by parameter."""

    def __init__(self, hooks, of, call):
        self.hooks, self.of = hooks, of
        hooks[of] = call

    def remove(self):
        del self.hooks[self.of]


def test_hooks_of_newer_torch_give_gradients_until_close(monkeypatch):
    """From torch 2.1 on a parameter has a hook for its accumulated gradient."""
    hooks, name = {}, "register_post_accumulate_grad_hook"
    register = lambda one, call: Handle(hooks, id(one), call)
    monkeypatch.setattr(torch.Tensor, name, register, raising=False)

    def body(rank):
        model = Model(rank)
        for step in range(2):
            for p, given in reversed(list(zip(model.parameters, gradients(rank, step)))):
                put(p.grad, given)
                hooks[id(p)](p)
            assert all(model.opt._given)
            model.opt.step()
        found = model.values()
        model.opt.close()
        return found

    same(run(body), host(2))
    assert not hooks


# -- with DistributedDataParallel ------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:a SparseState of tamis.torch ends after 0 steps")
def test_a_model_that_ddp_exchanges_is_refused_until_close():
    def body(one):
        x = torch.ones(2, 12)
        rows = list(one.net.named_parameters())
        opt = tamis.torch.DistributedOptimizer(one.opt, rows, transport="nccl", timeout_s=20)
        with pytest.raises(RuntimeError, match="leave DistributedDataParallel out"):
            one.ddp(x)
        with one.ddp.no_sync():
            one.ddp(x)
        with torch.no_grad():
            one.ddp(x)
        opt.close()
        one.ddp(x)
        one.state.close()

    with_ddp(body, True)


@pytest.mark.filterwarnings("ignore:a SparseState of tamis.torch ends after 0 steps")
def test_what_ddp_changes_is_said_to_be_its_doing():
    def body(one):
        rows = list(one.net.named_parameters())
        opt = tamis.torch.DistributedOptimizer(
            one.opt, rows, transport="nccl", timeout_s=20, reduce="gradient"
        )
        for p in one.every:
            p.grad = parameter(torch.ones(p.shape), one.rank).detach()
        opt._arrived(0)
        one.every[0].grad.mul_(0.5)
        words = "'w1' was changed during its exchange: .*leave DistributedDataParallel out"
        with pytest.raises(RuntimeError, match=words):
            opt.step()
        opt.close()
        one.state.close()

    with_ddp(body, True)
