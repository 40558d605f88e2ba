# SPDX-License-Identifier: MIT
"""Loops."""

from scene import *


def accumulates(synced):
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            for part in range(3):
                if synced or part == 2:
                    (loss_of(model, 3 * step + part) / 3).backward()
                else:
                    with model.no_sync():
                        (loss_of(model, 3 * step + part) / 3).backward()
            optimizer.step()

    return loop


@scenario
def accumulation_without_no_sync():
    return pair(adamw(), loop=accumulates(True))


@scenario
def accumulation_with_no_sync():
    return pair(adamw(), loop=accumulates(False))


@scenario
def accumulation_means_with_no_sync():
    return pair(sgd(), loop=accumulates(False), reduce="gradient")


@scenario
def accumulation_means_without_no_sync():
    got = pair(sgd(), loop=accumulates(True), reduce="gradient")
    return ("refused", "warned") if got[0] == "silent" and said("no_sync") else got


def all_in_no_sync(model, optimizer, steps):
    for step in range(steps):
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, step).backward()
        optimizer.step()


@scenario
def all_passes_in_no_sync():
    wrapped = DDP(net())
    before, made = measure(wrapped.module), adamw()(wrapped)
    state = attach(wrapped, made)
    all_in_no_sync(wrapped, made, 40)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def scaler_plain():
    return pair(adamw(), loop=scaled(scaler_of(init_scale=1024.0)))


@scenario
def scaler_inf_on_one_rank_told():
    sound = sgd()
    wrapped = DDP(net())
    before, made, scaler = measure(wrapped.module), sound(wrapped), scaler_of(init_scale=1024.0)
    state = attach(wrapped, made, scaler=scaler)
    scaled(scaler, spoils=(5, 9))(wrapped, made, 40)
    got = learned(wrapped.module, before, 0.5 * before, measure(wrapped.module), 0.6)
    expect(scaler.get_scale() == 256.0, f"scale {scaler.get_scale()}, not 256")
    return got


@scenario
def scaler_inf_on_one_rank_untold():
    wrapped = DDP(net())
    before, made = measure(wrapped.module), adamw()(wrapped)
    state = attach(wrapped, made)
    scaled(scaler_of(init_scale=1024.0), spoils=(5, 9), clip=True)(wrapped, made, 40)
    return learned(wrapped.module, before, 0.5 * before, measure(wrapped.module), 0.6)


@scenario
def scaler_fused_adamw():
    return pair(optimizer_of("AdamW", lr=0.02, fused=True), loop=scaled(scaler_of(init_scale=64.0)))


@scenario
def scaler_of_means_untold():
    wrapped = DDP(net())
    made = sgd()(wrapped)
    state = attach(wrapped, made, reduce="gradient")
    run = scaled(scaler_of(init_scale=64.0))
    return refusal(lambda: run(wrapped, made, 3), "scaler=scaler")


@scenario
def scaler_with_two_optimizers():
    wrapped, scaler = DDP(net()), scaler_of(init_scale=1024.0)
    rows = [torch.optim.SGD(wrapped.module[0].parameters(), 0.1),
            torch.optim.AdamW(wrapped.module[2].parameters(), 0.02)]
    before, state = measure(wrapped.module), attach(wrapped, rows, scaler=scaler)
    for step in range(40):
        for one in rows:
            one.zero_grad()
        loss = scaler.scale(loss_of(wrapped, step))
        (loss * (float("inf") if step == 4 and dist.get_rank() else 1.0)).backward()
        for one in rows:
            scaler.step(one)
        scaler.update()
    return learned(wrapped.module, before, 0.5 * before, measure(wrapped.module), 0.6)


@scenario
def clip_norm_by_torch():
    return pair(sgd(), loop=clips(lambda ps: nn.utils.clip_grad_norm_(ps, 1.0)))


@scenario
def clip_value_by_torch():
    return pair(adamw(), loop=clips(lambda ps: nn.utils.clip_grad_value_(ps, 0.1)))


@scenario
def clip_norm_of_means():
    return pair(sgd(), loop=clips(lambda ps: nn.utils.clip_grad_norm_(ps, 1.0)), reduce="gradient")


@scenario
def clip_norm_by_the_library():
    return pair(adamw(), clip_norm=0.5)


@scenario
def noise_on_gradients():
    """Drawn from each rank's own generator."""
    torch.manual_seed(dist.get_rank())

    def noisy(parameters):
        for p in parameters:
            p.grad.add_(torch.randn_like(p), alpha=1e-3)

    wrapped = DDP(net())
    before, made = measure(wrapped.module), adamw()(wrapped)
    state = attach(wrapped, made)
    clips(noisy)(wrapped, made, 40)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def steps_skipped_by_all():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            if step % 4:
                optimizer.step()

    return pair(sgd(), loop=loop)


@scenario
def steps_skipped_by_all_means():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            (loss_of(model, step) * (1e4 if step % 4 == 0 else 1.0)).backward()
            if step % 4:
                optimizer.step()

    try:
        got = pair(sgd(), loop=loop, reduce="gradient")
    except tamis.Error:
        got = "silent", "diverged"
    return ("refused", "warned") if got[0] == "silent" and said("no step followed") else got


@scenario
def steps_skipped_by_all_means_discards():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            (loss_of(model, step) * (1e4 if step % 4 == 0 else 1.0)).backward()
            if step % 4:
                optimizer.step()

    return pair(sgd(), loop=loop, reduce="gradient", discards=True)


@scenario
def step_skipped_by_one_rank():
    """A rank's own norm decides; dense ranks would decide the same."""
    wrapped = DDP(net())
    made = adamw()(wrapped)
    state = attach(wrapped, made, timeout_s=5)

    def loop():
        for step in range(6):
            made.zero_grad()
            loss_of(wrapped, step).backward()
            if not (step == 3 and dist.get_rank() == 1):
                made.step()

    try:
        loop()
    except tamis.Error as error:
        return "refused", str(error)
    # A step behind: the ranks paired other steps, and one of them waits.
    return ("refused" if dist.get_rank() == 1 else "silent"), f"{state.steps} steps"
