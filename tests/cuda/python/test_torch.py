# SPDX-License-Identifier: MIT
"""tamis.torch on CUDA tensors, on the fake CUDA runtime and the fake NCCL: devices, streams of the
caller and their order, dtypes, scaler, resume, and errors a step late. Ranks are threads."""

import threading

import pytest
import stand_in
import tamis
import tamis.torch
import torch
import torch.distributed as dist
from stand_in import Stream, current_stream, empty, parameter, put
from tamis import _core, launch
from tamis.torch._hook import sparse_hook
from tamis.torch._streams import on

RANKS, NAN = 2, float("nan")
SHAPES = [("a", (40, 50)), ("b", (50,)), ("c", (30, 30))]
here = threading.local()


@pytest.fixture(autouse=True)
def cuda(monkeypatch):
    stand_in.install(monkeypatch)
    # Ranks are threads, so they find each other through what run() gave them.
    monkeypatch.setattr(launch, "open_carrier", lambda timeout_s=None: here.carriers.pop())
    monkeypatch.setattr(launch, "_check_announced", lambda: None)


def run(body, nranks=RANKS, meetings=4):
    """body(rank) on a thread for each rank; all current devices are 0, as after model.to(...)."""
    carriers = [_core.Comm.local(nranks, 20000) for _ in range(meetings)]
    results, failures = [None] * nranks, []

    def one(rank):
        here.carriers = [row[rank] for row in carriers]
        try:
            results[rank] = body(rank)
        except BaseException as error:
            failures.append(error)
            for row in carriers:
                try:
                    row[rank].abort()
                except tamis.Error:
                    pass
        finally:
            del here.carriers

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(nranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results


def weights(dtype=torch.float32):
    draw = torch.Generator().manual_seed(1)
    return [(name, torch.randn(shape, generator=draw).to(dtype)) for name, shape in SHAPES]


def gradients(rank, step, dtype=torch.float32):
    draw = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=draw).to(dtype) for _, shape in SHAPES]


class Model:
    """Parameters of a rank on its own device, and a backward pass that puts gradients there."""

    def __init__(self, rank, dtype=torch.float32, **options):
        self.rank, self.dtype = rank, dtype
        self.rows = [(name, parameter(values, rank)) for name, values in weights(dtype)]
        self.parameters = [p for _, p in self.rows]
        for p in self.parameters:
            p.grad = empty(p.shape, dtype, rank)
        self.inner = options.pop("inner", torch.optim.SGD)(self.parameters, lr=0.1)
        options = dict(dict(density=0.1, transport="nccl", timeout_s=20), **options)
        self.opt = tamis.torch.DistributedOptimizer(self.inner, self.rows, **options)

    def backward(self, step, streams=(None,), factor=1.0):
        """Gradients come late, in turn on the streams, as those of a forward pass on them."""
        given = gradients(self.rank, step, self.dtype)
        for i in reversed(range(len(given))):
            chosen = streams[i % len(streams)] or current_stream(self.rank)
            with stand_in.stream(chosen):
                put(self.parameters[i].grad, given[i] * factor)
                self.opt._arrived(i)

    def values(self):
        return torch.cat([p.cpu().float().view(-1) for p in self.parameters])


def host(steps, dtype=torch.float32, factor=lambda step: 1.0, inner=torch.optim.SGD, **options):
    """What the same steps give on the CPU."""

    def body(rank):
        rows = [(name, torch.nn.Parameter(values)) for name, values in weights(dtype)]
        opt = tamis.torch.DistributedOptimizer(
            inner([p for _, p in rows], lr=0.1), rows, comm=here.carriers.pop(),
            **dict(dict(density=0.1), **options),
        )
        for step in range(steps):
            for (_, p), g in zip(rows, gradients(rank, step, dtype)):
                p.grad = g * factor(step)
            opt.step()
        opt.close()
        return torch.cat([p.detach().float().view(-1) for _, p in rows])

    return run(body)


