# SPDX-License-Identifier: MIT
"""Optimizers of torch.optim."""

from scene import *


OPTIMIZERS = {
    "sgd": ("SGD", dict(lr=0.1)),
    "sgd momentum": ("SGD", dict(lr=0.02, momentum=0.9)),
    "sgd nesterov": ("SGD", dict(lr=0.02, momentum=0.9, nesterov=True)),
    "sgd dampening": ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.5)),
    "sgd weight decay": ("SGD", dict(lr=0.1, weight_decay=1e-2)),
    "sgd foreach": ("SGD", dict(lr=0.1, foreach=True)),
    "sgd fused": ("SGD", dict(lr=0.1, fused=True)),
    "sgd momentum foreach": ("SGD", dict(lr=0.02, momentum=0.9, foreach=True)),
    "adam": ("Adam", dict(lr=0.02)),
    "adam weight decay": ("Adam", dict(lr=0.02, weight_decay=1e-2)),
    "adam decoupled": ("Adam", dict(lr=0.02, weight_decay=0.1, decoupled_weight_decay=True)),
    "adam amsgrad": ("Adam", dict(lr=0.02, amsgrad=True)),
    "adamw": ("AdamW", dict(lr=0.02)),
    "adamw amsgrad": ("AdamW", dict(lr=0.02, amsgrad=True)),
    "adamw fused": ("AdamW", dict(lr=0.02, fused=True)),
    "adamw foreach": ("AdamW", dict(lr=0.02, foreach=True)),
    "adamw capturable": ("AdamW", dict(lr=0.02, capturable=True)),
    "adamw tensor lr": ("AdamW", dict(lr=torch.tensor(0.02))),
    "adamw without beta1": ("AdamW", dict(lr=0.02, betas=(0.0, 0.99))),
    "nadam": ("NAdam", dict(lr=0.02)),
    "nadam decoupled": ("NAdam", dict(lr=0.02, weight_decay=0.1, decoupled_weight_decay=True)),
    "radam": ("RAdam", dict(lr=0.02)),
    "radam decoupled": ("RAdam", dict(lr=0.02, weight_decay=0.1, decoupled_weight_decay=True)),
    "rmsprop": ("RMSprop", dict(lr=0.01)),
    "rmsprop centered momentum": ("RMSprop", dict(lr=0.003, centered=True, momentum=0.9)),
    "adagrad": ("Adagrad", dict(lr=0.1)),
    "adagrad decaying": ("Adagrad", dict(lr=0.1, lr_decay=1e-2, initial_accumulator_value=0.1)),
    "adadelta": ("Adadelta", dict(lr=1.0, rho=0.5, eps=1e-4)),
    "adamax": ("Adamax", dict(lr=0.02)),
    "rprop": ("Rprop", dict(lr=0.01)),
    "lbfgs": ("LBFGS", dict(lr=0.1)),
    "asgd": ("ASGD", dict(lr=0.1)),
    "adafactor": ("Adafactor", dict(lr=0.05)),
}


def of_table(name, options):
    def run():
        if name in ("LBFGS", "ASGD"):
            wrapped = DDP(net())
            made = optimizer_of(name, **options)(wrapped)
            return refusal(lambda: attach(wrapped, made), "cannot be exchanged sparsely")
        return pair(optimizer_of(name, **options))

    return run


for word, row in OPTIMIZERS.items():
    SCENARIOS["optimizer " + word] = of_table(*row)


@scenario
def optimizer_sgd_maximize():
    def loop(model, optimizer, steps):
        for step in range(steps):
            optimizer.zero_grad()
            (-loss_of(model, step)).backward()
            optimizer.step()

    return pair(optimizer_of("SGD", lr=0.1, maximize=True), loop=loop)


@scenario
def optimizer_muon():
    class Both:
        def __init__(self, wrapped):
            if not hasattr(torch.optim, "Muon"):
                raise Absent("no torch.optim.Muon")
            wide = [p for p in wrapped.parameters() if p.ndim == 2]
            thin = [p for p in wrapped.parameters() if p.ndim != 2]
            self.rows = [torch.optim.Muon(wide, 0.05), torch.optim.AdamW(thin, 0.02)]

    return several(lambda wrapped: Both(wrapped).rows)


@scenario
def two_optimizers():
    return several(lambda w: [torch.optim.SGD(w.module[0].parameters(), 0.1),
                              torch.optim.AdamW(w.module[2].parameters(), 0.02)])


@scenario
def two_optimizers_in_other_order_on_a_rank():
    """Each exchange has its own communicator."""
    wrapped = DDP(net())
    rows = [torch.optim.AdamW(wrapped.module[0].parameters(), 0.02),
            torch.optim.AdamW(wrapped.module[2].parameters(), 0.02)]
    state = attach(wrapped, rows)
    before = measure(wrapped.module)
    for step in range(20):
        for one in rows:
            one.zero_grad()
        loss_of(wrapped, step).backward()
        for one in rows if dist.get_rank() == 0 else rows[::-1]:
            one.step()
    return learned(wrapped.module, before, before * 0.9, measure(wrapped.module), 0.6)


@scenario
def one_of_two_optimizers_given():
    wrapped = DDP(net())
    given = torch.optim.AdamW(wrapped.module[0].parameters(), 0.02)
    other = torch.optim.AdamW(wrapped.module[2].parameters(), 0.02)
    state = attach(wrapped, given)
    for step in range(20):
        given.zero_grad(), other.zero_grad()
        loss_of(wrapped, step).backward()
        given.step(), other.step()
    if same(wrapped.module) and not said("harm adaptive"):
        return "silent", "means for the other, and no warning"
    return ("refused", "warned") if same(wrapped.module) else ("silent", "replicas differ")


@scenario
def optimizer_sparseadam():
    def make():
        model = nn.Sequential(nn.EmbeddingBag(20, 4, mode="sum", sparse=True))
        wrapped = DDP(model)
        made = torch.optim.SparseAdam(wrapped.parameters(), 0.01)
        attach(wrapped, made)
        wrapped(torch.arange(8).view(2, 4)).sum().backward()
        made.step()

    return refusal(make, "sparse")
