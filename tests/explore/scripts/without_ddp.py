# SPDX-License-Identifier: MIT
"""Loops without DDP, local steps."""

from scene import *


@scenario
def wrapper_adamw():
    return bare(adamw(), distributed())


@scenario
def wrapper_means():
    return bare(sgd(), distributed(reduce="gradient"))


@scenario
def wrapper_means_clipped():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            if not BROKEN:
                optimizer.synchronize()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()

    return bare(sgd(), distributed(reduce="gradient"), loop)


@scenario
def wrapper_means_clipped_without_synchronize():
    model = net()
    made = distributed(reduce="gradient")(sgd()(model), model)
    run = clips(lambda ps: nn.utils.clip_grad_norm_(ps, 0.01))
    return refusal(lambda: run(model, made, 3), "synchronize")


@scenario
def wrapper_scheduled():
    return bare(adamw(), distributed(), scheduled(lambda o, n: LR.CosineAnnealingLR(o, 2 * n)))


@scenario
def wrapper_scaled():
    return bare(adamw(), distributed(), scaled(scaler_of(init_scale=64.0)))


@scenario
def wrapper_means_accumulate():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            if BROKEN:
                (0.5 * loss_of(model, 500 + step)).backward()
            else:
                with optimizer.no_sync():
                    (0.5 * loss_of(model, 500 + step)).backward()
            (0.5 * loss_of(model, step)).backward()
            optimizer.step()

    return bare(sgd(), distributed(reduce="gradient"), loop)


@scenario
def wrapper_checkpoint():
    model = net()
    made = distributed()(adamw()(model), model)
    plain(model, made, 10)
    kept, weights = copy.deepcopy([made.state_dict(), model.state_dict()])
    plain(model, made, 10, 10)
    other = net(4)
    other.load_state_dict(weights)
    again = distributed()(adamw()(other), other)
    again.load_state_dict(kept)
    plain(other, again, 10, 10)
    bits = all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    return ("right" if bits and same(other) else "silent"), "bits compared"


@scenario
def wrapper_group_added():
    model = net()
    made = distributed()(torch.optim.AdamW(model[0].parameters(), 0.02), model[0])
    more = dict(params=list(model[2].parameters()))
    return refusal(lambda: made.add_param_group(more), "make a new DistributedOptimizer")


@scenario
def wrapper_of_a_ddp():
    wrapped = DDP(net())
    return refusal(lambda: distributed()(adamw()(wrapped), wrapped), "attach")


def rounds(kind="LocalSGD", **options):
    return lambda o, m: getattr(tamis.torch, kind)(o, m, timeout_s=20, **options)


@scenario
def local_sgd():
    return bare(sgd(), rounds(steps=4, outer_lr=1.0, momentum=0.0))


@scenario
def local_quantized():
    return bare(adamw(), rounds(steps=4, outer_lr=1.0, momentum=0.5, scheme="quantized",
                                value_codec="fp2"), share=0.4)


@scenario
def local_diloco():
    return bare(adamw(), rounds("DiLoCo", steps=5), share=0.3)


@scenario
def local_sparseloco():
    return bare(adamw(), rounds("SparseLoCo", steps=5, density=0.2), share=0.2)


@scenario
def local_delayed():
    def loop(model, optimizer, steps):
        plain(model, optimizer, steps)
        if not BROKEN:
            loop.common = optimizer.base()
            loop.common.__enter__()

    return bare(adamw(), rounds(steps=5, delay=2, outer_lr=1.0, momentum=0.0), loop, share=0.3)


@scenario
def local_scaled_inf_on_one_rank():
    model = net()
    made = rounds(steps=4, outer_lr=1.0, momentum=0.0)(sgd()(model), model)
    before = measure(model)
    scaled(scaler_of(init_scale=64.0), spoils=(5,))(model, made, 40)
    return learned(model, before, 0.6 * before, measure(model), 0.6)


@scenario
def local_nan_on_one_rank():
    model = net()
    made = rounds(steps=4, outer_lr=1.0, momentum=0.0)(sgd()(model), model)
    before = measure(model)
    try:
        for step in range(40):
            made.zero_grad()
            loss = loss_of(model, step)
            (loss * float("nan") if step == 5 and dist.get_rank() else loss).backward()
            made.step()
    except tamis.Error as error:
        return "refused", str(error)
    return learned(model, before, 0.6 * before, measure(model), 0.6)


@scenario
def local_checkpoint_within_a_round():
    model = net()
    make = rounds(steps=4, outer_lr=0.7, momentum=0.9)
    made = make(adamw()(model), model)
    plain(model, made, 10)
    kept, weights = copy.deepcopy([made.state_dict(), model.state_dict()])
    plain(model, made, 10, 10)
    other = net()
    again = make(adamw()(other), other)
    other.load_state_dict(weights)
    again.load_state_dict(kept)
    plain(other, again, 10, 10)
    bits = all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    return ("right" if bits and same(other) else "silent"), "bits compared"


@scenario
def local_rates_differ():
    """Rounds are means all the same; here a rank steps with its own rate on purpose."""
    model = net()
    own = sgd(0.1 + 0.05 * dist.get_rank())(model)
    made = rounds(steps=4, outer_lr=1.0, momentum=0.0)(own, model)
    before = measure(model)
    plain(model, made, 40)
    return learned(model, before, 0.6 * before, measure(model), 0.6)


@scenario
def local_of_a_ddp():
    wrapped = DDP(net())
    return refusal(lambda: rounds()(sgd()(wrapped), wrapped), "bare model")


@scenario
def local_starts_unequal():
    model = net(dist.get_rank())

    def run():
        made = rounds(steps=2)(sgd()(model), model)
        plain(model, made, 4)

    return refusal(run, "broadcast_parameters|same on all ranks|not equal|differ")
