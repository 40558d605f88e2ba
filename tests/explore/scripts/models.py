# SPDX-License-Identifier: MIT
"""Models."""

from scene import *


@scenario
def model_compiled():
    if not hasattr(torch, "compile"):
        raise Absent("no torch.compile")

    def loop(model, optimizer, steps):
        fast = torch.compile(model, backend="eager")
        plain(fast, optimizer, steps)

    return pair(adamw(), loop=loop)


@scenario
def model_compiled_is_attached():
    if not hasattr(torch, "compile"):
        raise Absent("no torch.compile")
    wrapped = DDP(net())
    fast = torch.compile(wrapped, backend="eager")
    made = adamw()(fast)
    return refusal(lambda: attach(fast, made), "DistributedDataParallel")


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return self.inner[2](checkpoint(self.inner[:2], x, use_reentrant=False))


@scenario
def model_with_activation_checkpoints():
    return pair(adamw(), model=Checkpointed)


@scenario
def ddp_static_graph():
    return pair(sgd(), ddp=dict(static_graph=True), reduce="gradient")


@scenario
def ddp_bucket_view():
    return pair(adamw(), ddp=dict(gradient_as_bucket_view=True))


@scenario
def ddp_bucket_view_means():
    return pair(sgd(), ddp=dict(gradient_as_bucket_view=True), reduce="gradient")


@scenario
def ddp_small_buckets():
    return pair(sgd(), ddp=dict(bucket_cap_mb=0.0001), reduce="gradient")


class Halves(nn.Module):
    """Each rank may use another branch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.branches = nn.ModuleList([net(1), net(2), net(3)])
        self.at = 0

    def forward(self, x):
        return self.branches[self.at](x)


@scenario
def unused_parameters_by_rank():
    def loop(model, optimizer, steps):
        for step in range(steps):
            model.module.at = (step + dist.get_rank()) % 2
            plain(model, optimizer, 1, step)
        model.module.at = 0

    return pair(adamw(weight_decay=0.1), model=Halves, loop=loop, steps=60,
                ddp=dict(find_unused_parameters=True))


@scenario
def unused_parameters_by_rank_means():
    def loop(model, optimizer, steps):
        for step in range(steps):
            model.module.at = (step + dist.get_rank()) % 2
            plain(model, optimizer, 1, step)
        model.module.at = 0

    return pair(sgd(), model=Halves, loop=loop, steps=60, reduce="gradient",
                ddp=dict(find_unused_parameters=True))


@scenario
def unused_parameters_by_micro_batch():
    """A branch that one rank used within no_sync(), and none in the last pass."""
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            with model.no_sync():
                model.module.at = dist.get_rank()
                loss_of(model, 2 * step).backward()
            model.module.at = 2
            loss_of(model, 2 * step + 1).backward()
            optimizer.step()
        if loop.state is None and not same(model.module):
            raise Absent("replicas of the dense run differ")

    return pair(adamw(weight_decay=0.1), model=Halves, loop=loop, share=0.5,
                ddp=dict(find_unused_parameters=True))


@scenario
def branches_without_ddps_forward():
    """ddp.module(x): no hooks of DDP, gradients that a rank alone has."""
    wrapped = DDP(Halves())
    made = adamw(weight_decay=0.1)(wrapped)
    before, state = measure(wrapped.module), attach(wrapped, made)
    for step in range(20):
        wrapped.module.at = dist.get_rank()
        plain(wrapped.module, made, 1, step)
    wrapped.module.at = 0
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 0.4)


@scenario
def autocast_bfloat16():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, step)
            loss.backward()
            optimizer.step()

    return pair(adamw(), loop=loop)


@scenario
def parameters_bfloat16():
    wrapped = ddp_of(net().bfloat16())
    made = adamw()(wrapped)
    return refusal(lambda: attach(wrapped, made), "keep parameters in float32")


@scenario
def parameters_bfloat16_means():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            x, y = batch(step)
            F.mse_loss(model(x.bfloat16()).float(), y).backward()
            optimizer.step()

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net().bfloat16()

        def forward(self, x):
            return self.inner(x.bfloat16())

    return pair(sgd(), model=Cast, loop=plain, reduce="gradient", share=0.5)


@scenario
def parameters_float64():
    wrapped = ddp_of(net().double())
    made = adamw()(wrapped)
    return refusal(lambda: attach(wrapped, made), "float64")


@scenario
def parameters_complex():
    model = nn.Module()
    model.w = nn.Parameter(torch.zeros(4, dtype=torch.complex64))
    model.forward = lambda x: (model.w * x).abs().sum()
    wrapped = ddp_of(model)
    made = adamw()(wrapped)
    return refusal(lambda: attach(wrapped, made), "complex")


class Embedded(nn.Module):
    def __init__(self, sparse=False):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.rest = nn.Embedding(32, 8, sparse=sparse), net()

    def forward(self, x):
        return self.rest(x + self.table((x[:, 0].abs() * 10).long() % 32))


@scenario
def embedding_dense():
    return pair(adamw(), model=Embedded)


@scenario
def embedding_sparse():
    wrapped = DDP(Embedded(True))
    made = sgd()(wrapped)

    def run():
        attach(wrapped, made)
        plain(wrapped, made, 2)

    return refusal(run, "sparse")
