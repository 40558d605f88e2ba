# SPDX-License-Identifier: MIT
#
# test: slow alone
"""The optimizer for loops without DistributedDataParallel, over means of gradients."""

import copy

import pytest
import torch
import torch.distributed as dist

import ranks
from load import stretch
from ranks import told
from torch_models import Balance, Slow, Weighted, batch, bits, network, train, whole_numbers
from saved import own

import tamis
import tamis.torch


# ------------------------------------------------------------------------------ run by the ranks


def wrap(model, rate=0.1, inner=None, **options):
    options = dict(dict(density=0.05, reduce="gradient"), **options)
    inner = inner or torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    return tamis.torch.DistributedOptimizer(inner, model, **options)


def case_trains_as_ddp():
    """Gives the bits of DDP, with and without overlap, channels_last or not."""
    found = []
    for kind in ("ddp", "overlap", "after"):
        model = network()
        if kind == "ddp":
            net = torch.nn.parallel.DistributedDataParallel(model)
            state = tamis.torch.attach(net, density=0.05, bucket_length=2500)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        else:
            net = model
            optimizer = wrap(model, overlap=kind == "overlap", bucket_length=2500)
            tamis.torch.broadcast_parameters(model, optimizer.tamis.comm)
            state = optimizer.tamis
        train(net, optimizer, range(8))
        found.append(bits(model))
        state.close()
    return found


def case_channels_last():
    """Parameters and gradients in another order of memory."""
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(3)
        model = torch.nn.Conv2d(3, 8, 3).to(memory_format=memory_format)
        optimizer = wrap(model, density=1.0)
        x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(dist.get_rank()))
        for _ in range(2):
            optimizer.zero_grad()
            model(x.contiguous(memory_format=memory_format)).square().sum().backward()
            optimizer.step()
        shapes = {n: t.shape for n, t in own(optimizer.tamis.state_dict())["residual"].items()}
        assert shapes == {n: p.shape for n, p in model.named_parameters()}
        found.append([p.detach().clone() for p in model.parameters()])
        optimizer.close()
    return [(a - b).abs().max().item() for a, b in zip(*found)]


def case_conservation_bfloat16():
    """Two dtypes, micro-batches, a parameter without a gradient in some steps, clipping."""
    model = Weighted(dtypes=(torch.float32, torch.bfloat16))
    optimizer = wrap(model, rate=0.0, inner=torch.optim.SGD(model.parameters(), lr=0.0))
    balance = Balance(model)
    for step in range(6):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        factors = whole_numbers(model, step, dist.get_rank())
        if step % 2:
            factors[1].zero_()
        balance.give(factors)
        loss = model(factors)
        if step % 2:  # gradients of the first, then of the others
            with optimizer.no_sync():
                (model.values[0] * factors[0]).sum().backward()
            rest = zip(model.values[2:], factors[2:])
            loss = sum((v * f.to(v.dtype)).sum().float() for v, f in rest)
        loss.backward()
        optimizer.synchronize()
        balance.take()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    balance = balance.balance(optimizer.tamis)
    dtypes = [str(group.dtype) for group in optimizer.tamis.groups]
    optimizer.close()
    return balance, dtypes


def case_nonfinite():
    model = Weighted()
    optimizer = wrap(model)
    told = []
    for step in range(3):
        optimizer.zero_grad()
        factors = whole_numbers(model, step, dist.get_rank())
        if step == 1 and dist.get_rank() == 1:
            factors[2][0, 0] = float("inf")
        try:
            model(factors).backward()
            optimizer.step()
            told.append("stepped")
        except tamis.Error as error:
            told.append(error.status)
    optimizer.close()
    return told


def case_scheduler():
    """Schedulers and everything else see the wrapped optimizer."""
    model = network()
    optimizer = wrap(model)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    rates = []
    for step in range(3):
        train(model, optimizer, [step])
        scheduler.step()
        rates.append(optimizer.optimizer.param_groups[0]["lr"])
    same = optimizer.param_groups is optimizer.optimizer.param_groups
    same = same and optimizer.state is optimizer.optimizer.state
    moments = len(optimizer.state)
    optimizer.close()
    return isinstance(optimizer, torch.optim.Optimizer), rates, same, moments


