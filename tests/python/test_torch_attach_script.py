# SPDX-License-Identifier: MIT
"""attach(ddp, optimizer=...): what the script does with gradients stays right: clipping, several
passes, closures, a GradScaler."""

import contextlib

import pytest
import torch
import torch.distributed as dist

import ranks
from ranks import told
from torch_models import bits, ddp, network, train
from torch_steps import attached, flat, inner, loss

import tamis
import tamis.torch

DENSITY = 0.05

# ------------------------------------------------------------------------------ run by the ranks


def made(kind="AdamW", **options):
    return attached(DENSITY, kind, **options)


def case_accumulate():
    """Two micro-batches, with no_sync or without, or one backward pass of their sum."""
    found = []
    for how in ("no_sync", "twice", "sum"):
        net, optimizer, state = made()
        for step in range(3):
            optimizer.zero_grad(set_to_none=True)
            if how == "sum":
                (loss(net, step) + loss(net, step + 50)).backward()
                optimizer.step()
                continue
            with net.no_sync() if how == "no_sync" else contextlib.nullcontext():
                loss(net, step).backward()
            loss(net, step + 50).backward()
            optimizer.step()
        found.append(flat(net.parameters()).clone())
    far = [(one - found[2]).abs().max().item() for one in found[:2]]
    return far, state.steps, bits(net)


def case_closure():
    """step(closure), a step that is left out, and gradients within no_sync() alone."""
    found = []
    for how in ("closure", "before"):
        net, optimizer, state = made()

        def closure():
            optimizer.zero_grad(set_to_none=True)
            value = loss(net, 7)
            value.backward()
            return value

        if how == "closure":
            value = float(optimizer.step(closure))
        else:
            value = float(closure())
            closure()  # the step before is left out
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with net.no_sync():
            loss(net, 8).backward()
        optimizer.step()
        found.append((value, state.steps, bits(net)))
    return found


def clipped(how):
    net, optimizer, _ = made(**(dict(clip_norm=0.05) if how == "option" else {}))
    for step in range(3):
        optimizer.zero_grad()
        loss(net, step).backward()
        if how == "script":
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        if how == "half":  # on one rank alone, as a script might by mistake: still the same bits
            for parameter in net.parameters():
                parameter.grad.mul_(1.0 - 0.5 * dist.get_rank())
        optimizer.step()
    return flat(net.parameters()).clone(), bits(net)


def case_clip_in_the_script():
    """clip_grad_norm_ between backward and step is clip_norm=; gradients are the rank's own."""
    (one, _), (other, _), (none, _) = map(clipped, ("script", "option", "none"))
    return (one - other).abs().max().item(), (one - none).abs().max().item(), clipped("half")[1]


def case_without_an_exchange():
    """Where means of gradients are exchanged, a step by those of no_sync() alone is refused."""
    net, optimizer, state = made("SGD", reduce="gradient")
    with net.no_sync():
        loss(net, 1).backward()
    return told(optimizer.step), state.steps, bits(net)


def case_clip_norm():
    """Each rank's own gradient is clipped before it is exchanged: seen in density 1 and SGD."""
    net = ddp(network())
    state = tamis.torch.attach(
        net, 1.0, optimizer=torch.optim.SGD(net.parameters(), 0.1), clip_norm=0.01
    )
    other = network()
    loss(net, 0).backward()
    loss(other, 0).backward()
    norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.01).item()
    want = flat(p.grad for p in other.parameters())
    dist.all_reduce(want)
    far = (flat(p.grad for p in net.parameters()) - want / 2).abs().max().item()
    rest = norm / state.scalars()["tamis/gradient_norm"], repr(state)
    mine, optimizer, own = made(clip_norm=0.01)
    train(mine, optimizer, [0])
    return far, *rest, norm / own.scalars()["tamis/gradient_norm"]


def as_without(kind, density, **options):
    """A script with and without tamis, where nothing is left out."""
    found = []
    for with_it in (False, True):
        net = ddp(network())
        optimizer = inner(kind, net.parameters())
        if with_it:
            tamis.torch.attach(net, density, optimizer=optimizer, **options)
        train(net, optimizer, range(4))
        found.append(flat(net.parameters()).clone())
    return (found[0] - found[1]).abs().max().item()


def case_as_without():
    """With whole gradients any optimizer makes the steps of a dense run."""
    return [
        as_without("AdamW", 1.0), as_without("RMSprop", 1.0), as_without("Adagrad", 0.05, scheme="dense"),
        as_without("SGD", 1.0, reduce="step"),  # linear in the gradient: the mean of steps
    ]  # fmt: skip


