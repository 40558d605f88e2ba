# SPDX-License-Identifier: MIT
#
# test: slow alone
"""The DDP hook: nothing is lost, nothing is copied, and errors reach backward()."""

import time

import pytest
import torch
import torch.distributed as dist

import ranks
from torch_models import (
    SHAPES, Balance, Slow, Weighted, batch, ddp, network, residuals, whole_numbers,
)

import tamis
import tamis.torch


# ------------------------------------------------------------------------------ run by the ranks


def conserve(steps=6, dtypes=(torch.float32,), attach=None, **options):
    """Steps with whole numbers; what DDP's buckets were, and whether anything was lost."""
    model = Weighted(dtypes=dtypes)
    net = ddp(model, **options)
    state = tamis.torch.SparseState(net, density=0.02, **(attach or {}))
    layouts = [[] for _ in range(steps)]

    def hook(state, bucket):
        row = bucket.index(), len(bucket.parameters()), bucket.buffer().numel()
        layouts[state.steps].append(row)
        return tamis.torch.sparse_hook(state, bucket)

    net.register_comm_hook(state, hook)
    balance = Balance(model)
    for step in range(steps):
        net.zero_grad()
        factors = whole_numbers(model, step, dist.get_rank())
        balance.give(factors)
        net(factors).backward()
        balance.take()
    balance = balance.balance(state)
    state.close()
    return balance, layouts[0], layouts[-1]


def case_conservation():
    return conserve()


def case_conservation_as_view():
    return conserve(gradient_as_bucket_view=True)


def case_conservation_static_graph():
    return conserve(static_graph=True)


def case_conservation_find_unused():
    return conserve(find_unused_parameters=True)


def case_conservation_two_dtypes():
    return conserve(dtypes=(torch.float32, torch.float16))


def case_conservation_buckets():
    return conserve(attach=dict(bucket_length=2000))


def case_nothing_is_copied():
    """Addresses: DDP gets the tensor that it gave, and gradients may lie in it."""
    net = ddp(network(), gradient_as_bucket_view=True)
    state = tamis.torch.SparseState(net, density=0.05)
    seen = []

    def hook(state, bucket):
        future = tamis.torch.sparse_hook(state, bucket)
        seen.append((bucket.buffer(), future))
        return future

    net.register_comm_hook(state, hook)
    for step in range(3):
        x, y = batch(step, dist.get_rank())
        del seen[:]
        torch.nn.functional.cross_entropy(net(x), y).backward()
    same = [buffer.data_ptr() == future.value().data_ptr() for buffer, future in seen]
    spans = [(b.data_ptr(), b.data_ptr() + b.numel() * b.element_size()) for b, _ in seen]
    inside = [
        any(begin <= p.grad.data_ptr() < end for begin, end in spans) for p in net.parameters()
    ]
    placed = [address for address, _ in state._cache.values()]
    own = sorted(placed) == sorted(buffer.data_ptr() for buffer, _ in seen)
    state.close()
    return same, inside, own


def case_no_sync():
    """Two micro-batches under no_sync are as one backward pass of their sum."""
    results = []
    for split in (False, True):
        model = Weighted()
        net = ddp(model)
        calls = []
        state = tamis.torch.SparseState(net, density=0.02)

        def hook(state, bucket):
            calls.append(bucket.index())
            return tamis.torch.sparse_hook(state, bucket)

        net.register_comm_hook(state, hook)
        for step in range(3):
            net.zero_grad(set_to_none=True)
            parts = [whole_numbers(model, 10 * step + i, dist.get_rank()) for i in range(3)]
            if split:
                with net.no_sync():
                    net(parts[0]).backward()
                    net(parts[1]).backward()
                before = len(calls)
                net(parts[2]).backward()
            else:
                before = len(calls)
                net([a + b + c for a, b, c in zip(*parts)]).backward()
            assert len(calls) > before
        results.append(
            [value.grad.clone() for value in model.values] + residuals(state, model)
        )
        count = len(calls)
        state.close()
    return all(torch.equal(a, b) for a, b in zip(*results)), count


