# SPDX-License-Identifier: MIT
"""Optimizers of one's own, and several."""

from scene import *


class SignSGD(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad.sign(), alpha=-group["lr"])


class CentralAdamW(torch.optim.AdamW):
    """Changes gradients, then calls its base class."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and p.ndim > 1:
                    p.grad.sub_(p.grad.mean(1, keepdim=True))
        return super().step(closure)


class Slow(torch.optim.Optimizer):
    """Slow weights, by a name that no table has."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.count = inner, 0
        self.param_groups = inner.param_groups
        self.slow = {p: p.detach().clone() for g in self.param_groups for p in g["params"]}

    def step(self, closure=None):
        self.inner.step()
        self.count += 1
        if self.count % 5 == 0:
            for p, slow in self.slow.items():
                slow.add_(p.detach() - slow, alpha=0.5)
                p.data.copy_(slow)

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)


class SlowInState(Slow):
    """They are in its state, as tensors."""

    def __init__(self, inner):
        super().__init__(inner)
        self.state.update(self.slow)


class SAM(torch.optim.Optimizer):
    """As it is found in many repositories."""

    def __init__(self, parameters, base, rho=0.05, **options):
        super().__init__(parameters, dict(rho=rho, **options))
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        rows = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in rows]).norm()
        for p in rows:
            self.state[p]["old"] = p.detach().clone()
            p.add_(p.grad, alpha=float(self.param_groups[0]["rho"] / (norm + 1e-12)))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for g in self.param_groups:
            for p in g["params"]:
                if "old" in self.state[p]:
                    p.copy_(self.state[p]["old"])
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def step(self, closure=None):
        closure = torch.enable_grad()(closure)
        self.first_step(zero_grad=True)
        closure()
        self.second_step()


@scenario
def own_optimizer_sign():
    return pair(lambda w: SignSGD(w.parameters(), 0.01), steps=60)


@scenario
def own_subclass_of_adamw():
    return pair(lambda w: CentralAdamW(w.parameters(), 0.02))


@scenario
def own_wrapper_with_slow_weights():
    return pair(lambda w: Slow(torch.optim.SGD(w.parameters(), 0.1)))


@scenario
def own_wrapper_with_tensors_as_state():
    return pair(lambda w: SlowInState(torch.optim.SGD(w.parameters(), 0.1)))


@scenario
def sam_by_closure():
    def loop(model, optimizer, steps):
        for step in range(steps):
            def closure():
                loss = loss_of(model, step)
                loss.backward()
                return loss

            optimizer.zero_grad()
            closure()
            optimizer.step(closure)

    return pair(lambda w: SAM(w.parameters(), torch.optim.SGD, lr=0.1), loop=loop)


def two_steps(model, optimizer, steps):
    for step in range(steps):
        loss_of(model, step).backward()
        optimizer.first_step(zero_grad=True)
        loss_of(model, step).backward()
        optimizer.second_step(zero_grad=True)


@scenario
def sam_in_two_steps_of_the_outer():
    """The optimizer inside makes the steps, of which attach is not told."""
    wrapped = DDP(net())
    outer = SAM(wrapped.parameters(), torch.optim.SGD, lr=0.1)
    state = attach(wrapped, outer)
    try:
        two_steps(wrapped, outer, 20)
    except RuntimeError as error:
        return "refused", str(error)
    if same(wrapped.module):
        return "right", "identical"
    state.close()
    return ("refused", "warned at the end") if said("0 steps") else ("silent", "replicas differ")


@scenario
def sam_in_two_steps_of_the_inner():
    losses = []
    for sparse in (False, True):
        wrapped = DDP(net())
        before = measure(wrapped.module)
        outer = SAM(wrapped.parameters(), torch.optim.SGD, lr=0.1)
        state = attach(wrapped, outer.base_optimizer) if sparse else None
        two_steps(wrapped, outer, 40)
        losses.append(measure(wrapped.module))
    return learned(wrapped.module, before, *losses, 0.6)


@scenario
def gan():
    torch.manual_seed(0)
    makes, judges = DDP(nn.Linear(8, 4)), DDP(nn.Linear(4, 1))
    rows = [torch.optim.Adam(one.parameters(), 0.01, betas=(0.5, 0.9)) for one in (makes, judges)]
    states = [attach(makes, rows[0]), attach(judges, rows[1])]
    first = makes.module.weight.detach().clone()
    for step in range(20):
        x, y = batch(step)
        rows[1].zero_grad()
        (F.softplus(judges(makes(x).detach())) + F.softplus(-judges(y))).mean().backward()
        rows[1].step()
        rows[0].zero_grad()
        F.softplus(-judges(makes(x))).mean().backward()
        rows[0].step()
    moved = (makes.module.weight - first).abs().max().item()
    equal = [same(makes.module), same(judges.module)]
    return ("right" if all(equal) and moved > 0.01 else "silent"), f"{equal}, moved {moved:.2g}"


@scenario
def gan_with_means_and_discards():
    """D's gradients from G's passes are thrown away; its own loss is 0."""
    torch.manual_seed(0)
    makes, judges = DDP(nn.Linear(8, 4)), DDP(nn.Linear(4, 1))
    rows = [torch.optim.SGD(one.parameters(), 0.1) for one in (makes, judges)]
    states = [attach(w, o, reduce="gradient", discards=True) for w, o in zip((makes, judges), rows)]
    first = judges.module.weight.detach().clone()
    for step in range(20):
        x, _ = batch(step)
        rows[0].zero_grad()
        judges(makes(x)).mean().backward()
        rows[0].step()
        rows[1].zero_grad()
        (judges(makes(x).detach()) * 0).sum().backward()
        rows[1].step()
    moved = (judges.module.weight - first).abs().max().item()
    return ("right" if moved == 0 and same(makes.module) else "silent"), f"D moved {moved:.2g}"