def case_scaler():
    """A scaler makes the steps of none, also of a fused optimizer, and need not be told of. Inf on
    one rank skips the step on all, and lowers all scales that the states know."""
    found = []
    for scaler, fused in ((False, False), (True, False), (False, True), (True, True)):
        net = ddp(network())
        options = dict(lr=1e-2, betas=(0.0, 0.99), weight_decay=0.1)
        optimizer = torch.optim.AdamW(net.parameters(), fused=fused, **options)
        # Scaling by powers of two changes no bits.
        amp = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, enabled=scaler)
        tamis.torch.attach(net, DENSITY, optimizer=optimizer)
        for step in range(5):
            optimizer.zero_grad()
            amp.scale(loss(net, step)).backward()
            amp.step(optimizer)
            amp.update()
        found.append(bits(net))
    return found, scaled_with_inf(False), scaled_with_inf(True)


def scaled_with_inf(given):
    """In the second of four steps, on rank 1. unscale_ and clipping are the script's own."""
    amp = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)
    net, optimizer, state = made(**(dict(scaler=amp) if given else {}))
    scales = []
    for step in range(4):
        optimizer.zero_grad()
        before = flat(net.parameters()).clone()
        bad = float("inf") if (step, dist.get_rank()) == (1, 1) else 1.0
        amp.scale(loss(net, step) * bad).backward()
        amp.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=False)
        amp.step(optimizer)
        amp.update()
        far = (flat(net.parameters()) - before).abs().max().item()
        scales.append((amp.get_scale(), far > 1e-6))  # a step that is lost may leave a rounding
    return scales, state.stats()["total"]["lost_steps"], bits(net)


def case_scaler_of_gradients():
    """One that attach does not know is refused there, and so is one in a wrapper's exchange."""
    net, optimizer, _ = made("SGD", reduce="gradient")
    amp = torch.amp.GradScaler("cpu")
    amp.scale(loss(net, 0)).backward()
    first = told(lambda: amp.step(optimizer))
    model = network()
    wrapper = tamis.torch.DistributedOptimizer(
        inner("SGD", model.parameters()), model, DENSITY, reduce="gradient"
    )
    amp = torch.amp.GradScaler("cpu")
    amp.scale(loss(model, 0)).backward()
    return first, told(lambda: amp.step(wrapper))


# ------------------------------------------------------------------------------------- the tests

CASES = [name for name in dir() if name.startswith("case_")]
needs_scaler = pytest.mark.skipif(
    not hasattr(torch.amp, "GradScaler"), reason="this torch scales on CUDA devices only"
)
if not hasattr(torch.amp, "GradScaler"):
    CASES = [name for name in CASES if not name.startswith("case_scaler")]


@pytest.fixture(scope="module")
def results():
    return ranks.run(__file__, CASES, nranks=2)


def test_micro_batches_are_as_one_pass_of_their_sum(results):
    found = ranks.values(results, "case_accumulate")
    assert all(max(far) < 1e-5 and steps == 3 for far, steps, _ in found), found
    assert found[0][2] == found[1][2]


def test_a_closure_is_as_the_pass_before_the_step(results):
    found = ranks.values(results, "case_closure")
    for (value, *closure), (same, *before) in found:
        assert value == same > 0 and closure == before and closure[0] == 2
    assert found[0][0][1:] == found[1][0][1:]


def test_clipping_in_the_script_is_as_clip_norm(results):
    found = ranks.values(results, "case_clip_in_the_script")
    assert all(far < 1e-6 and other > 1e-4 for far, other, _ in found), found
    assert found[0][2] == found[1][2]


def test_a_step_without_an_exchange_is_refused(results):
    found = ranks.values(results, "case_without_an_exchange")
    for (kind, sentence), steps, _ in found:
        assert kind == "RuntimeError" and "rank " in sentence and steps == 0
        assert "without an exchange" in sentence
    assert found[0][2] == found[1][2]


def test_of_whole_gradients_any_optimizer_makes_the_steps_of_a_dense_run(results):
    for far in ranks.values(results, "case_as_without"):
        assert len(far) == 4 and max(far) < 1e-5, far


@needs_scaler
def test_a_scaler_changes_no_step_and_skips_on_all_ranks(results):
    found = ranks.values(results, "case_scaler")
    for rank, (bits_, *rows) in enumerate(found):
        assert bits_[0] == bits_[1] and bits_[2] == bits_[3]  # fused has roundings of its own
        for given, (scales, lost, _) in enumerate(rows):
            low = 512 if given or rank == 1 else 1024  # one that is not told of learns its own
            assert scales == [(1024, True), (low, False), (low, True), (low, True)] and lost == 1
    for one, other in zip(found[0][1:], found[1][1:]):
        assert one[2] == other[2]


@needs_scaler
def test_a_scaler_of_means_is_known_or_refused(results):
    for first, second in ranks.values(results, "case_scaler_of_gradients"):
        assert first[0] == "RuntimeError" and "attach(..., scaler=scaler)" in first[1], first
        assert second[0] == "RuntimeError" and "synchronize()" in second[1], second


def test_clip_norm_clips_before_the_exchange(results):
    for far, ratio, text, own in ranks.values(results, "case_clip_norm"):
        assert far < 1e-6 and abs(ratio - 1) < 1e-4 and abs(own - 1) < 1e-4
        assert "rank " in text and "of dense" in text and "1 steps" in text, text
