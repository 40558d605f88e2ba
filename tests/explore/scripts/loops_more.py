# SPDX-License-Identifier: MIT
"""Loops, continued."""

from scene import *


@scenario
def loss_of_one_rank_is_nan_and_gradients_are_dropped():
    """`if not isfinite(loss): zero_grad()` and step all the same, so that nobody waits."""
    wrapped = DDP(net())
    before, made = measure(wrapped.module), adamw(weight_decay=0.1)(wrapped)
    state = attach(wrapped, made)
    for step in range(40):
        made.zero_grad(set_to_none=True)
        loss = loss_of(wrapped, step) * (float("nan") if step == 7 and dist.get_rank() else 1.0)
        loss.backward()
        if not torch.isfinite(loss):
            made.zero_grad(set_to_none=True)
        made.step()
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 0.6)


@scenario
def gradient_that_is_not_finite_is_set_to_none():
    wrapped = DDP(net())
    before, made = measure(wrapped.module), adamw(weight_decay=0.1)(wrapped)
    state = attach(wrapped, made)
    for step in range(40):
        made.zero_grad()
        loss_of(wrapped, step).backward()
        if step == 7 and dist.get_rank() == 1:
            wrapped.module[0].weight.grad[0, 0] = float("nan")
        for p in wrapped.parameters():
            if not torch.isfinite(p.grad).all():
                p.grad = None
        made.step()
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 0.6)


def zeroes(zero):
    def loop(model, optimizer, steps):
        for step in range(steps):
            zero(model, optimizer)
            loss_of(model, step).backward()
            optimizer.step()

    return loop


@scenario
def zero_grad_keeps_memory():
    return pair(adamw(), loop=zeroes(lambda _, o: o.zero_grad(set_to_none=False)))


@scenario
def zero_grad_keeps_memory_means():
    return pair(sgd(), loop=zeroes(lambda _, o: o.zero_grad(set_to_none=False)), reduce="gradient")


@scenario
def zero_grad_of_the_model():
    return pair(sgd(), loop=zeroes(lambda m, _: m.zero_grad()))


@scenario
def zero_grad_by_hand():
    def zero(model, _):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.data.zero_()

    return pair(adamw(), loop=zeroes(zero))


@scenario
def zero_grad_between_backward_and_step():
    """Nothing to step by."""
    wrapped = DDP(net())
    made = sgd()(wrapped)
    state = attach(wrapped, made)
    plain(wrapped, made, 3)
    first = wrapped.module[0].weight.detach().clone()
    loss_of(wrapped, 3).backward()
    made.zero_grad()
    made.step()
    # What is left of steps before may still come.
    moved = (wrapped.module[0].weight - first).abs().max().item()
    return ("right" if same(wrapped.module) and moved < 1 else "silent"), f"moved {moved:.2g}"


@scenario
def freezes_a_layer():
    def loop(model, optimizer, steps):
        plain(model, optimizer, steps // 2)
        for p in model.module[0].parameters():
            p.requires_grad_(False)
            p.grad = None
        loop.before = model.module[0].weight.detach().clone()
        model = DDP(model.module) if loop.state is None else model
        for step in range(steps // 2, steps):
            optimizer.zero_grad()
            loss_of(model.module, step).backward()
            optimizer.step()
        expect(torch.equal(loop.before, model.module[0].weight), "a frozen weight moved")

    return pair(adamw(), loop=loop, share=0.4)


@scenario
def thaws_a_layer():
    model = net()
    model[0].requires_grad_(False)
    wrapped = DDP(model)
    made = adamw()(wrapped)
    state = attach(wrapped, made)
    plain(wrapped, made, 3)
    model[0].requires_grad_(True)
    return refusal(lambda: plain(wrapped, made, 3), "attach anew")


@scenario
def thaws_and_attaches_anew():
    model = net()
    model[0].requires_grad_(False)
    wrapped = DDP(model)
    made = torch.optim.AdamW(model.parameters(), 0.02)
    before, state = measure(model), attach(wrapped, made)
    plain(wrapped, made, 10)
    state.close()
    model[0].requires_grad_(True)
    wrapped = DDP(model)
    state = attach(wrapped, made)
    first = model[0].weight.detach().clone()
    plain(wrapped, made, 40, 10)
    expect(not torch.equal(first, model[0].weight), "a thawed weight stayed")
    return learned(model, before, 0.5 * before, measure(model), 0.6)


@scenario
def param_group_added_of_known():
    model = net()
    wrapped = DDP(model)
    made = torch.optim.AdamW(model[0].parameters(), 0.02)
    made.add_param_group(dict(params=list(model[2].parameters()), lr=0.01))
    before, state = measure(model), attach(wrapped, made)
    plain(wrapped, made, 40)
    return learned(model, before, 0.6 * before, measure(model), 0.6)


@scenario
def param_group_added_later():
    model = net()
    wrapped = DDP(model)
    made = torch.optim.AdamW(model[0].parameters(), 0.02)
    state = attach(wrapped, made)
    plain(wrapped, made, 3)
    made.add_param_group(dict(params=list(model[2].parameters())))
    return refusal(lambda: plain(wrapped, made, 3), "attach anew")


@scenario
def param_group_added_with_a_new_head():
    model = net()
    wrapped = DDP(model)
    made = adamw()(wrapped)
    state = attach(wrapped, made)
    plain(wrapped, made, 3)
    made.add_param_group(dict(params=list(nn.Linear(4, 4).parameters())))
    return refusal(lambda: plain(wrapped, made, 3), "attach anew")


@scenario
def param_groups_rebuilt():
    """The optimizer's groups are split in two while it trains."""
    wrapped = DDP(net())
    before, made = measure(wrapped.module), adamw()(wrapped)
    state = attach(wrapped, made)
    plain(wrapped, made, 5)
    rows = made.param_groups[0]["params"]
    made.param_groups[0]["params"] = rows[:2]
    made.add_param_group(dict(made.param_groups[0], params=rows[2:], lr=0.01))
    plain(wrapped, made, 35, 5)
    return learned(wrapped.module, before, 0.6 * before, measure(wrapped.module), 0.6)


@scenario
def weight_decay_groups():
    def make(wrapped):
        wide = [p for p in wrapped.parameters() if p.ndim > 1]
        thin = [p for p in wrapped.parameters() if p.ndim < 2]
        return torch.optim.AdamW([dict(params=wide, weight_decay=0.1),
                                  dict(params=thin, weight_decay=0.0)], 0.02)

    return pair(make)


@scenario
def group_with_rate_0():
    def make(wrapped):
        rows = list(wrapped.parameters())
        return torch.optim.AdamW([dict(params=rows[:2], lr=0.0), dict(params=rows[2:])], 0.02)

    return pair(make, share=0.4)


@scenario
def group_without_parameters():
    def make(wrapped):
        return torch.optim.AdamW([dict(params=[]), dict(params=list(wrapped.parameters()))], 0.02)

    return pair(make)