def case_nonfinite(nonfinite="error", dtypes=(torch.float32,)):
    """NaN on one rank in step 2: said on all, nothing applied, and the next steps work."""
    model = Weighted(dtypes=dtypes)
    net = ddp(model)
    state = tamis.torch.attach(net, density=0.02, nonfinite=nonfinite)
    balance = Balance(model)
    told = []
    for step in range(5):
        net.zero_grad(set_to_none=True)
        factors = whole_numbers(model, step, dist.get_rank())
        if step == 2 and dist.get_rank() == dist.get_world_size() - 1:
            factors[0][1, 1] = float("nan")
        try:
            net(factors).backward()
        except tamis.Error as error:
            told.append((step, error.status, error.lost, str(error)))
        zero = all(not value.grad.any() for value in model.values)
        told.append((step, zero))
        balance.take()
        factors[0][1, 1] = torch.nan_to_num(factors[0][1, 1])
        balance.give(factors)
    state.check()
    # A bad entry leaves with what had been kept of it, so its place is left out of the balance.
    given, applied = [list(x) for x in (balance.given, balance.applied)]
    held = residuals(state, model)
    for rows in (given, applied, held):
        rows[0] = rows[0].double().clone()
        rows[0][1, 1] = 0
    flats = [torch.cat([t.double().reshape(-1) for t in rows]) for rows in (given, applied, held)]
    for flat in flats:
        dist.all_reduce(flat)
    difference = (flats[0] - flats[1] - flats[2]).abs().max().item()
    lost = state.stats()["total"]["lost_steps"]
    state.close()
    return told, lost, difference


def case_nonfinite_skip():
    return case_nonfinite("skip")


def case_nonfinite_two_dtypes():
    return case_nonfinite("error", (torch.float32, torch.float16))


def case_warmup_is_dense():
    model = Weighted()
    net = ddp(model)
    state = tamis.torch.attach(net, density=0.02, warmup=2)
    means, norms = [], []
    for step in range(4):
        net.zero_grad()
        factors = whole_numbers(model, step, dist.get_rank())
        net(factors).backward()
        mean = [factor.clone() for factor in factors]
        for factor in mean:
            dist.all_reduce(factor)
        mean = [factor / dist.get_world_size() for factor in mean]
        means.append(all(torch.equal(v.grad, m) for v, m in zip(model.values, mean)))
        norms.append(state.residual_norm())
    state.close()
    return means, norms


def case_join():
    """Ranks with different numbers of batches, in DDP's Join."""
    net = ddp(network())
    state = tamis.torch.attach(net, density=0.05)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with net.join():
        for step in range(3 + 2 * dist.get_rank()):
            x, y = batch(step, dist.get_rank())
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    same = tamis.torch.replicas_identical(net)
    steps = state.stats()["total"]["steps"]
    state.close()
    return same, steps


def case_hook_cost():
    """Microseconds of Python per bucket: a hook call that begins and ends nothing in C."""
    model = Weighted(shapes=[(64,)] * 40)
    net = ddp(model, bucket_cap_mb=0.0005)
    state = tamis.torch.SparseState(net, overlap=False)
    times = []

    def hook(state, bucket):
        begin = time.perf_counter()
        future = tamis.torch.sparse_hook(state, bucket)
        end = time.perf_counter()
        if not bucket.is_last():
            times.append(end - begin)
        return future

    net.register_comm_hook(state, hook)
    factors = whole_numbers(model, 0, 0)
    for step in range(60):
        if step == 5:
            del times[:]
        net(factors).backward()
    state.close()
    times.sort()
    return [len(times), *(1e6 * times[int(len(times) * q)] for q in (0.1, 0.5, 0.9))]


def slow_comm(delay_s):
    """torch's all-gather over a link whose every message takes longer."""
    gather = tamis.torch._comm._Gather(dist.new_group(backend="gloo"), True)

    def allgather(send, recv):
        time.sleep(delay_s)
        gather(send, recv)

    return tamis.Comm.callback(dist.get_rank(), dist.get_world_size(), allgather, 30000)


class Layers(torch.nn.Module):
    """Layers of one size, whose backward passes take a while."""

    def __init__(self, number, seconds):
        super().__init__()
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(number))
        self.seconds = seconds

    def forward(self, x):
        for layer in self.layers:
            x = Slow.apply(layer(x), self.seconds)
        return x


