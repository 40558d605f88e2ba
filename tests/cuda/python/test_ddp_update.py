# SPDX-License-Identifier: MIT
"""Update mode under DDP with its model on CUDA devices: the library makes the optimizer's step
there, with the bits of the host, and what means gradients is refused."""

import pytest
import tamis
import tamis.torch
import torch
from ddp import MSE, batch, both, on, train, world
from rig import NAN, Scaler, cuda, same
from torch.optim import SGD, Adam, AdamW

BETAS = (0.0, 0.99)


def rule(kind, **options):
    return dict(given=True, inner=lambda every: kind(every, lr=0.01, **options))


@pytest.mark.parametrize("options", [
    rule(AdamW, betas=(0.9, 0.99), weight_decay=0.1),
    rule(Adam, betas=BETAS, weight_decay=0.1),
    rule(SGD, momentum=0.9),
    dict(rule(AdamW, betas=BETAS), match=2.0),
    dict(rule(AdamW, betas=BETAS), clip_norm=0.05),
    dict(rule(SGD), reduce="gradient"),
    dict(update="adam"),
])
def test_the_rule_has_the_bits_of_the_host(options):
    found, wanted = both(train, **options)
    same(found, wanted)
    assert torch.equal(found[0][:-1], found[1][:-1])


def test_a_closure_makes_the_backward_pass():
    def body(one):
        def closure():
            one.clear()
            x, y = batch(one.rank, step)
            one.settle()
            loss = MSE(one.ddp(x), y)
            loss.backward()
            return loss

        losses = []
        for step in range(3):
            losses.append(one.opt.step(closure).item())
        return torch.cat([one.end(), torch.tensor(losses)])

    same(*both(body, **rule(AdamW, betas=BETAS)))


def test_the_scale_of_a_step_follows_the_density():
    """Its scale is what is advised for each density; the residual stays in units of the first."""

    def body(one):
        for step in range(4):
            one.state.set_density((0.1, 0.3)[step // 2])
            one.clear()
            one.backward(step)
            one.opt.step()
        advised = tamis.update_advise(0.3, 0.9)[0] / tamis.update_advise(0.1, 0.9)[0]
        assert one.state._factor == pytest.approx(advised) and advised != 1.0
        return one.end()

    same(*both(body, density_max=0.5, **rule(AdamW, betas=(0.9, 0.99))))


def test_a_step_with_nan_is_left_out_by_the_optimizer():
    def body(one):
        for step in range(2):
            one.clear()
            one.backward(step, NAN if (step, one.rank) == (1, 1) else 1.0)
            before = one.values()
            one.opt.step()
        assert torch.equal(before, one.values())
        one.clear()
        with pytest.raises(tamis.Error, match="step 1: .*NaN or Inf"):
            one.backward(2)
        one.opt.step()
        found = one.values()
        one.state.close()
        one.opt.step()  # is its own again
        return found

    first, second = on(body, True, **rule(AdamW, betas=BETAS, weight_decay=0.0))
    assert torch.equal(first, second) and first.isfinite().all()


def test_with_a_scaler_the_moments_are_of_unscaled_gradients():
    def body(one):
        for step, factor in enumerate((8.0, 8.0)):
            one.clear()
            one.backward(step, factor)
            one.settle()
            for p in one.every:
                p.grad.mul_(1.0 / 8.0)  # as unscale_ does
            one.opt.step()
        return one.end()

    def unscaled(one):
        return train(one, 2)

    options = rule(AdamW, betas=BETAS)
    found = on(body, True, scaler=Scaler(), **options)
    assert torch.equal(found[0][:-1], found[1][:-1])
    for one, other in zip(found, on(unscaled, False, **options)):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


# -- what means gradients --------------------------------------------------------------------------


def told(words, act, **options):
    """act(a Rank after a backward pass) raises `words` on all ranks, and parameters stay."""

    def body(one):
        one.backward(0)
        before = one.values()
        with pytest.raises(RuntimeError, match=words):
            act(one)
        assert torch.equal(before, one.values())
        one.state.close()

    on(body, True, **dict(rule(AdamW, betas=BETAS), **options))


def test_a_second_backward_pass_is_refused():
    told("backward.. came twice without step", lambda one: one.backward(1))


def test_clipping_is_refused():
    def act(one):
        torch.nn.utils.clip_grad_norm_(one.every, 1e-3)
        one.opt.step()

    told("the gradient of 'w1' was changed between backward.. and step", act)


def test_clipping_is_seen_by_value():
    def act(one):
        one.state._attached.by_value = True
        one.clear()
        one.backward(1)
        one.every[2].grad.data.mul_(0.5)  # which torch does not count
        one.opt.step()

    told("the gradient of 'w2' was changed", act)


def test_a_step_without_an_exchange_is_refused():
    def body(one):
        with one.ddp.no_sync():
            one.backward(0)
        before = one.values()
        with pytest.raises(RuntimeError, match="step.. without an exchange"):
            one.opt.step()
        assert torch.equal(before, one.values())
        one.backward(1)
        one.opt.step()
        one.state.close()

    on(body, True, **rule(AdamW, betas=BETAS))


def test_a_scaler_that_was_not_given_is_refused():
    def act(one):
        one.opt.found_inf = torch.zeros(1)  # as GradScaler.step leaves it
        one.opt.step()

    told("a GradScaler steps the optimizer", act)


def test_a_parameter_that_came_later_is_refused():
    def body(one):
        one.opt.add_param_group(dict(params=[torch.nn.Parameter(torch.ones(3))]))
        one.backward(0)
        with pytest.raises(ValueError, match=r"param_groups\[1\] has a parameter of shape \(3,\)"):
            one.opt.step()
        one.state.close()

    on(body, True, **rule(AdamW, betas=BETAS))