def case_resume():
    """state_dict and load_state_dict of everything, in the middle of a run."""
    found = []
    for resume in (False, True):
        model = network()
        optimizer = wrap(model)
        train(model, optimizer, range(4))
        if resume:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            optimizer.close()
            model = network(96)
            optimizer = wrap(model)
            train(model, optimizer, range(2))
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        train(model, optimizer, range(4, 8))
        found.append(bits(model))
        optimizer.close()
    return found


def case_misuse():
    model = network()
    optimizer = wrap(model, timeout_s=stretch(5))
    rows = {
        "closure": told(lambda: optimizer.step(lambda: 0.0)),
        "group": told(lambda: optimizer.add_param_group({"params": []})),
        "copy": told(lambda: copy.deepcopy(optimizer)),
        "no residual": told(lambda: optimizer.load_state_dict(optimizer.optimizer.state_dict())),
        "optimizer": told(lambda: tamis.torch.DistributedOptimizer(3, model)),
        "unnamed": told(lambda: wrap(torch.nn.Sequential(model, torch.nn.Linear(5, 5))[0:1],
                                     inner=torch.optim.SGD(
                                         [torch.nn.Parameter(torch.ones(3))], lr=1.0))),
    }
    train(model, optimizer, [0])
    x, y = batch(1, dist.get_rank())
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    rows["zero_grad"] = told(optimizer.zero_grad)
    rows["twice"] = told(loss.backward)
    rows["after"] = told(optimizer.step)
    optimizer.close()

    optimizer = wrap(model, timeout_s=stretch(5))
    train(model, optimizer, [0])
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward(retain_graph=True)
    optimizer.synchronize()
    rows["synchronized"] = told(loss.backward)
    optimizer.close()
    return rows


def case_sparse_gradient():
    table = torch.nn.Embedding(5, 2, sparse=True)
    rows = [("table", table.weight)]
    inner = torch.optim.SGD(table.parameters(), lr=0.1)
    optimizer = tamis.torch.DistributedOptimizer(
        inner, rows, reduce="gradient", timeout_s=stretch(5)
    )
    return told(lambda: (table(torch.tensor([1, 2])).sum().backward(), optimizer.step()))


class Layers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = Slow.apply(layer(x), 0.03)
        return x


def case_overlap_hides():
    import time

    exposed = []
    for overlap in (False, True):
        gather = tamis.torch._comm._Gather(dist.new_group(backend="gloo"), True)

        def allgather(send, recv):
            time.sleep(0.008)
            gather(send, recv)

        comm = tamis.Comm.callback(dist.get_rank(), dist.get_world_size(), allgather, 30000)
        model = Layers()
        optimizer = wrap(model, comm=comm, overlap=overlap, bucket_length=64 * 65)
        times = [0.0]
        for step in range(8):
            optimizer.zero_grad()
            (1e-3 * model(torch.ones(2, 64)).sum()).backward()
            optimizer.step()
            times.append(optimizer.tamis.stats()["total"]["seconds"]["exposed"])
        exposed.append(min(after - before for before, after in zip(times, times[1:])))
        optimizer.close()
    return exposed


def case_scaler():
    """torch.amp.GradScaler: a bad step is skipped on all ranks, and the scale goes down."""
    model = Weighted()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = wrap(model, inner=inner, scaler=scaler)
    given = [torch.zeros(value.shape, dtype=torch.float64) for value in model.values]
    scales = []
    for step in range(6):
        optimizer.zero_grad()
        factors = whole_numbers(model, step, dist.get_rank())
        if step == 3 and dist.get_rank() == 1:
            factors[0][:] = float("inf")
        else:
            for sum_, factor in zip(given, factors):
                sum_ += factor
        if step == 3 and dist.get_rank() == 1:
            for sum_, factor in zip(given[1:], factors[1:]):
                sum_ += factor
        scaler.scale(model(factors)).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    held = own(optimizer.tamis.state_dict())["residual"]
    rows = []
    for name, value in model.named_parameters():  # given = nranks * applied + residual
        index = int(name.split(".")[1])
        sums = torch.stack([given[index], held[name].double()])
        dist.all_reduce(sums)
        applied = -value.detach().double() * dist.get_world_size()
        rows.append((sums[0] - applied - sums[1]).abs().max().item())
    same = tamis.torch.replicas_identical(model)
    optimizer.close()
    return scales, rows, same