def case_overlap_hides():
    """Exposed seconds of the best step with and without overlap, and whether the bits are the
    same."""
    exposed, grads = [], []
    for overlap in (False, True):
        net = ddp(Layers(6, 0.03), bucket_cap_mb=0.01)
        state = tamis.torch.attach(
            net, density=0.05, overlap=overlap, bucket_length=64 * 65, comm=slow_comm(0.008)
        )
        times = [0.0]
        for step in range(9):
            net.zero_grad()
            net(torch.ones(2, 64) * (step + dist.get_rank() + 1)).sum().backward()
            times.append(state.stats()["total"]["seconds"]["exposed"])
        # DDP has one bucket in the first step
        exposed.append(min(after - before for before, after in zip(times[1:], times[2:])))
        grads.append([p.grad.clone() for p in net.parameters()])
        state.close()
    return exposed, all(torch.equal(a, b) for a, b in zip(*grads))


# ------------------------------------------------------------------------------------- the tests

CASES = [name for name in dir() if name.startswith("case_")]


@pytest.fixture(scope="module", params=["env", "mpi"])
def results(request):
    names = [name for name in CASES if request.param == "env" or name in ON_MPI]
    if request.param == "mpi" and not tamis.mpi_module():
        pytest.skip("this build has no MPI")
    results = ranks.run(__file__, names, nranks=2, launcher=request.param)
    results["names"] = names
    return results


ON_MPI = (
    "case_conservation", "case_conservation_two_dtypes", "case_nonfinite", "case_overlap_hides",
    "case_warmup_is_dense", "case_hook_cost",
)


def get(results, name):
    if name not in results["names"]:
        pytest.skip("runs under the other launcher")
    return ranks.values(results, name)


def test_ranks_end_well(results):
    assert set(results["statuses"]) == {0}, results["output"]


@pytest.mark.parametrize(
    "variant", ["", "_as_view", "_static_graph", "_find_unused", "_two_dtypes", "_buckets"]
)
def test_no_gradient_is_lost_though_ddp_rebuilds_its_buckets(results, variant):
    for balance, first, last in get(results, "case_conservation" + variant):
        difference, given, applied, held = balance
        assert difference == 0
        assert given > 0 and applied > 0 and held > 0
        if variant not in ("_static_graph", "_find_unused"):  # these keep their buckets
            assert len(last) > len(first)
        assert sum(count for _, count, _ in last) == len(SHAPES)


def test_ddp_gets_its_own_memory_back(results):
    for same, inside, own in get(results, "case_nothing_is_copied"):
        assert len(same) > 1 and all(same)
        assert all(inside)
        assert own


def test_micro_batches_under_no_sync_are_one_step(results):
    for same, calls in get(results, "case_no_sync"):
        assert same
        assert calls > 0


@pytest.mark.parametrize("variant", ["", "_two_dtypes"])
def test_a_step_with_nan_is_raised_on_all_ranks_and_the_next_one_works(results, variant):
    for told, lost, difference in get(results, "case_nonfinite" + variant):
        errors = [row for row in told if len(row) > 2]
        assert [row[:3] for row in errors] == [(2, "TAMIS_E_NONFINITE", "step")]
        assert [zero for step, zero in (row for row in told if len(row) == 2)] == [
            False, False, True, False, False,
        ]
        assert lost == 1
        assert difference == 0


def test_a_step_with_nan_can_be_skipped(results):
    for told, lost, difference in get(results, "case_nonfinite_skip"):
        assert told == [(0, False), (1, False), (2, True), (3, False), (4, False)]
        assert lost == 1
        assert difference == 0


def test_warmup_exchanges_whole_gradients_and_keeps_no_residual(results):
    for means, norms in get(results, "case_warmup_is_dense"):
        assert means == [True, True, False, False]
        assert norms[:2] == [0, 0] and norms[2] > 0 and norms[3] > 0


def test_ranks_may_run_out_of_inputs_in_join(results):
    for same, steps in get(results, "case_join"):
        assert same
        assert steps == 5


def test_the_hook_takes_few_microseconds_of_python(results):
    for count, low, median, high in get(results, "case_hook_cost"):
        print(f"hook: {count} calls, {low:.1f} {median:.1f} {high:.1f} us (10 %, median, 90 %)")
        assert count > 500
        assert low < 60  # 20 are asked for on a machine that does nothing else


def test_overlap_hides_the_exchange_and_keeps_the_bits(results):
    for (without, with_), same in get(results, "case_overlap_hides"):
        print(f"exposed: {1e3 * without:.1f} ms without overlap, {1e3 * with_:.1f} ms with it")
        assert same
        assert with_ < 0.6 * without
