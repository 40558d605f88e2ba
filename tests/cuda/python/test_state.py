# SPDX-License-Identifier: MIT
"""tamis.torch on CUDA tensors: the figures of a state, what it refuses on a device, and buckets of
a hook that change."""

import time

import pytest
import stand_in
import tamis
import tamis.torch
import torch
from counter import Counter
from rig import Bucket, Model, NAN, RANKS, cuda, gradients, here, host, run, same, weights
from stand_in import empty, parameter, put
from tamis.energy import Meter
from tamis.torch import _comm, _plot
from tamis.torch._hook import sparse_hook

LENGTH = 40 * 50 + 50 + 30 * 30
KINDS = [torch.float32, torch.bfloat16, torch.float32]


@pytest.fixture(autouse=True)
def early(monkeypatch):
    monkeypatch.setattr(stand_in, "LATE_S", 0.002)


def made(rank, kinds=3 * [torch.float32], **options):
    """A state, and its parameters."""
    rows = [(n, parameter(v.to(kind), rank)) for (n, v), kind in zip(weights(), kinds)]
    options = dict(dict(density=0.1, transport="nccl", timeout_s=20), **options)
    return tamis.torch.SparseState(rows, **options), [p for _, p in rows]


class Hook:
    """Gives a state the buckets of a backward pass, as DDP does."""

    def __init__(self, rank, **options):
        self.rank = rank
        self.state, self.every = made(rank, **options)
        self.buffers = {}

    def step(self, number, parts, bad=()):
        """`parts`: numbers of parameters by bucket. Returns results by parameter."""
        given, futures = gradients(self.rank, number), []
        for index, part in enumerate(parts):
            parameters = [self.every[i] for i in part]
            if part not in self.buffers:
                count = sum(p.numel() for p in parameters)
                self.buffers[part] = empty((count,), parameters[0].dtype, self.rank)
            values = torch.cat([given[i].view(-1) * (NAN if i in bad else 1.0) for i in part])
            put(self.buffers[part], values)
            last = index == len(parts) - 1
            bucket = Bucket(index, last, parameters, self.buffers[part])
            futures.append((sparse_hook(self.state, bucket), bucket))
        found = {}
        for future, bucket in futures:
            future.wait()
            found.update((id(p), g.cpu()) for p, g in zip(bucket.parameters(), bucket.gradients()))
        return [found[id(p)] for p in self.every]


# -- figures ---------------------------------------------------------------------------------------


def test_scalars_are_the_figures_of_the_last_step():
    def body(rank):
        model = Model(rank, clip_norm=1.0)
        state = model.opt.tamis
        assert state.scalars() == {}
        for step in range(2):
            model.backward(step)
            model.opt.step()
        found, last = state.scalars(), state.stats()["step"]
        model.opt.close()
        given = torch.cat([g.view(-1) for g in gradients(rank, 1)])
        assert found.pop("tamis/gradient_norm") == pytest.approx(given.norm().item(), rel=1e-5)
        assert found.pop("tamis/exposed_s") == last["seconds"]["exposed"] > 0.0
        assert found.pop("tamis/lost_steps") == 0
        names = ("density", "wire_bytes", "compression", "hidden", "residual_norm", "captured")
        assert found == {"tamis/" + n: last[n] for n in names}
        assert found["tamis/density"] == last["selected"] / LENGTH > 0.0

    run(body)


class Told(Meter):
    """A meter that keeps what it is told of steps."""

    def __new__(cls, **options):
        made = super().__new__(cls, **options)
        made.rows = []
        return made

    def step(self, row):
        self.rows.append(row)
        super().step(row)


def energy_of(state, limit_s=60.0):
    """What stats() has once the device's part of it is told."""
    end = time.monotonic() + limit_s
    while "device" not in (state.stats()["energy"] or {}):
        assert time.monotonic() < end, state.stats()
        time.sleep(0.02)
    return state.stats()["energy"]


def test_a_meter_learns_steps_over_all_dtypes(tmp_path):
    options = dict(sources="file", settle_s=0.1, window_s=0.2)
    with Counter(tmp_path) as counter, Told(files=counter.files, **options) as meter:

        def body(rank):
            parts = ((2, 0), (1,))
            hook = Hook(rank, kinds=KINDS, meter=None if rank else meter, nonfinite="skip")
            hook.step(0, parts)
            norm, last = hook.state.residual_norm(), hook.state.stats()["step"]
            hook.step(1, parts, bad=(1,))
            energy = energy_of(hook.state) if rank == 0 else {}
            assert ("energy" in hook.state.stats()) == (rank == 0)
            hook.state.close()
            return norm, last, energy

        norm, last, energy = run(body)[0]
    first, second = meter.rows
    assert (first["length"], first["selected"]) == (LENGTH, last["selected"])
    assert first["wire_bytes"] == last["wire_bytes"] > 0
    assert first["residual_norm"] == pytest.approx(norm, rel=1e-4)
    assert last["selected"] > 0 == second["selected"] and second["length"] == LENGTH
    assert 0.0 < sum(filter(None, energy.values())) <= counter.uj / 1e6


def test_without_counters_energy_is_none():
    with Meter(sources="none") as meter:
        state, _ = run(lambda rank: made(rank, meter=meter), 1)[0]
        assert state.stats()["energy"] is None
        with pytest.warns(RuntimeWarning, match="ends after 0 steps"):
            state.close()


