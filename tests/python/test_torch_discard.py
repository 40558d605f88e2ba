# SPDX-License-Identifier: MIT
"""Backward passes and steps that are thrown away: as if they had not been, on all ranks."""

import copy

import pytest
import torch
import torch.distributed as dist

import ranks
from ranks import told
from torch_models import batch, ddp, network
from saved import own

import tamis
import tamis.torch

# ------------------------------------------------------------------------------ run by the ranks

OPTIONS = dict(density=0.1, bucket_length=200)


def momentum(parameters):
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


def adamw(parameters):
    return torch.optim.AdamW(parameters, 0.01, weight_decay=0.1)


def loss(net, step, factor=1.0):
    x, y = batch(step, dist.get_rank())
    return factor * torch.nn.functional.cross_entropy(net(x), y)


def parameters(net):
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def kept(state):
    saved = own(state.state_dict())
    return [saved["steps"], *saved["residual"].values(), *saved["control"]]


def same(a, b):
    return all(x == y if isinstance(x, int) else torch.equal(x, y) for x, y in zip(a, b))


def run_dropping(how, **more):
    """Steps 0 to 5; before those with odd numbers a pass is thrown away, but for how None."""
    net = ddp(network())
    optimizer = momentum(net.parameters())
    state = tamis.torch.attach(
        net, optimizer=optimizer, reduce="gradient", discards=True, **OPTIONS, **more
    )
    for step in range(6):
        if how and step % 2:
            optimizer.zero_grad()
            loss(net, 100 + step, 1e4).backward()
            if how == "discard":
                state.discard()
        optimizer.zero_grad()
        loss(net, step).backward()
        optimizer.step()
    return parameters(net), kept(state)


def case_dropped():
    """A pass that no step follows is forgotten, by itself or by discard()."""
    found = []
    for more in (dict(), dict(overlap=False), dict(clip_norm=1.0)):
        plain, rest = run_dropping(None, **more)
        for how in ("zero_grad", "discard"):
            moved, other = run_dropping(how, **more)
            found.append(torch.equal(plain, moved) and same(rest, other))
    return found


def case_not_asked():
    net = ddp(network())
    optimizer = momentum(net.parameters())
    state = tamis.torch.attach(net, 0.1, optimizer=optimizer, reduce="gradient")
    loss(net, 0).backward()
    without = told(state.discard)
    optimizer.step()
    other = ddp(network())
    kept_by = tamis.torch.attach(
        other, 0.1, optimizer=momentum(other.parameters()), reduce="gradient", discards=True
    )
    early = told(kept_by.discard)
    loss(other, 0).backward()
    kept_by.discard()
    twice = told(kept_by.discard)
    third = ddp(network())
    steps = tamis.torch.attach(third, 0.1, optimizer=adamw(third.parameters()))
    loss(third, 0).backward()
    steps.discard()
    steps._unused.detach()
    return without, early, twice