def same(found, wanted):
    for rank, (one, other) in enumerate(zip(found, wanted)):
        assert torch.equal(one, other), f"rank {rank}: {(one != other).sum()} parameters differ"


# -- devices -----------------------------------------------------------------------------------


def test_communicator_and_reducer_take_the_device_of_the_parameters():
    def body(rank):
        model = Model(rank)  # with device 0 current on all ranks, which NCCL would refuse
        assert stand_in.current_device() == 0
        for step in range(3):
            model.backward(step)
            model.opt.step()
        assert model.opt.tamis.comm.transport == "nccl"
        assert stand_in.current_device() == 0
        found = model.values()
        model.opt.close()
        return found

    same(run(body), host(3))


# -- streams -----------------------------------------------------------------------------------


def steps_on(forward, ends, steps=3, **options):
    """Each step: gradients on streams `forward`, step() on stream `ends`."""

    def body(rank):
        model = Model(rank, **options)
        mine = [Stream(rank) for _ in range(forward)]
        for step in range(steps):
            model.backward(step, mine)
            end = Stream(rank) if ends else mine[0]
            with stand_in.stream(end):
                model.opt.step()
                for one in mine:
                    one.wait_stream(end)  # as a caller must, for the next forward pass
        with stand_in.stream(end):
            found = model.values()
            model.opt.close()
        return found

    return run(body)


def test_step_on_another_stream_than_backward():
    same(steps_on(1, True), host(3))


def test_gradients_of_several_streams():
    same(steps_on(3, False), host(3))


def test_gradients_of_several_streams_and_step_on_another():
    same(steps_on(3, True), host(3))


@pytest.mark.parametrize("options", [dict(clip_norm=1.0), dict(overlap=False)])
def test_what_leaves_in_step_is_seen_there(options):
    same(steps_on(2, True, **options), host(3, **options))


def test_gradients_of_weight_decay_are_made_before_they_leave():
    options = dict(reduce="update", inner=lambda p, lr: torch.optim.Adam(p, lr, (0.0, 0.99), weight_decay=0.1))
    same(steps_on(2, True, **options), host(3, **options))


def test_a_parameter_without_a_gradient():
    def body(rank):
        model = Model(rank)
        model.backward(0)
        model.opt.step()
        model.parameters[0].grad = None
        with stand_in.stream(Stream(rank)) as _:
            put(model.parameters[1].grad, gradients(rank, 1)[1])
            model.opt._arrived(1)
            model.opt.step()
            found = model.parameters[0].grad.cpu().float()
            model.opt.close()
        return found

    first, second = run(body)
    assert torch.equal(first, second) and first.count_nonzero()


# -- the hook ----------------------------------------------------------------------------------


class Bucket:
    """What DDP gives a hook."""

    def __init__(self, number, last, parameters, buffer):
        self.number, self.last, self.of, self.whole = number, last, parameters, buffer

    def index(self):
        return self.number

    def is_last(self):
        return self.last

    def buffer(self):
        return self.whole

    def parameters(self):
        return self.of

    def gradients(self):
        runs = torch.split(self.whole, [p.numel() for p in self.of])
        return [run.view(p.shape) for run, p in zip(runs, self.of)]


