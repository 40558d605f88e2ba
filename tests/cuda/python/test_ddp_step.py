# SPDX-License-Identifier: MIT
"""DDP with its model on CUDA devices, whose optimizer makes its own steps: they are exchanged with
the bits of the host, and what is lost leaves parameters as they were."""

import pytest
import tamis
import tamis.torch
import torch
from ddp import MSE, batch, both, on, train, world
from rig import NAN, cuda, same
from torch.optim import SGD, Adam, AdamW, RMSprop


def rule(kind, **options):
    return dict(given=True, inner=lambda every: kind(every, lr=0.01, **options))


@pytest.mark.parametrize("options", [
    rule(AdamW, weight_decay=0.1),
    rule(Adam, weight_decay=0.1),
    rule(RMSprop),
    rule(SGD, momentum=0.9),
    dict(rule(AdamW), norm_matching=1.0),
    dict(rule(AdamW), clip_norm=0.05),
    dict(rule(SGD), reduce="gradient"),
    dict(rule(AdamW), scheme="quantized"),
])
def test_the_steps_have_the_bits_of_the_host(options):
    found, wanted = both(train, **options)
    same(found, wanted)
    assert torch.equal(found[0][:-1], found[1][:-1])


def test_a_closure_makes_the_backward_pass():
    def body(one):
        def closure():
            one.clear()
            x, y = batch(one.rank, step)
            one.quiesce()
            loss = MSE(one.ddp(x), y)
            loss.backward()
            return loss

        losses = []
        for step in range(3):
            losses.append(one.opt.step(closure).item())
        return torch.cat([one.end(), torch.tensor(losses)])

    same(*both(body, **rule(AdamW)))


def test_steps_follow_the_density():
    def body(one):
        for step in range(4):
            one.state.set_density((0.1, 0.3)[step // 2])
            one.clear()
            one.backward(step)
            one.opt.step()
        return one.end()

    for options in (rule(SGD, momentum=0.9), rule(AdamW)):
        same(*both(body, density_max=0.5, **options))


def test_clipping_and_micro_batches_are_those_of_the_script():
    def body(one):
        for step in range(3):
            one.clear()
            one.backward(10 * step)
            one.backward(10 * step + 1)  # comes to the first
            one.quiesce()
            torch.nn.utils.clip_grad_norm_(one.every, 0.05)
            one.opt.step()
        assert one.state.steps == 3
        return one.end()

    found, wanted = both(body, **rule(AdamW))
    for one, other in zip(found, wanted):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)
    assert torch.equal(found[0][:-1], found[1][:-1])


def test_a_step_that_is_skipped_takes_no_other_with_it():
    """A device tells of it one step later, when the next one has a result."""

    def body(one):
        for step in range(4):
            one.clear()
            one.backward(step, NAN if (step, one.rank) == (1, 1) else 1.0)
            one.opt.step()
        assert one.state.stats()["total"]["lost_steps"] == 1
        return one.end()

    found, wanted = both(body, nonfinite="skip", **rule(SGD))
    same(found, wanted)
    assert torch.equal(found[0][:-1], found[1][:-1])


def test_a_step_with_nan_is_told_by_the_next_and_leaves_parameters():
    """By then NaN in moments has spoilt that one, too, and they are made anew."""

    def body(one):
        for step in range(2):
            one.clear()
            one.backward(step, NAN if (step, one.rank) == (1, 1) else 1.0)
            before = one.values()
            one.opt.step()
        now = one.values()  # what the device has left of the step that is lost
        one.clear()
        one.backward(2)
        with pytest.raises(tamis.Error, match="step 1: .*NaN or Inf"):
            one.opt.step()
        third = one.values()
        one.clear()
        one.backward(3)
        with pytest.raises(tamis.Error, match="step 2: .*NaN or Inf"):
            one.opt.step()
        fourth = one.values()  # that of this step was applied
        one.clear()
        one.backward(4)
        one.opt.step()
        found = torch.stack([before, now, third, fourth, one.values()])
        assert one.state.stats()["total"]["lost_steps"] == 2
        one.state.close()
        one.opt.step()  # is its own again
        return found

    first, second = on(body, True, **rule(AdamW, weight_decay=0.0))
    assert torch.equal(first, second) and first.isfinite().all()
    assert torch.equal(first[0], first[1]) and torch.equal(first[1], first[2])
    assert not torch.equal(first[2], first[3]) and not torch.equal(first[3], first[4])


def test_a_parameter_that_came_later_is_refused():
    def body(one):
        one.opt.add_param_group(dict(params=[torch.nn.Parameter(torch.ones(3))]))
        one.backward(0)
        with pytest.raises(ValueError, match=r"param_groups\[1\] has a parameter of shape \(3,\)"):
            one.opt.step()
        one.state.close()

    on(body, True, **rule(AdamW))


# -- means of gradients ----------------------------------------------------------------------------

MEANS = dict(rule(SGD), reduce="gradient")


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

    on(body, True, **MEANS)


def test_a_scaler_that_was_not_given_is_refused():
    def body(one):
        one.backward(0)
        before = one.values()
        one.opt.found_inf = torch.zeros(1)  # as GradScaler.step leaves it
        with pytest.raises(RuntimeError, match="a GradScaler steps the optimizer"):
            one.opt.step()
        assert torch.equal(before, one.values())
        one.state.close()

    on(body, True, **MEANS)


def test_a_scaler_of_own_steps_need_not_be_given():
    """Inf on one rank leaves the parameters of both."""

    def body(one):
        kept = []
        for step in range(3):
            one.clear()
            one.backward(step, 8.0)
            one.quiesce()
            one.opt.grad_scale = torch.tensor(8.0)
            one.opt.found_inf = torch.tensor(float((step, one.rank) == (1, 1)))
            before = one.values()
            one.opt.step()
            kept.append(torch.equal(before, one.values()))
        found = one.values()
        one.state.close()
        return kept, found

    (kept, first), (again, second) = on(body, False, **rule(AdamW))
    assert kept == again == [False, True, False] and torch.equal(first, second)
