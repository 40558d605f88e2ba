# SPDX-License-Identifier: MIT
"""tamis.torch on CUDA tensors, on the fake CUDA runtime and the fake NCCL: devices, streams of the
caller and their order, dtypes, scaler, resume."""

import pytest
import stand_in
import tamis
import tamis.torch
import torch
from rig import MEANS, Bucket, Model, NAN, RANKS, Scaler, cuda, gradients, here, host, run, same, steps_on, weights
from stand_in import Stream, current_stream, empty, parameter, put
from tamis import launch
from tamis.torch._hook import sparse_hook
from tamis.torch._streams import on


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


def test_step_on_another_stream_than_backward():
    same(steps_on(1, True), host(3))


def test_gradients_of_several_streams():
    same(steps_on(3, False), host(3))


def test_gradients_of_several_streams_and_step_on_another():
    same(steps_on(3, True), host(3))


@pytest.mark.parametrize("options", [dict(clip_norm=1.0), dict(overlap=False)])
def test_what_leaves_in_step_is_seen_there(options):
    same(steps_on(2, True, **options), host(3, **options))


def own(kind, **options):
    return dict(reduce="step", inner=lambda p, lr: kind(p, lr, **options))


@pytest.mark.parametrize("options", [
    own(torch.optim.Adam, betas=(0.0, 0.99), weight_decay=0.1),
    own(torch.optim.AdamW, weight_decay=0.1), own(torch.optim.SGD, momentum=0.9),
])
def test_the_own_step_is_complete_before_it_leaves(options):
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
            torch.optim.SGD([p for _, p in rows], lr=0.1), rows, **MEANS, comm=here.carriers.pop()
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
        torch.optim.SGD([p for _, p in rows], lr=0.1), rows, **MEANS, **dict(more, **options)
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


def test_the_density_may_change():
    def body(rank):
        model = Model(rank, density_max=0.5)
        found = []
        for step, density in enumerate((0.1, 0.4)):
            model.opt.tamis.set_density(density)
            model.backward(step)
            model.opt.step()
            row = model.opt.tamis.stats()
            found.append((row["groups"][0]["density"], row["driver"]))
        model.opt.close()
        return found

    first, second = run(body)
    assert first == second and {driver for _, driver in first} == {"device"}
    assert first[0][0] < 0.11 and 0.39 < first[1][0] < 0.41


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


def test_on_changes_nothing_on_the_cpu():
    with on(torch.device("cpu")):
        assert stand_in.current_device() == 0
