# SPDX-License-Identifier: MIT
"""Numbers: dtypes, rates, densities."""

from scene import *


@scenario
def rate_0():
    wrapped, moved, _ = alone(adamw(0.0, weight_decay=0.1))
    return ("right" if moved == 0.0 and same(wrapped.module) else "silent"), f"moved {moved:.3g}"


@scenario
def rate_0_sgd_momentum():
    wrapped, moved, _ = alone(sgd(0.0, momentum=0.9, weight_decay=0.1))
    return ("right" if moved == 0.0 and same(wrapped.module) else "silent"), f"moved {moved:.3g}"


@scenario
def rate_tiny():
    wrapped, moved, _ = alone(adamw(1e-40))
    return ("right" if moved < 1e-30 and same(wrapped.module) else "silent"), f"moved {moved:.3g}"


@scenario
def rate_tiny_sgd():
    wrapped, moved, _ = alone(sgd(1e-42))
    return ("right" if moved < 1e-30 and same(wrapped.module) else "silent"), f"moved {moved:.3g}"


@scenario
def rate_1e_minus_9():
    wrapped, moved, _ = alone(adamw(1e-9), steps=20)
    good = moved < 1e-6 and same(wrapped.module) and finite(wrapped.module)
    return ("right" if good else "silent"), f"moved {moved:.3g}"


@scenario
def rate_huge():
    try:
        wrapped, moved, _ = alone(sgd(1e30), steps=6)
    except tamis.Error as error:
        return "refused", str(error)
    return ("right" if finite(wrapped.module) else "silent"), f"moved {moved:.3g}"


@scenario
def rate_huge_means():
    try:
        wrapped, moved, _ = alone(sgd(1e30), steps=6, reduce="gradient")
    except tamis.Error as error:
        return "refused", str(error)
    return ("right" if finite(wrapped.module) else "silent"), f"moved {moved:.3g}"


@scenario
def rate_nan():
    wrapped = DDP(net())
    made = adamw()(wrapped)
    state = attach(wrapped, made)
    plain(wrapped, made, 2)
    made.param_groups[0]["lr"] = float("nan")
    try:
        plain(wrapped, made, 2)
    except Exception as error:
        return ("refused" if "rate" in str(error) else "unclear"), str(error)
    return ("right" if finite(wrapped.module) else "silent"), "NaN in parameters"


@scenario
def rate_negative():
    """Ascent, as for an adversary."""
    def loop(model, optimizer, steps):
        optimizer.param_groups[0]["lr"] = -0.1
        for step in range(steps):
            optimizer.zero_grad()
            (-loss_of(model, step)).backward()
            optimizer.step()

    return pair(sgd(), loop=loop)


@scenario
def weight_decay_that_clears():
    """lr x decay = 1: parameters become what the step makes."""
    return pair(optimizer_of("AdamW", lr=0.02, weight_decay=50.0), share=1.5)


@scenario
def density_1():
    return pair(adamw(), density=1.0, share=0.99)


@scenario
def density_1_of_steps():
    return pair(adamw(), density=1.0, reduce="step")


@scenario
def density_whole_number():
    got = pair(sgd(), density=1)
    return ("refused", "warned") if said("write 0.01") else ("silent", f"no warning; {got[1]}")


@scenario
def density_tiny():
    return pair(sgd(0.05), density=1e-7, steps=200, share=0.1)


@scenario
def density_0():
    wrapped = DDP(net())
    made = sgd()(wrapped)
    return refusal(lambda: attach(wrapped, made, density=0.0), "share in")


@scenario
def density_set_while_training():
    def loop(model, optimizer, steps):
        for step in range(steps):
            if step == steps // 2 and loop.state is not None:
                loop.state.set_density(0.05)
            plain(model, optimizer, 1, step)

    return pair(sgd(momentum=0.9, lr=0.02), loop=loop, density_max=0.5)


@scenario
def density_differs_by_rank():
    wrapped = DDP(net())
    made = adamw()(wrapped)

    def run():
        attach(wrapped, made, density=0.1 * (1 + dist.get_rank()))
        plain(wrapped, made, 2)

    return refusal(run, "density")