def test_hook_hands_over_and_completes_on_the_streams_of_its_calls():
    def body(rank):
        rows = [(name, parameter(values, rank)) for name, values in weights()]
        state = tamis.torch.SparseState(rows, density=0.1, transport="nccl", timeout_s=20)
        every = [p for _, p in rows]
        parts = [every[2:], every[:2]]
        buffers = [empty((sum(p.numel() for p in part),), index=rank) for part in parts]
        found = []
        for step in range(3):
            given = gradients(rank, step)
            given = [torch.cat([g.view(-1) for g in part]) for part in (given[2:], given[:2])]
            futures = []
            for number, (part, buffer) in enumerate(zip(parts, buffers)):
                with stand_in.stream(Stream(rank)):  # where DDP copied the gradients together
                    put(buffer, given[number])
                    futures.append(sparse_hook(state, Bucket(number, number == 1, part, buffer)))
            with stand_in.stream(Stream(rank)):  # where the optimizer will step
                assert all(future.devices == [torch.device("cuda", rank)] for future in futures)
                result = [future.wait().cpu() for future in futures]
            found.append(torch.cat([result[1], result[0]]))
        state.close()
        return torch.stack(found)

    def on_host(rank):
        rows = [(name, torch.nn.Parameter(values)) for name, values in weights()]
        opt = tamis.torch.DistributedOptimizer(
            torch.optim.SGD([p for _, p in rows], lr=0.1), rows, density=0.1, comm=here.carriers.pop()
        )
        found = []
        for step in range(3):
            for (_, p), g in zip(rows, gradients(rank, step)):
                p.grad = g
            opt.synchronize()
            found.append(torch.cat([p.grad.clone().view(-1) for _, p in rows]))
            opt.zero_grad()
        opt.close()
        return torch.stack(found)

    same(run(body), run(on_host))


# -- dtypes, scaler, resume --------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_16_bits(dtype):
    same(steps_on(2, True, dtype=dtype), host(3, dtype=dtype))


MIXED = [torch.float32, torch.bfloat16, torch.float32]


def mixed(rank, device, bad=None, **options):
    """Steps of parameters of two dtypes; in step `bad` the gradient of one of them has NaN."""
    rows = [(name, values.to(dtype)) for (name, values), dtype in zip(weights(), MIXED)]
    rows = [(n, parameter(v, rank) if device else torch.nn.Parameter(v)) for n, v in rows]
    more = dict(transport="nccl", timeout_s=20)
    if not device:
        more = dict(comm=[here.carriers.pop() for _ in range(2)])
    opt = tamis.torch.DistributedOptimizer(
        torch.optim.SGD([p for _, p in rows], lr=0.1), rows, density=0.1, **dict(more, **options)
    )
    place = {id(p): number for number, (_, _, p) in enumerate(opt._targets)}
    for step in range(4):
        for i, ((_, p), g) in enumerate(zip(rows, gradients(rank, step))):
            g = g.to(p.dtype) * (NAN if (step, i, rank) == (bad, 1, 1) else 1.0)
            if device:
                p.grad = empty(p.shape, p.dtype, rank) if p.grad is None else p.grad
                side = Stream(rank)
                side.wait_stream(current_stream(rank))  # the optimizer has read the last one
                with stand_in.stream(side):
                    put(p.grad, g)
                    opt._arrived(place[id(p)])
            else:
                p.grad = g
        opt.step()
    lost = opt.tamis.stats()["total"]["lost_steps"]
    norm = torch.tensor([opt.tamis.residual_norm(), float(lost)])
    found = torch.cat([norm] + [p.detach().cpu().float().view(-1) for _, p in rows])
    opt.close()
    return found


@pytest.mark.parametrize("bad", [None, 2])
def test_several_dtypes_are_applied_together_or_not_at_all(bad):
    options = dict(bad=bad, nonfinite="skip")
    wanted = run(lambda rank: mixed(rank, False, **options))
    found = run(lambda rank: mixed(rank, True, **options))
    assert torch.allclose(found[0][:1], wanted[0][:1], rtol=1e-5)
    same([one[1:] for one in found], [one[1:] for one in wanted])
    assert wanted[0][1] == (bad is not None)


def test_parameters_are_broadcast_and_compared():
    def body(rank):
        one = parameter(torch.full((7,), float(rank)), rank)
        comm = here.carriers.pop()
        before = tamis.torch.replicas_identical([one], comm)
        tamis.torch.broadcast_parameters([one], comm)
        return before, tamis.torch.replicas_identical([one], comm), one.cpu().tolist()

    assert run(body) == [(False, True, [0.0] * 7)] * RANKS


