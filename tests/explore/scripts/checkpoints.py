# SPDX-License-Identifier: MIT
"""Averages, copies, checkpoints."""

from scene import *


@scenario
def averaged_model():
    from torch.optim.swa_utils import AveragedModel

    def loop(model, optimizer, steps):
        average = AveragedModel(model.module)
        for step in range(steps):
            plain(model, optimizer, 1, step)
            average.update_parameters(model.module)
        expect(BROKEN or same(average.module), "averages differ")
        expect(measure(average.module) < 1.2 * measure(net()), "an average that did not learn")

    return pair(adamw(), loop=loop)


@scenario
def swa_with_swalr():
    from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

    def loop(model, optimizer, steps):
        average, scheduler = AveragedModel(model), SWALR(optimizer, 0.01, anneal_epochs=5)
        for step in range(steps):
            plain(model, optimizer, 1, step)
            if step > steps // 2:
                average.update_parameters(model)
                scheduler.step()
        update_bn([batch(0)[0]], average)
        expect(BROKEN or same(average), "averages differ")

    return pair(sgd(), loop=loop)


def average_by_hook(first):
    """An average that follows in a hook of the optimizer's."""
    wrapped = DDP(net())
    made = sgd()(wrapped)
    if not hasattr(made, "register_step_post_hook"):
        raise Absent("no hooks of step()")
    average = copy.deepcopy(wrapped.module)

    def follow(*_):
        for a, p in zip(average.parameters(), wrapped.module.parameters()):
            a.data.lerp_(p.data, 0.1)

    if first:
        made.register_step_post_hook(follow)
    state = attach(wrapped, made)
    if not first:
        made.register_step_post_hook(follow)
    plain(wrapped, made, 20)
    expect(BROKEN or same(wrapped.module), "replicas differ")
    return ("right" if same(average) else "silent"), "averages by a hook: compared"


@scenario
def average_by_hook_before_attach():
    return average_by_hook(True)


@scenario
def average_by_hook_after_attach():
    return average_by_hook(False)


@scenario
def weights_clipped_by_hook_before_attach():
    """WGAN: a bound that holds after each step."""
    wrapped = DDP(net())
    made = sgd(0.3)(wrapped)
    if not hasattr(made, "register_step_post_hook"):
        raise Absent("no hooks of step()")

    def bound(*_):
        for p in wrapped.module.parameters():
            p.data.clamp_(-0.1, 0.1)

    bound()
    made.register_step_post_hook(bound)
    state = attach(wrapped, made)
    plain(wrapped, made, 20)
    most = max(p.abs().max().item() for p in wrapped.parameters())
    equal = same(wrapped.module)
    return ("right" if equal and most <= 0.1001 else "silent"), f"at most {most:.3g} of 0.1"


@scenario
def weights_clipped_in_the_loop():
    def loop(model, optimizer, steps):
        for step in range(steps):
            plain(model, optimizer, 1, step)
            for p in model.parameters():
                p.data.clamp_(-0.5, 0.5)

    return pair(sgd(), loop=loop)


@scenario
def copy_of_model_and_optimizer():
    wrapped = DDP(net())
    before, made = measure(wrapped.module), adamw()(wrapped)
    state = attach(wrapped, made)
    plain(wrapped, made, 10)
    twin = copy.deepcopy(wrapped.module)
    other = torch.optim.AdamW(twin.parameters(), 0.02)
    other.load_state_dict(copy.deepcopy(made.state_dict()))
    other.zero_grad()
    loss_of(twin, 0).backward()
    other.step()  # alone: no exchange
    plain(wrapped, made, 30, 10)
    return learned(wrapped.module, before, 0.8 * before, measure(wrapped.module), 1.0)


@scenario
def optimizer_pickled():
    wrapped = DDP(net())
    made = adamw()(wrapped)
    state = attach(wrapped, made)
    plain(wrapped, made, 3)
    again = pickle.loads(pickle.dumps(made))
    steps = {float(row["step"]) for row in again.state.values()}
    again.step()
    plain(wrapped, made, 3, 3)
    return ("right" if steps == {3.0} and same(wrapped.module) else "silent"), f"{steps}"


@scenario
def checkpoint_of_each_rank():
    def save(_, made, state):
        folder = folder_of()
        state.save(folder)
        return folder, made.state_dict()

    def load(kept, made, state):
        made.load_state_dict(kept[1])
        state.load(kept[0])

    return resumed(save, load)


@scenario
def checkpoint_of_each_rank_momentum():
    def save(_, made, state):
        return made.state_dict(), state.state_dict()

    def load(kept, made, state):
        made.load_state_dict(kept[0])
        state.load_state_dict(kept[1])

    return resumed(save, load, lambda: sgd(momentum=0.9), density=0.1)


@scenario
def checkpoint_of_each_rank_means():
    def save(_, made, state):
        folder = folder_of()
        state.save(folder)
        return folder, made.state_dict()

    def load(kept, made, state):
        made.load_state_dict(kept[1])
        state.load(kept[0])

    return resumed(save, load, sgd, reduce="gradient")


@scenario
def checkpoint_with_a_rate_of_numpy():
    """Rates that numpy has made are in the state of the optimizer."""
    import numpy

    def save(_, made, state):
        folder = folder_of()
        made.param_groups[0]["lr"] = numpy.float64(0.02)
        state.save(folder)
        return folder

    return resumed(save, lambda kept, _, state: state.load(kept))


@scenario
def checkpoint_gathered():
    def save(_, made, state):
        folder = folder_of()
        whole = state.gathered().state_dict()
        if dist.get_rank() == 0:
            torch.save(whole, os.path.join(folder, "all.pt"))
        dist.barrier()
        return os.path.join(folder, "all.pt")

    return resumed(save, lambda kept, _, state: state.load_state_dict(torch.load(kept)))


@scenario
def checkpoint_gathered_of_models_apart():
    """Each rank trains a model of its own, in a process group of its own."""
    groups = [dist.new_group([rank]) for rank in range(2)]
    wrapped = DDP(net(), process_group=groups[dist.get_rank()])
    made = adamw()(wrapped)
    state = attach(wrapped, made)
    plain(wrapped, made, 5)
    own = state.state_dict()["rank0"]["optimizers"][0]["state"][0]["exp_avg"]
    whole = state.gathered().state_dict()
    if dist.get_rank() != 0:
        return "right", "the other rank"
    mine = torch.equal(whole["rank0"]["optimizers"][0]["state"][0]["exp_avg"], own)
    return ("right" if mine else "silent"), f"keys {list(whole)}, own state: {mine}"


@scenario
def checkpoint_gathered_with_a_rate_of_numpy():
    import numpy

    def save(_, made, state):
        made.param_groups[0]["lr"] = numpy.float64(0.02)
        rows = [state.gathered().state_dict()]
        dist.broadcast_object_list(rows, 0)
        return rows[0]

    return resumed(save, lambda kept, _, state: state.load_state_dict(kept))


@scenario
def checkpoint_of_rank_0_alone():
    return resumed(rank0, lambda kept, made, _: made.load_state_dict(kept),
                   warned="was loaded into the optimizer")
