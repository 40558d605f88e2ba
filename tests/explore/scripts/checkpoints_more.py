# SPDX-License-Identifier: MIT
"""Averages, copies, checkpoints, continued."""

from scene import *


@scenario
def checkpoint_loaded_in_the_other_order():
    """First the state, then rank 0's optimizer over it."""
    def save(_, made, state):
        return rank0(_, made, state), state.state_dict()

    def load(kept, made, state):
        state.load_state_dict(kept[1])
        made.load_state_dict(kept[0])

    return resumed(save, load, warned="moments of one|after the optimizer")


@scenario
def checkpoint_of_nothing():
    """A folder without one."""
    _, __, state = run_of()
    return refusal(lambda: state.load(folder_of()), "tamis-rank|no state of tamis")


@scenario
def checkpoint_of_another_scheme():
    _, __, state = run_of()
    kept = state.state_dict()
    _, __, other = run_of(scheme="quantized")
    return refusal(lambda: other.load_state_dict(kept), "scheme is")


@scenario
def checkpoint_of_the_other_rank():
    _, __, state = run_of()
    rows = [None, None]
    dist.all_gather_object(rows, state.state_dict())
    return refusal(lambda: state.load_state_dict(rows[1 - dist.get_rank()]), "each rank saves")


@scenario
def checkpoint_rolled_back():
    """The best so far, kept in memory: model and optimizer go back."""
    wrapped, made, state = run_of()
    plain(wrapped, made, 5)
    kept = copy.deepcopy([wrapped.module.state_dict(), made.state_dict()])
    before = measure(wrapped.module)
    plain(wrapped, made, 5, 5)
    wrapped.module.load_state_dict(kept[0])
    made.load_state_dict(kept[1])
    plain(wrapped, made, 30, 5)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def checkpoint_by_one_rank_from_two():
    """A run of 2 goes on with 1."""
    wrapped, made, state = run_of()
    plain(wrapped, made, 10)
    folder = folder_of()
    state.save(folder)
    dist.barrier()
    groups = [dist.new_group([rank]) for rank in range(2)]
    model = copy.deepcopy(wrapped.module)
    alone = DDP(model, process_group=groups[dist.get_rank()])
    again = adamw()(alone)
    other = attach(alone, again)
    other.load(folder)
    counts = {float(row["step"]) for row in again.state.values()}
    before = measure(model)
    plain(alone, again, 20, 10)
    after = measure(model)
    return ("right" if counts == {10.0} and after < before else "silent"), f"{counts}"


def dcp():
    try:
        import torch.distributed.checkpoint as found
        import torch.distributed.checkpoint.state_dict  # noqa: F401
    except ImportError:
        raise Absent("no torch.distributed.checkpoint")
    return found


@scenario
def checkpoint_distributed_after_steps():
    found = dcp()

    def save(_, made, state):
        folder = folder_of()
        found.save({"tamis": state}, checkpoint_id=folder)
        return folder

    def load(kept, made, state):
        for p in made.param_groups[0]["params"]:
            p.grad = torch.zeros_like(p)
        rate, made.param_groups[0]["lr"] = made.param_groups[0]["lr"], 0.0
        made.step()
        made.param_groups[0]["lr"] = rate
        found.load({"tamis": state}, checkpoint_id=kept)

    return resumed(save, load)


@scenario
def checkpoint_distributed_fresh():
    """Loaded before the first step, when an optimizer has no state yet."""
    found = dcp()

    def save(_, made, state):
        folder = folder_of()
        found.save({"tamis": state}, checkpoint_id=folder)
        return folder

    return resumed(save, lambda kept, _, state: found.load({"tamis": state}, checkpoint_id=kept))


def distributed_with_torchs(calls):
    """torch's own calls for the optimizer, and the state in one dictionary with it, or apart."""
    found = dcp()
    wrapped, made, state = run_of()
    plain(wrapped, made, 10)
    folder, states = folder_of(), found.state_dict
    rows = {"optimizer": states.get_optimizer_state_dict(wrapped, made), "tamis": state}
    found.save(rows, checkpoint_id=folder)
    weights = copy.deepcopy(wrapped.module.state_dict())
    plain(wrapped, made, 10, 10)
    state.close()
    model = net(5)
    model.load_state_dict(weights)
    other, again, state = run_of(model=model)
    rows = {"optimizer": states.get_optimizer_state_dict(other, again)}
    if calls == 1:
        rows["tamis"] = state
    found.load(rows, checkpoint_id=folder)
    states.set_optimizer_state_dict(other, again, rows["optimizer"])
    if calls == 2:
        found.load({"tamis": state}, checkpoint_id=folder)
    plain(other, again, 10, 10)
    bits = all(torch.equal(a, b) for a, b in zip(wrapped.module.parameters(), model.parameters()))
    good = same(model) and bits
    if not good and said("moments of one"):
        return "refused", "warned"
    return ("right" if good else "silent"), f"the same bits: {bits}"