def test_the_density_may_change_where_the_host_drives():
    def body(rank):
        model = Model(rank, density_max=0.5)
        found = []
        for step, density in enumerate((0.1, 0.4)):
            model.opt.tamis.set_density(density)
            model.backward(step)
            model.opt.step()
            found.append(model.opt.tamis.stats()["step"]["density"])
        model.opt.close()
        return found

    first, second = run(body)
    assert first == second and first[0] < 0.11 and 0.39 < first[1] < 0.41


class Scaler:
    """As much of a GradScaler as a state asks for."""

    def get_scale(self):
        return 8.0


def test_with_a_scaler_the_host_waits():
    def body(rank):
        model = Model(rank, scaler=Scaler())
        found = []
        for step, factor in enumerate((8.0, float("inf"), 8.0)):
            model.backward(step, factor=factor)
            model.opt.synchronize()
            whole = torch.cat([p.grad.cpu().view(-1) for p in model.parameters])
            found.append(bool(whole.isfinite().all()))
            model.opt.zero_grad()
        assert model.opt.tamis.stats()["total"]["lost_steps"] == 1
        model.opt.close()
        return found

    assert run(body) == [[True, False, True]] * RANKS


def test_micro_batches_leave_once():
    def body(rank):
        model = Model(rank)
        with model.opt.no_sync():
            model.backward(0)
        model.backward(0)
        model.opt.step()
        found = model.values()
        model.opt.close()
        return found

    same(run(body), host(1))


def test_a_resumed_run_has_the_bits_of_the_other():
    def body(rank):
        model = Model(rank)
        for step in range(2):
            model.backward(step)
            model.opt.step()
        saved, kept = model.opt.state_dict(), model.values()
        ended = []
        for _ in range(2):
            model.opt.load_state_dict(saved)
            for p, piece in zip(model.parameters, kept.split([p.numel() for p in model.parameters])):
                p.detach().copy_(piece.view(p.shape))
            for step in (2, 3):
                model.backward(step)
                model.opt.step()
            ended.append(model.values())
        model.opt.close()
        return ended

    wanted = host(4)
    for first, second in run(body):
        assert torch.equal(first, wanted[0]) and torch.equal(second, wanted[0])


def test_shards_of_a_plain_reducer():
    """As the hook of FSDP has it: start and join on the stream that is current."""

    def shards(rank, device):
        comm = here.carriers.pop()
        if device:
            with torch.cuda.device(rank):
                comm = launch.nccl_over(comm)
        shard = empty((500,), index=rank) if device else torch.empty(500)
        with torch.cuda.device(rank if device else 0):
            reducer = tamis.Reducer(
                comm, tamis.Layout([("shard", 500)]), density=0.1, device=shard.device.type
            )
        found = []
        for step in range(3):
            with stand_in.stream(Stream(rank)):
                stream = current_stream(rank).cuda_stream if device else 0
                put(shard, gradients(rank, step)[2].view(-1)[:500])
                reducer.start(shard, stream=stream)
                reducer.join(stream)
                found.append(shard.cpu().clone())
        reducer.close()
        return torch.stack(found)

    same(run(lambda rank: shards(rank, True)), run(lambda rank: shards(rank, False)))


# -- errors a step late, and who drives --------------------------------------------------------

def broken(rank, step):
    """A backward pass with NaN on rank 1, and step(), which does not know it yet."""
    model = Model(rank)
    model.backward(0)
    model.opt.step()
    model.backward(step, factor=NAN if rank == 1 else 1.0)
    model.opt.step()
    return model


def test_the_next_step_raises_on_all_ranks_and_then_training_goes_on():
    def body(rank):
        model = broken(rank, 1)
        before = model.values()
        model.backward(2)
        with pytest.raises(tamis.Error, match=r"NaN or Inf: \d+ \(first on rank 1\)") as caught:
            model.opt.step()
        assert caught.value.lost == "step"
        assert torch.equal(before, model.values()) and before.isfinite().all()
        model.inner.step()  # the result of step 2 is in the gradients
        model.backward(3)
        model.opt.step()
        assert model.opt.tamis.stats()["total"]["lost_steps"] == 1
        found = model.values()
        model.opt.close()
        return found

    first, second = run(body)
    assert torch.equal(first, second) and first.isfinite().all()


