# SPDX-License-Identifier: MIT
"""Models, continued."""

from scene import *


@scenario
def weights_tied():
    return pair(adamw(), model=Tied)


@scenario
def batch_norm():
    def model():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))

    return pair(adamw(), model=model)


@scenario
def batch_norm_synchronous():
    def model():
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
        return nn.SyncBatchNorm.convert_sync_batchnorm(made)

    return pair(adamw(), model=model)


@scenario
def weight_norm():
    def model():
        made = net()
        normed = getattr(nn.utils.parametrizations, "weight_norm", nn.utils.weight_norm)
        normed(made[0])
        return made

    return pair(adamw(), model=model)


@scenario
def spectral_norm():
    def model():
        made = net()
        nn.utils.parametrizations.spectral_norm(made[0])
        return made

    return pair(adamw(), model=model)


@scenario
def orthogonal():
    def model():
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
        nn.utils.parametrizations.orthogonal(made[0])
        return made

    return pair(adamw(), model=model)


@scenario
def parametrized_after_attach():
    def loop(model, optimizer, steps):
        plain(model, optimizer, 2)
        nn.utils.parametrizations.spectral_norm(model.module[0])
        plain(model, optimizer, steps, 2)

    return pair(adamw(), loop=loop)


@scenario
def pruned_after_attach():
    """torch.nn.utils.prune renames a parameter, and masks it."""
    import torch.nn.utils.prune as prune

    wrapped, made, state = run_of()
    plain(wrapped, made, 2)
    prune.l1_unstructured(wrapped.module[0], "weight", 0.5)
    before = measure(wrapped.module)

    def run():
        plain(wrapped, made, 40, 2)

    try:
        run()
    except (RuntimeError, ValueError) as error:
        return "refused", str(error)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 0.6)


class Lora(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = net()
        self.base.requires_grad_(False)
        self.a = nn.Parameter(0.1 * torch.randn(2, 8))
        self.b = nn.Parameter(torch.zeros(4, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


@scenario
def lora():
    def make(wrapped):
        return torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], 0.05)

    return pair(make, model=Lora)


@scenario
def lora_all_parameters_to_the_optimizer():
    return pair(adamw(0.05, weight_decay=0.1), model=Lora)


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.ParameterList([nn.Parameter(0.3 * torch.randn(8, 2)) for _ in range(2)])
        self.none = nn.Parameter(torch.empty(0))
        self.scale, self.shift = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(0.0))

    def forward(self, x):
        return (x @ torch.cat(list(self.rows), 1)) * self.scale + self.shift + self.none.sum()


@scenario
def parameters_in_lists_empty_and_scalar():
    return pair(adamw(), model=Listed)


@scenario
def parameters_in_lists_empty_and_scalar_means():
    return pair(sgd(), model=Listed, reduce="gradient")


@scenario
def channels_last():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.rest = nn.Conv2d(2, 4, 2), nn.Linear(4, 4)
            self.to(memory_format=torch.channels_last)

        def forward(self, x):
            x = x.view(-1, 2, 2, 2).contiguous(memory_format=torch.channels_last)
            return self.rest(torch.tanh(self.conv(x)).flatten(1))

    return pair(adamw(), model=Conv)


@scenario
def channels_last_after_attach():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.conv, self.rest = nn.Conv2d(2, 4, 2), nn.Linear(4, 4)

        def forward(self, x):
            return self.rest(torch.tanh(self.conv(x.view(-1, 2, 2, 2))).flatten(1))

    wrapped, made, state = run_of(model=Conv())
    before = measure(wrapped.module)
    plain(wrapped, made, 5)
    wrapped.module.to(memory_format=torch.channels_last)
    try:
        plain(wrapped, made, 40, 5)
    except (RuntimeError, ValueError) as error:
        return "refused", str(error)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 0.6)


@scenario
def recurrent():
    class Lstm(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner, self.out = nn.LSTM(2, 8, batch_first=True), nn.Linear(8, 4)

        def forward(self, x):
            return self.out(self.inner(x.view(-1, 4, 2))[0][:, -1])

    return pair(adamw(), model=Lstm, steps=60, share=0.5)


@scenario
def transformer_layer():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
            self.out = nn.Linear(8, 4)

        def forward(self, x):
            return self.out(self.inner(x[:, None]))[:, 0]

    return pair(adamw(), model=Attends)


@scenario
def seeds_differ_by_rank():
    """DDP gives all ranks the parameters of rank 0."""
    wrapped, made, state = run_of(model=net(dist.get_rank()))
    before = measure(wrapped.module)
    plain(wrapped, made, 40)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def seeds_differ_by_rank_without_ddp():
    model = net(dist.get_rank())
    made = tamis.torch.DistributedOptimizer(adamw()(model), model, density=0.2, timeout_s=20)
    return refusal(lambda: plain(model, made, 2), "broadcast_parameters")
