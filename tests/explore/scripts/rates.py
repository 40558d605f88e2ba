# SPDX-License-Identifier: MIT
"""Learning rates."""

from scene import *


@scenario
def schedule_onecycle_with_momentum():
    return pair(sgd(momentum=0.9), share=0.4, loop=scheduled(
        lambda o, n: LR.OneCycleLR(o, max_lr=0.05, total_steps=n + 1)))


@scenario
def schedule_onecycle_of_adamw_betas():
    return pair(adamw(), loop=scheduled(
        lambda o, n: LR.OneCycleLR(o, max_lr=0.03, total_steps=n + 1)))


@scenario
def schedule_cyclic():
    return pair(sgd(momentum=0.9), loop=scheduled(
        lambda o, n: LR.CyclicLR(o, 0.005, 0.03, step_size_up=5)))


@scenario
def schedule_warmup_from_0():
    return pair(adamw(), loop=scheduled(
        lambda o, n: LR.LambdaLR(o, lambda step: min(1.0, step / 10))))


@scenario
def schedule_down_to_0_and_on():
    return pair(sgd(momentum=0.5), loop=scheduled(
        lambda o, n: LR.LambdaLR(o, lambda step: max(0.0, 1 - step / 20))))


@scenario
def schedule_cosine_restarts():
    return pair(sgd(), loop=scheduled(lambda o, n: LR.CosineAnnealingWarmRestarts(o, 7)))


@scenario
def schedule_sequential():
    return pair(adamw(), loop=scheduled(lambda o, n: LR.SequentialLR(
        o, [LR.LinearLR(o, 0.1, 1.0, 5), LR.CosineAnnealingLR(o, 60)], [5])))


@scenario
def schedule_exponential_multistep():
    return pair(adamw(), loop=scheduled(lambda o, n: LR.MultiStepLR(o, [10, 20], 0.5)))


@scenario
def schedule_with_tensor_rate():
    return pair(optimizer_of("AdamW", lr=torch.tensor(0.02)),
                loop=scheduled(lambda o, n: LR.CosineAnnealingLR(o, 60)))


@scenario
def schedule_before_attach():
    made = {}

    def make(wrapped):
        optimizer = adamw()(wrapped)
        made["last"] = LR.CosineAnnealingLR(optimizer, 60)
        return optimizer

    return pair(make, loop=scheduled(lambda o, n: made["last"]))


@scenario
def schedule_of_numpy():
    """A rate that numpy has made."""
    import numpy

    def loop(model, optimizer, steps):
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = 0.02 * numpy.cos(numpy.float64(step) / 60)
            plain(model, optimizer, 1, step)

    return pair(adamw(), loop=loop)


@scenario
def schedule_plateau_of_own_loss():
    wrapped = DDP(net())
    made = adamw()(wrapped)
    scheduler = LR.ReduceLROnPlateau(made, patience=0)
    state = attach(wrapped, made)

    def loop():
        for step in range(10):
            plain(wrapped, made, 1, step)
            scheduler.step(float(step if dist.get_rank() else -step))

    return refusal(loop, "[Ss]cheduler")


@scenario
def schedule_plateau_of_common_loss():
    def loop(model, optimizer, steps):
        scheduler = LR.ReduceLROnPlateau(optimizer, patience=2)
        for step in range(steps):
            plain(model, optimizer, 1, step)
            loss = torch.tensor([measure(model.module)])
            dist.all_reduce(loss)
            scheduler.step(loss.item())

    return pair(sgd(), loop=loop)


@scenario
def rate_of_one_rank_differs():
    wrapped = DDP(net())
    made = adamw()(wrapped)
    state = attach(wrapped, made, check_every=0)
    plain(wrapped, made, 2)
    made.param_groups[0]["lr"] *= 1 + dist.get_rank()
    return refusal(lambda: plain(wrapped, made, 1), "rates")


@scenario
def weight_decay_of_one_rank_differs():
    wrapped = DDP(net())
    made = adamw(weight_decay=0.1 * (1 + dist.get_rank()))(wrapped)
    state = attach(wrapped, made, check_every=0)
    return refusal(lambda: plain(wrapped, made, 1), "rates")


@scenario
def momentum_of_one_rank_differs_means():
    """Means are the same; what the optimizers make of them is not."""
    wrapped = DDP(net())
    made = sgd(momentum=0.5 + 0.1 * dist.get_rank())(wrapped)
    state = attach(wrapped, made, reduce="gradient", check_every=5)
    return refusal(lambda: plain(wrapped, made, 20), "not the same on all ranks")


@scenario
def weight_decay_whole_number_on_one_rank():
    wrapped = DDP(net())
    made = adamw(weight_decay=0 if dist.get_rank() else 0.0)(wrapped)
    before = measure(wrapped.module)
    state = attach(wrapped, made)
    plain(wrapped, made, 40)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)
