# SPDX-License-Identifier: MIT
"""Norms, and passes that are dropped."""

from scene import *


@scenario
def skip_norm():
    wrapped, made, state = run_of(skip_norm=100.0)
    before = measure(wrapped.module)
    for step in range(40):
        made.zero_grad()
        big = 1e6 if step == 5 and dist.get_rank() else 1.0
        (loss_of(wrapped, step) * big).backward()
        made.step()
    expect(BROKEN or state.steps == 39, f"{state.steps} steps, not 39")
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


def skips_means(**options):
    wrapped, made, state = run_of(sgd, reduce="gradient", skip_norm=100.0, **options)
    before = measure(wrapped.module)
    for step in range(40):
        made.zero_grad()
        big = 1e6 if step in (0, 5, 6) and dist.get_rank() else 1.0
        (loss_of(wrapped, step) * big).backward()
        made.step()
    expect(BROKEN or state.steps == 37, f"{state.steps} steps, not 37")
    return learned(wrapped.module, before, 0.6 * before, measure(wrapped.module), 0.8)


@scenario
def skip_norm_of_means():
    return skips_means()


@scenario
def skip_norm_of_means_and_discards():
    return skips_means(discards=True)


def skipped_and_no_step(**options):
    """A pass that all left out, after which no step() follows either."""
    wrapped, made, state = run_of(sgd, reduce="gradient", skip_norm=100.0, **options)
    before = measure(wrapped.module)
    for step in range(40):
        made.zero_grad()
        bad = step in (0, 5, 6)
        (loss_of(wrapped, step) * (1e6 if bad and dist.get_rank() else 1.0)).backward()
        if not bad:
            made.step()
    expect(BROKEN or state.steps == 37, f"{state.steps} steps, not 37")
    return learned(wrapped.module, before, 0.6 * before, measure(wrapped.module), 0.8)


@scenario
def skip_norm_and_no_step():
    return skipped_and_no_step()


@scenario
def skip_norm_and_no_step_discards():
    return skipped_and_no_step(discards=True)


@scenario
def skip_norm_with_scaler():
    scaler = scaler_of(init_scale=1024.0)
    wrapped, made, state = run_of(skip_norm=100.0, scaler=scaler)
    before = measure(wrapped.module)
    for step in range(40):
        made.zero_grad()
        big = {5: 1e6, 9: float("inf")}.get(step, 1.0) if dist.get_rank() else 1.0
        (scaler.scale(loss_of(wrapped, step)) * big).backward()
        scaler.step(made)
        scaler.update()
    expect(BROKEN or scaler.get_scale() == 512.0, f"scale {scaler.get_scale()}, not 512")
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def skip_norm_and_a_scheduler():
    wrapped, made, state = run_of(skip_norm=1e-9)
    scheduler = LR.StepLR(made, 1, 0.9)
    first = copy.deepcopy(wrapped.module.state_dict())
    for step in range(5):
        plain(wrapped, made, 1, step)
        scheduler.step()
    pairs = zip(first.values(), wrapped.module.state_dict().values())
    still = all(torch.equal(a, b) for a, b in pairs)
    good = still and not said("before `optimizer.step") and not made.state
    return ("right" if good else "silent"), f"still {still}, {len(made.state)} states"


@scenario
def skip_norm_differs_by_rank():
    wrapped = DDP(net())
    made = adamw()(wrapped)
    return refusal(lambda: attach(wrapped, made, skip_norm=1.0 + dist.get_rank()), "same options")


@scenario
def skip_norm_with_two_optimizers():
    wrapped = DDP(net())
    rows = [torch.optim.SGD(wrapped.module[0].parameters(), 0.1),
            torch.optim.AdamW(wrapped.module[2].parameters(), 0.02)]
    return refusal(lambda: attach(wrapped, rows, skip_norm=1.0), "parts of it")


@scenario
def skip_norm_of_whole_gradients():
    wrapped, made, state = run_of(skip_norm=100.0, density=1.0)
    before = measure(wrapped.module)
    for step in range(40):
        made.zero_grad()
        (loss_of(wrapped, step) * (1e6 if step == 5 and dist.get_rank() else 1.0)).backward()
        made.step()
    expect(BROKEN or state.steps == 39, f"{state.steps} steps, not 39")
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def discards_with_scaler():
    """An overflow, after which a GradScaler calls no step()."""
    scaler = scaler_of(init_scale=64.0)
    wrapped, made, state = run_of(sgd, reduce="gradient", discards=True, scaler=scaler)
    before = measure(wrapped.module)
    scaled(scaler, spoils=(3,))(wrapped, made, 40)
    return learned(wrapped.module, before, 0.6 * before, measure(wrapped.module), 0.6)


@scenario
def discards_and_a_checkpoint():
    """The last pass before it is one that no step() follows: D's, in the step of G."""
    found = []
    for again in (False, True):
        wrapped, made, state = run_of(sgd, reduce="gradient", discards=True)
        plain(wrapped, made, 5)
        (100 * loss_of(wrapped, 99)).backward()
        made.zero_grad()
        if again:
            kept = copy.deepcopy([state.state_dict(), wrapped.module.state_dict()])
            state.close()
            model = net()
            model.load_state_dict(kept[1])
            wrapped, made, state = run_of(sgd, model=model, reduce="gradient", discards=True)
            state.load_state_dict(kept[0])
        plain(wrapped, made, 5, 5)
        found.append(wrapped.module)
    bits = all(torch.equal(a, b) for a, b in zip(*(m.parameters() for m in found)))
    return ("right" if bits and same(found[1]) else "silent"), f"the same bits: {bits}"


@scenario
def discard_by_hand():
    wrapped, made, state = run_of(sgd, reduce="gradient", discards=True)
    plain(wrapped, made, 5)
    held = state.residual_norm()
    loss_of(wrapped, 99).backward()
    state.discard()
    made.zero_grad()
    again = state.residual_norm()
    plain(wrapped, made, 5, 5)
    return ("right" if held == again and same(wrapped.module) else "silent"), f"{held} {again}"


@scenario
def discard_without_the_option():
    wrapped, made, state = run_of(sgd, reduce="gradient")
    plain(wrapped, made, 2)
    loss_of(wrapped, 99).backward()
    return refusal(state.discard, "discards=True")


@scenario
def discards_with_several_passes():
    """All but the last pass go into no_sync; here they do not."""
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(2):
                (0.5 * loss_of(model, 2 * step + part)).backward()
            optimizer.step()

    got = pair(sgd(), loop=loop, reduce="gradient", discards=True)
    return ("refused", "warned") if got[0] == "silent" and said("no_sync") else got
