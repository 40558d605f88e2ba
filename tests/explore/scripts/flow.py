# SPDX-License-Identifier: MIT
"""What happens between steps."""

from scene import *


@scenario
def train_and_eval():
    def loop(model, optimizer, steps):
        for step in range(steps):
            model.train()
            plain(model, optimizer, 1, step)
            if step % 5 == 0:
                model.eval()
                with torch.no_grad():
                    loss_of(model, step)

    return pair(adamw(), loop=loop)


@scenario
def evaluation_with_gradients_between():
    """A pass whose gradients are thrown away, as for saliency."""
    def loop(model, optimizer, steps):
        for step in range(steps):
            plain(model, optimizer, 1, step)
            optimizer.zero_grad()
            (100 * loss_of(model, step + 500)).backward()

    return pair(adamw(), loop=loop)


def interrupted(model, optimizer, steps, fail):
    for step in range(steps):
        try:
            optimizer.zero_grad()
            loss = loss_of(model, step)
            if step % 7 == 3:
                fail(model, loss)
            loss.backward()
            optimizer.step()
        except ZeroDivisionError:
            continue


@scenario
def exception_in_forward():
    def fail(*_):
        raise ZeroDivisionError

    return pair(adamw(), loop=lambda m, o, n: interrupted(m, o, n, fail))


@scenario
def exception_before_step():
    def fail(_, loss):
        loss.backward()
        raise ZeroDivisionError

    return pair(sgd(), loop=lambda m, o, n: interrupted(m, o, n, fail))


@scenario
def exception_in_a_hook_of_the_step():
    """On all ranks, and the loop goes on."""
    def loop(model, optimizer, steps):
        def fail(*_):
            fail.calls += 1
            if fail.calls % 7 == 3:
                raise ZeroDivisionError

        fail.calls = 0
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise Absent("no hooks of step()")
        optimizer.register_step_pre_hook(fail)
        interrupted(model, optimizer, steps, lambda *_: None)

    return pair(adamw(), loop=loop)


class Fragile(torch.optim.AdamW):
    """Its own step fails in the middle, on all ranks."""

    calls = 0

    def step(self, closure=None):
        super().step(closure)
        self.calls += 1
        if self.calls % 7 == 3:
            raise ZeroDivisionError


@scenario
def exception_within_the_step():
    return pair(lambda w: Fragile(w.parameters(), 0.02),
                loop=lambda m, o, n: interrupted(m, o, n, lambda *_: None))


@scenario
def exception_on_one_rank():
    """It leaves its step out and goes on; the others wait for it."""
    wrapped, made, state = run_of(timeout_s=5)

    def run():
        for step in range(10):
            try:
                made.zero_grad()
                loss_of(wrapped, step).backward()
                if step == 4 and dist.get_rank() == 1:
                    raise ZeroDivisionError
                made.step()
            except ZeroDivisionError:
                pass

    try:
        run()
    except tamis.Error as error:
        return "refused", str(error)
    return ("refused" if dist.get_rank() == 1 else "silent"), f"{state.steps} steps"


@scenario
def nan_batch_on_one_rank():
    wrapped, made, state = run_of(nonfinite="skip")
    before = measure(wrapped.module)
    for step in range(40):
        made.zero_grad()
        loss = loss_of(wrapped, step)
        (loss * float("nan") if step == 5 and dist.get_rank() else loss).backward()
        made.step()
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def nan_batch_on_one_rank_raises_and_goes_on():
    wrapped, made, state = run_of()
    before, raised = measure(wrapped.module), 0
    for step in range(40):
        made.zero_grad()
        loss = loss_of(wrapped, step)
        (loss * float("nan") if step == 5 and dist.get_rank() else loss).backward()
        try:
            made.step()
        except tamis.Error:
            raised += 1
    expect(raised == 1, f"raised {raised} times")
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def batches_uneven():
    wrapped, made, state = run_of(timeout_s=5)
    try:
        for step in range(6 + dist.get_rank()):
            with wrapped.no_sync():
                plain(wrapped, made, 1, step)
    except tamis.Error as error:
        return "refused", str(error)
    return ("refused", "the other rank") if dist.get_rank() == 0 else ("silent", f"{state.steps}")


@scenario
def join_of_means():
    wrapped, made, state = run_of(sgd, reduce="gradient")
    before = measure(wrapped.module)
    with wrapped.join():
        for step in range(30 + 3 * dist.get_rank()):
            plain(wrapped, made, 1, step)
            if step == 25:  # at the end Join gives all ranks the parameters of one
                within = copy.deepcopy(wrapped.module)
    expect(same(within), "replicas differ within Join")
    return learned(wrapped.module, before, 0.6 * before, measure(wrapped.module), 0.6)


@scenario
def join_of_steps():
    wrapped, made, state = run_of(timeout_s=5)
    try:
        with wrapped.join():
            for step in range(6 + 3 * dist.get_rank()):
                plain(wrapped, made, 1, step)
    except (tamis.Error, RuntimeError) as error:
        words = str(error)
        # The rank without inputs waits within Join, and sees the other one leave.
        good = isinstance(error, tamis.Error) or dist.get_rank() == 0
        return ("refused" if good else "unclear"), words
    return "silent", f"{state.steps}"


@scenario
def backward_twice():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            loss.backward(retain_graph=True)
            optimizer.step()

    return pair(adamw(), loop=loop)


@scenario
def two_losses_one_forward():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            with model.no_sync():
                (0.5 * loss).backward(retain_graph=True)
            (0.5 * loss).backward()
            optimizer.step()

    return pair(adamw(), loop=loop)


@scenario
def create_graph():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            loss_of(model, step).backward(create_graph=True)
            optimizer.step()
            for p in model.parameters():
                p.grad = None

    return pair(adamw(), loop=loop)


@scenario
def gradient_penalty():
    """autograd.grad of a module that DDP does not see."""
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            x, y = batch(step)
            x.requires_grad_()
            out = model.module(x)
            slope, = torch.autograd.grad(out.sum(), x, create_graph=True)
            (F.mse_loss(out, y) + 1e-3 * slope.square().sum()).backward()
            optimizer.step()

    return pair(adamw(), loop=loop)