def case_wrapped():
    """zero_grad() of a DistributedOptimizer after synchronize() drops the pass."""
    results = []
    for drop in (False, True):
        model = network()
        optimizer = tamis.torch.DistributedOptimizer(
            momentum(model.parameters()), model, reduce="gradient", discards=True,
            nonfinite="skip", **OPTIONS,
        )  # fmt: skip
        for step in range(4):
            for factor in (1e3, float("nan")) if drop and step == 2 else ():
                loss(model, 50, factor).backward()
                optimizer.synchronize()
                optimizer.zero_grad()  # of a step that was lost, and is forgotten already, too
            loss(model, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append((parameters(model), kept(optimizer.tamis)))
        optimizer.close()
    return torch.equal(results[0][0], results[1][0]) and same(results[0][1], results[1][1])


SKIPPING = [
    (momentum, dict(reduce="gradient")),
    (momentum, dict()),
    (adamw, dict()),
    (adamw, dict(scheme="quantized", value_codec="fp2")),
    (adamw, dict(density=1.0)),
]


def run_skipping(make, more, bad, value=1e6):
    """One rank's gradient is absurd in step 2, which a run without `bad` leaves out."""
    net = ddp(network())
    optimizer = make(net.parameters())
    options = dict(OPTIONS, **more)
    state = tamis.torch.attach(net, optimizer=optimizer, skip_norm=100.0, **options)
    for step in range(5):
        if step == 2 and not bad:
            continue
        optimizer.zero_grad()
        absurd = step == 2 and dist.get_rank() == 1
        loss(net, step, value if absurd else 1.0).backward()
        optimizer.step()
    moments = [v for own in optimizer.state.values() for v in own.values() if torch.is_tensor(v)]
    lost = state.stats()["total"]["lost_steps"]
    return parameters(net), kept(state), copy.deepcopy(moments), lost


def case_skipped():
    found = []
    for make, more in SKIPPING:
        for value in (1e6, float("nan")):
            plain, bad = run_skipping(make, more, False), run_skipping(make, more, True, value)
            found.append(
                torch.equal(plain[0], bad[0])
                and same(plain[1], bad[1])
                and same(plain[2], bad[2])
                and (plain[3], bad[3]) == (0, 1)
            )
    return found


def case_skipped_wrapped():
    results = []
    for bad in (False, True):
        model = network()
        optimizer = tamis.torch.DistributedOptimizer(
            momentum(model.parameters()), model, reduce="gradient", skip_norm=100.0, **OPTIONS
        )
        for step in range(4):
            if step == 1 and not bad:
                continue
            loss(model, step, 1e6 if step == 1 and dist.get_rank() == 0 else 1.0).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(parameters(model))
        optimizer.close()
    return torch.equal(*results)


def case_in_a_row():
    """Passes that are left out, dropped, and dropped after one that was left out."""
    ends = []
    for bad in (False, True):
        net = ddp(network())
        optimizer = momentum(net.parameters())
        state = tamis.torch.attach(
            net, optimizer=optimizer, reduce="gradient", discards=True, skip_norm=100.0, **OPTIONS
        )
        for step in range(5):
            for factor in (1e6, 1e6, 1.0, 1e6) if bad and step % 2 == 0 else ():
                optimizer.zero_grad()
                loss(net, 10 + step, factor).backward()
            optimizer.zero_grad()
            loss(net, step).backward()
            optimizer.step()
        loss(net, 99).backward() if bad else None
        ends.append((parameters(net), kept(state)))
    return torch.equal(ends[0][0], ends[1][0]) and same(ends[0][1], ends[1][1])


def case_saved_after_a_drop():
    """A checkpoint does not hold a pass that no step followed."""
    whole, rest = run_dropping(None)
    net = ddp(network())
    optimizer = momentum(net.parameters())
    options = dict(OPTIONS, reduce="gradient", discards=True)
    state = tamis.torch.attach(net, optimizer=optimizer, **options)
    for step in range(6):
        if step == 3:
            optimizer.zero_grad()
            loss(net, 50, 1e4).backward()
            saved = copy.deepcopy((state.state_dict(), optimizer.state_dict()))
            state.close()
            other = ddp(net.module)
            net, optimizer = other, momentum(other.parameters())
            state = tamis.torch.attach(net, optimizer=optimizer, **options)
            optimizer.load_state_dict(saved[1])
            state.load_state_dict(saved[0])
        optimizer.zero_grad()
        loss(net, step).backward()
        optimizer.step()
    return torch.equal(whole, parameters(net)) and same(rest, kept(state))


def case_scaled_drop():
    """A GradScaler's first overflow, which no step() follows."""
    if not hasattr(torch.amp, "GradScaler"):
        return None
    net = ddp(network())
    optimizer, scaler = momentum(net.parameters()), torch.amp.GradScaler("cpu", init_scale=2.0**60)
    state = tamis.torch.attach(
        net, optimizer=optimizer, scaler=scaler, reduce="gradient", discards=True, **OPTIONS
    )
    for step in range(40):
        optimizer.zero_grad()
        scaler.scale(loss(net, step, 1e30 if step < 3 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
    return state.steps, tamis.torch.replicas_identical(net.module)


def case_scaled():
    """A GradScaler looks after Inf, and lowers its scale; an absurd norm is not its matter."""
    if not hasattr(torch.amp, "GradScaler"):
        return None
    results = []
    for bad in (False, True):
        net = ddp(network())
        optimizer, scaler = adamw(net.parameters()), torch.amp.GradScaler("cpu", init_scale=1024.0)
        state = tamis.torch.attach(
            net, optimizer=optimizer, scaler=scaler, skip_norm=100.0, **OPTIONS
        )
        for step in range(5):
            if step == 2 and not bad:
                continue
            optimizer.zero_grad()
            factor = 1e6 if step == 2 and dist.get_rank() == 1 else 1.0
            factor = float("inf") if step == 4 and dist.get_rank() == 0 else factor
            scaler.scale(loss(net, step, factor)).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append((parameters(net), scaler.get_scale(), state.stats()["total"]["lost_steps"]))
    plain, bad = results
    return torch.equal(plain[0], bad[0]), plain[1:], bad[1:]


# ------------------------------------------------------------------------------------- the test

@pytest.fixture(scope="module")
def results():
    cases = [name for name in globals() if name.startswith("case_")]
    return ranks.run(__file__, cases, nranks=2)


def test_a_pass_that_no_step_follows_is_forgotten(results):
    for found in ranks.values(results, "case_dropped"):
        assert found == [True] * 6, found


def test_discard_says_why_not(results):
    for without, early, twice in ranks.values(results, "case_not_asked"):
        assert without[0] == early[0] == twice[0] == "RuntimeError"
        assert "discards=True" in without[1] and "no backward pass" in early[1]


def test_zero_grad_of_a_wrapper_forgets_what_was_exchanged(results):
    assert all(ranks.values(results, "case_wrapped"))


def test_a_step_that_one_rank_finds_absurd_is_left_out_by_all(results):
    for found in ranks.values(results, "case_skipped"):
        assert found == [True] * 2 * len(SKIPPING), found


def test_so_it_is_by_a_wrapper(results):
    assert all(ranks.values(results, "case_skipped_wrapped"))


def test_what_is_left_out_and_what_is_dropped_keep_apart(results):
    assert all(ranks.values(results, "case_in_a_row"))
    assert all(ranks.values(results, "case_saved_after_a_drop"))
    for found in ranks.values(results, "case_scaled_drop"):
        assert found is None or (found[1] and 0 < found[0] < 40), found


def test_a_scaler_and_skip_norm_keep_apart(results):
    for found in ranks.values(results, "case_scaled"):
        if found is None:
            pytest.skip("this torch has no GradScaler for CPUs")
        assert found == (True, (512.0, 1), (512.0, 2)), found
