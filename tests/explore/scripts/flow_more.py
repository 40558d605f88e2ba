# SPDX-License-Identifier: MIT
"""What happens between steps, continued."""

from scene import *


@scenario
def gradients_by_autograd_grad():
    wrapped, made, state = run_of()
    before = measure(wrapped.module)
    for step in range(40):
        rows = list(wrapped.parameters())
        for p, g in zip(rows, torch.autograd.grad(loss_of(wrapped.module, step), rows)):
            p.grad = g
        made.step()
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def hooks_on_gradients():
    def loop(model, optimizer, steps):
        handles = [p.register_hook(lambda g: g.clamp(-0.5, 0.5)) for p in model.parameters()]
        plain(model, optimizer, steps)
        for handle in handles:
            handle.remove()

    return pair(adamw(), loop=loop)


@scenario
def steps_within_backward():
    """An optimizer for each parameter, stepped when its gradient is there."""
    wrapped = DDP(net())
    if not hasattr(wrapped.module[0].weight, "register_post_accumulate_grad_hook"):
        raise Absent("no such hooks")
    rows = {p: torch.optim.AdamW([p], 0.02) for p in wrapped.parameters()}
    before, state = measure(wrapped.module), attach(wrapped, list(rows.values()))

    def step(p):
        rows[p].step()
        rows[p].zero_grad()

    for p in rows:
        p.register_post_accumulate_grad_hook(step)
    try:
        for number in range(30):
            loss_of(wrapped, number).backward()
    except (tamis.Error, RuntimeError) as error:
        return ("refused" if "tamis" in str(error).lower() else "unclear"), str(error)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 0.6)


@scenario
def functional_call():
    call = getattr(getattr(torch, "func", None), "functional_call", None)
    if call is None:
        raise Absent("no torch.func")

    def loop(model, optimizer, steps):
        rows = dict(model.module.named_parameters())
        plain(lambda x: call(model.module, rows, (x,)), optimizer, steps)

    return pair(adamw(), loop=loop)


@scenario
def inner_module_of_means():
    """ddp.module(x): DDP sees no pass."""
    wrapped, made, state = run_of(sgd, reduce="gradient")
    return refusal(lambda: plain(wrapped.module, made, 2), "without an exchange")


@scenario
def inner_module_of_steps():
    wrapped, made, state = run_of()
    before = measure(wrapped.module)
    plain(wrapped.module, made, 40)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def process_subgroup():
    groups = [dist.new_group([0, 1]), dist.new_group([0])]
    model = net()
    wrapped = DDP(model, process_group=groups[0])
    made = adamw()(wrapped)
    before, state = measure(model), attach(wrapped, made)
    plain(wrapped, made, 40)
    return learned(model, before, 0.8 * before, measure(model), 1.0)


@scenario
def attach_anew_after_close():
    wrapped, made, state = run_of()
    before = measure(wrapped.module)
    plain(wrapped, made, 10)
    state.close()
    wrapped = DDP(wrapped.module)
    state = attach(wrapped, made)
    plain(wrapped, made, 30, 10)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def goes_on_dense_after_close():
    wrapped, made, state = run_of()
    before = measure(wrapped.module)
    plain(wrapped, made, 10)
    state.close()
    wrapped = DDP(wrapped.module)
    plain(wrapped, made, 30, 10)
    got = learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)
    # All ranks have had moments of their own, and parameters drift apart by them.
    return ("refused", "warned") if got[0] == "silent" and said("moments") else got


@scenario
def attach_anew_with_means():
    """Sparse steps first, then whole gradients to the same optimizer."""
    wrapped, made, state = run_of()
    before = measure(wrapped.module)
    plain(wrapped, made, 10)
    state.close()
    wrapped = DDP(wrapped.module)
    state = attach(wrapped, made, density=1.0)
    plain(wrapped, made, 30, 10)
    got = learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)
    return ("refused", "warned") if got[0] == "silent" and said("moments") else got


@scenario
def goes_on_after_close():
    wrapped, made, state = run_of()
    plain(wrapped, made, 3)
    state.close()
    return refusal(lambda: plain(wrapped, made, 3), "closed")


@scenario
def attach_twice():
    wrapped, made, state = run_of()
    return refusal(lambda: attach(wrapped, made), "hook already|close.. it first")


@scenario
def state_is_not_kept():
    wrapped = DDP(net())
    made = adamw()(wrapped)
    attach(wrapped, made)
    import gc

    gc.collect()
    before = measure(wrapped.module)
    try:
        plain(wrapped, made, 40)
    except RuntimeError as error:
        return "refused", str(error)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def another_hook_of_ddp():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    wrapped = DDP(net())
    made = adamw()(wrapped)
    wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    return refusal(lambda: attach(wrapped, made), "hook")


@scenario
def step_by_the_class():
    """type(optimizer).step(optimizer), as some profilers do."""
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            type(optimizer).step(optimizer)

    if not hasattr(torch.optim.Optimizer, "register_step_pre_hook"):
        raise Absent("no hooks of step()")
    return pair(adamw(), loop=loop)


@scenario
def step_with_a_closure():
    def loop(model, optimizer, steps):
        for step in range(steps):
            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                return loss

            expect(math.isfinite(float(optimizer.step(closure))), "no loss")

    return pair(adamw(), loop=loop)


@scenario
def step_replaced():
    wrapped, made, state = run_of()
    kind = type(made)

    def bare(closure=None):
        with torch.no_grad():
            for p in wrapped.parameters():
                p.sub_(p.grad, alpha=0.1)

    made.step = bare
    plain(wrapped, made, 10)
    equal = same(wrapped.module)
    state.close()
    if equal:
        return "right", kind.__name__
    return ("refused", "warned at the end") if said("0 steps") else ("silent", "replicas differ")


@scenario
def optimizer_compiled():
    """torch.compile of the step: documented as not supported."""
    if not hasattr(torch, "compile"):
        raise Absent("no torch.compile")
    wrapped, made, state = run_of()
    before = measure(wrapped.module)
    fast = torch.compile(made.step, backend="eager", fullgraph=False)
    try:
        for step in range(10):
            made.zero_grad()
            loss_of(wrapped, step).backward()
            fast()
    except Exception as error:
        return ("refused" if "tamis" in str(error).lower() else "unclear"), str(error)[:300]
    return learned(wrapped.module, before, 0.95 * before, measure(wrapped.module), 0.5)