@scenario
def checkpoint_distributed_with_torchs_calls():
    return distributed_with_torchs(1)


@scenario
def checkpoint_distributed_with_torchs_calls_first():
    return distributed_with_torchs(2)


@scenario
def checkpoint_distributed_of_a_dense_run():
    """Its optimizer, by torch's own calls, into a run with tamis."""
    found = dcp()
    wrapped = DDP(net())
    made = adamw()(wrapped)
    plain(wrapped, made, 5)
    folder, states = folder_of(), found.state_dict
    rows = {"optimizer": states.get_optimizer_state_dict(wrapped, made)}
    found.save(rows, checkpoint_id=folder)
    model = net(5)
    model.load_state_dict(wrapped.module.state_dict())
    wrapped, made, state = run_of(model=model)
    rows = {"optimizer": states.get_optimizer_state_dict(wrapped, made)}
    found.load(rows, checkpoint_id=folder)
    states.set_optimizer_state_dict(wrapped, made, rows["optimizer"])
    plain(wrapped, made, 5, 5)
    steps = {float(row["step"]) for row in made.state.values()}
    return ("right" if steps == {10.0} and same(wrapped.module) else "silent"), f"{steps}"


def torchs_optimizer_state(flat, before, sparse_first, reduce=None):
    """get_ and set_optimizer_state_dict from a run with tamis into one without, or back."""
    calls = dcp().state_dict
    options = calls.StateDictOptions(flatten_optimizer_state_dict=flat)
    rows = []
    for sparse in (sparse_first, not sparse_first):
        wrapped = DDP(net())
        made = adamw()(wrapped)
        state = attach(wrapped, made, reduce=reduce) if sparse else None
        if not rows or before:
            plain(wrapped, made, 5)
        if not rows:
            rows.append(calls.get_optimizer_state_dict(wrapped, made, options=options))
            dist.broadcast_object_list(rows, 0)
            counts = float(next(iter(made.state.values()))["step"])
            continue
        calls.set_optimizer_state_dict(wrapped, made, rows[0], options=options)
        made_counts = float(next(iter(made.state.values()))["step"])
        plain(wrapped, made, 5, 5)
    equal = same(wrapped.module)
    return ("right" if equal and counts == made_counts else "silent"), f"{counts} {made_counts}"


@scenario
def torchs_state_from_dense_to_fresh():
    return torchs_optimizer_state(False, False, False)


@scenario
def torchs_state_from_dense_to_stepped():
    return torchs_optimizer_state(False, True, False)


@scenario
def torchs_state_flat_from_dense_to_stepped():
    return torchs_optimizer_state(True, True, False)


@scenario
def torchs_state_flat_from_dense_to_fresh():
    return torchs_optimizer_state(True, False, False)


@scenario
def torchs_state_from_sparse_to_dense():
    return torchs_optimizer_state(False, True, True)


@scenario
def torchs_state_flat_from_sparse_to_dense():
    return torchs_optimizer_state(True, True, True)


@scenario
def torchs_state_of_means_to_fresh():
    return torchs_optimizer_state(False, False, False, reduce="gradient")


@scenario
def state_of_dense_run_goes_on():
    dense = DDP(net())
    first = adamw()(dense)
    plain(dense, first, 5)
    wrapped, made, state = run_of(model=copy.deepcopy(dense.module))
    made.load_state_dict(first.state_dict())
    before = measure(wrapped.module)
    plain(wrapped, made, 30, 5)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def attach_before_weights_are_loaded():
    wrapped, made, state = run_of()
    wrapped.module.load_state_dict(net(3).state_dict())
    before = measure(wrapped.module)
    plain(wrapped, made, 40)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def weights_loaded_on_rank_0_alone():
    """Dense runs drift apart."""
    wrapped, made, state = run_of()
    if dist.get_rank() == 0:
        wrapped.module.load_state_dict(net(3).state_dict())
    return refusal(lambda: plain(wrapped, made, 3), "not the same on all ranks")