def test_the_picture_is_of_the_steps_that_were_made(monkeypatch):
    drawn = []

    class Figure:
        def savefig(self, path, dpi):
            drawn.append(path)

    def draw(history, losses, title):
        drawn.extend([history.steps(), list(history.rows["dense_bytes"]), losses, title])
        return Figure()

    monkeypatch.setattr(_plot, "draw", draw)

    def body(rank):
        hook = Hook(rank)
        for step in range(2):
            hook.step(step, ((0, 1, 2),))
        if rank == 1:
            hook.state.plot("a.png", [2.0, 1.0])
        hook.state.close()

    run(body)
    title = "tamis, density 0.1, rank 1 of 2"
    assert drawn == [[1, 2], 2 * [4.0 * LENGTH], [2.0, 1.0], title, "a.png"]


def test_dense_keeps_no_residual():
    def body(rank):
        hook = Hook(rank, scheme="dense", density=1.0)
        found = hook.step(0, ((0, 1, 2),))
        assert hook.state.residual_norm() == 0.0
        hook.state.close()
        return torch.cat([one.view(-1) for one in found])

    mean = [torch.cat([g.view(-1) for g in gradients(rank, 0)]) for rank in range(RANKS)]
    for found in run(body):
        assert torch.allclose(found, sum(mean) / RANKS, atol=1e-6)


# -- what is not right -----------------------------------------------------------------------------


def test_parameters_without_a_gradient_are_named():
    def body(rank):
        hook = Hook(rank)
        with pytest.raises(RuntimeError, match=r"2 of 3 parameters .* no gradient .*\(a, c\)"):
            hook.step(0, ((1,),))
        hook.state.close()

    run(body)


def test_ranks_whose_parameters_differ_are_told_which():
    def body(rank):
        hook = Hook(rank)
        if rank == 1:
            hook.every[1].detach().mul_(2.0)
        words = "Before step 0 parameter 'b' is not the same on all ranks"
        with pytest.raises(tamis.Error, match=words) as told:
            hook.step(0, ((0, 1, 2),))
        assert told.value.status == "TAMIS_E_MISMATCH" == told.value.__cause__.status
        assert "broadcast_parameters" in told.value.remedy
        hook.state.close()

    run(body)


def test_a_lost_communicator_is_not_taken_for_parameters_that_differ():
    def body(rank):
        hook = Hook(rank)
        hook.state.comm.abort()
        with pytest.raises(tamis.Error) as told:
            hook.step(0, ((0, 1, 2),))
        assert told.value.lost == "comm" and "not the same" not in str(told.value)
        hook.state.close()

    run(body)


@pytest.mark.filterwarnings("ignore:The gradients are on CUDA devices")
@pytest.mark.parametrize("own", [True, False])
def test_a_state_that_cannot_be_made_leaves_its_own_communicators(monkeypatch, own):
    left = []
    monkeypatch.setattr(_comm, "leave", left.append)

    def body(rank):
        given = None if own else here.carriers.pop()
        with pytest.raises(tamis.Error, match="overselect"):
            made(rank, overselect=-7.0, comm=given)

    run(body)
    assert [comm.transport for comm in left] == (RANKS * ["nccl"] if own else [])


def test_unused_is_not_told_where_an_exception_ends_the_process(monkeypatch, recwarn):
    monkeypatch.setattr("sys.last_value", ValueError(), raising=False)
    run(lambda rank: made(rank)[0].close(), 1)
    assert not [one for one in recwarn if "0 steps" in str(one.message)]


# -- buckets that change ---------------------------------------------------------------------------


def test_fewer_buckets_than_before():
    """What was known of those that are gone is forgotten, and the bits are the same."""

    def body(rank, parts):
        hook, found = Hook(rank), []
        for step in range(3):
            found += hook.step(step, parts[step])
        assert sorted(hook.state._cache) == list(range(len(parts[-1])))
        hook.state.close()
        return torch.cat([one.view(-1) for one in found])

    one, three = ((0, 1, 2),), ((2,), (1,), (0,))
    found = run(lambda rank: body(rank, [three, one, one]))
    same(found, run(lambda rank: body(rank, [one, one, one])))


# -- results that are taken back -------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, dict(op="sum")])
def test_what_another_dtype_has_lost_is_in_the_residual(options):
    """At density 1 all travels: each rank gets its part of what the step would have given."""

    def body(rank, bad):
        hook = Hook(rank, kinds=KINDS, density=1.0, nonfinite="skip", **options)
        found = hook.step(0, ((2, 0), (1,)), bad)
        group = hook.state.groups[0]
        kept = group.pieces(group.residual())
        hook.state.close()
        result = torch.cat([found[0].view(-1), found[2].view(-1)])
        return result, torch.cat([kept[name].view(-1) for name in "ac"])

    whole, lost = [run(lambda rank: body(rank, bad)) for bad in ((), (1,))]
    ranks = RANKS if options.get("op") == "sum" else 1
    for (result, kept), (none, back) in zip(whole, lost):
        assert result.count_nonzero() and not kept.count_nonzero() and not none.count_nonzero()
        assert torch.allclose(back, result / ranks, rtol=1e-5, atol=1e-7)