def test_the_hook_of_the_next_step_raises_and_completes_its_futures():
    def body(rank):
        rows = [(name, parameter(values, rank)) for name, values in weights()]
        state = tamis.torch.SparseState(rows, density=0.1, transport="nccl", timeout_s=20)
        every = [p for _, p in rows]
        buffer = empty((sum(p.numel() for p in every),), index=rank)
        bucket = Bucket(0, True, every, buffer)
        for step in range(4):
            bad = NAN if (step, rank) == (1, 1) else 1.0
            put(buffer, torch.cat([g.view(-1) for g in gradients(rank, step)]) * bad)
            if step == 2:
                with pytest.raises(tamis.Error, match=r"step 1: .*NaN or Inf"):
                    sparse_hook(state, bucket)
                assert not state._futures and state.error is None
            else:
                assert sparse_hook(state, bucket).result is buffer
        assert state.stats()["total"]["lost_steps"] == 1 and buffer.cpu().isfinite().all()
        state.close()

    run(body)


@pytest.mark.parametrize("how", ["close", "stats", "state_dict"])
def test_nothing_of_the_last_step_is_lost(how):
    def body(rank):
        model = broken(rank, 1)
        with pytest.raises(tamis.Error, match="NaN or Inf"):
            getattr(model.opt.tamis, how)()
        if how == "state_dict":
            assert model.opt.tamis.state_dict()["steps"] == 2  # said once; it can be saved
        assert "nccl" in repr(model.opt.tamis) or how == "close"
        model.opt.tamis.close()

    run(body)


def test_told_by_stats_on_one_rank_it_is_still_raised_on_all():
    def body(rank):
        model = broken(rank, 1)
        if rank == 0:
            with pytest.raises(tamis.Error, match="NaN or Inf"):
                model.opt.tamis.stats()
        model.backward(2)
        with pytest.raises(tamis.Error, match="NaN or Inf"):
            model.opt.step()
        model.opt.close()

    run(body)


def test_skipped_steps_are_counted():
    def body(rank):
        model = Model(rank, nonfinite="skip")
        for step in range(4):
            model.backward(step, factor=NAN if step == 1 else 1.0)
            model.opt.step()
        found = model.opt.tamis.stats()["total"]
        model.opt.close()
        return found["steps"], found["lost_steps"]

    assert run(body) == [(4, 1)] * RANKS


def test_who_drives_and_why():
    def body(rank):
        model = Model(rank)
        found = [model.opt.tamis.stats()["driver"], repr(model.opt.tamis)]
        model.opt.close()
        model = Model(rank, density_max=0.5)
        row = model.opt.tamis.stats()
        found += [row["driver"], row["driver_reason"], repr(model.opt.tamis)]
        for step in range(2):
            model.backward(step)
            model.opt.step()
        found.append(model.values())
        model.opt.close()
        return found

    rows = run(body)
    for row in rows:
        assert row[0] == "device" and "driven by the device" in row[1]
        assert row[2] == "host" and "density_max" in row[3] and row[3] in row[4]
    same([row[5] for row in rows], host(2, density_max=0.5))


def test_on_changes_nothing_on_the_cpu():
    with on(torch.device("cpu")):
        assert stand_in.current_device() == 0


# -- torch's process group ---------------------------------------------------------------------


@pytest.mark.parametrize("device, several, wanted", [
    (True, True, "cpu:gloo,cuda:nccl"), (False, True, "gloo"), (True, False, "gloo"),
])
def test_a_process_group_for_tensors_of_both_kinds(monkeypatch, device, several, wanted):
    made = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True, raising=False)
    monkeypatch.delattr(dist.Backend, "backend_capability", raising=False)
    if several:
        monkeypatch.setattr(dist.Backend, "backend_capability", {}, raising=False)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: made.append(backend))
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    tamis.init_process_group()
    tamis.init_process_group("mpi")
    assert made == [wanted, "mpi"]