# ------------------------------------------------------------------------------------- the tests

CASES = [name for name in dir() if name.startswith("case_")]
if not hasattr(torch, "amp") or not hasattr(torch.amp, "GradScaler"):
    CASES.remove("case_scaler")


@pytest.fixture(scope="module", params=["env", "mpi"])
def results(request):
    if request.param == "mpi" and not tamis.mpi_module():
        pytest.skip("this build has no MPI")
    names = CASES if request.param == "env" else ["case_trains_as_ddp", "case_nonfinite"]
    return dict(ranks.run(__file__, names, launcher=request.param), names=names)


def get(results, name):
    if name not in results["names"]:
        pytest.skip("runs under the other launcher, or needs a newer torch")
    return ranks.values(results, name)


def test_it_trains_as_ddp_does(results):
    rows = get(results, "case_trains_as_ddp")
    assert len({found for row in rows for found in row}) == 1


def test_channels_last_is_exchanged_in_place(results):
    for differences in get(results, "case_channels_last"):
        assert max(differences) < 1e-5


def test_no_gradient_is_lost(results):
    for (difference, given, applied, held), dtypes in get(results, "case_conservation_bfloat16"):
        assert difference == 0
        assert given > 0 and applied > 0 and held > 0
        assert dtypes == ["torch.float32", "torch.bfloat16"]


def test_a_step_with_infinity_is_raised_and_the_next_one_works(results):
    for told_ in get(results, "case_nonfinite"):
        assert told_ == ["stepped", "TAMIS_E_NONFINITE", "stepped"]


def test_schedulers_see_the_wrapped_optimizer(results):
    for is_optimizer, rates, same, moments in get(results, "case_scheduler"):
        assert is_optimizer and same
        assert rates == [0.05, 0.025, 0.0125]
        assert moments == 6


def test_a_resumed_run_ends_with_the_same_bits(results):
    for whole, resumed in get(results, "case_resume"):
        assert whole == resumed


def test_misuse_is_told(results):
    words = {
        "closure": ("ValueError", "before step()"),
        "group": ("RuntimeError", "cannot be added"),
        "copy": ("TypeError", "state_dict"),
        "no residual": ("ValueError", "no residual"),
        "optimizer": ("TypeError", "not a torch.optim.Optimizer"),
        "unnamed": ("ValueError", "not named"),
        "zero_grad": ("RuntimeError", "between backward() and step()"),
        "twice": ("RuntimeError", "no_sync"),
        "after": ("RuntimeError", "no_sync"),
        "synchronized": ("RuntimeError", "call step() between"),
    }
    for rows in get(results, "case_misuse"):
        for key, (kind, word) in words.items():
            assert rows[key][0] == kind and word in rows[key][1], (key, rows[key])


def test_sparse_gradients_are_refused(results):
    for kind, sentence in get(results, "case_sparse_gradient"):
        assert "sparse=False" in sentence, (kind, sentence)


def test_overlap_hides_the_exchange(results):
    for without, with_ in get(results, "case_overlap_hides"):
        print(f"exposed: {1e3 * without:.1f} ms without overlap, {1e3 * with_:.1f} ms with it")
        assert with_ < 0.6 * without


def test_a_grad_scaler_skips_the_step_on_all_ranks_and_loses_nothing(results):
    for scales, differences, same in get(results, "case_scaler"):
        assert scales == [1024, 2048, 2048, 1024, 1024, 2048]
        assert same
        assert max(differences[1:]) == 0  # of the first one, rank 1 lost the bad entries
