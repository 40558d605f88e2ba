# SPDX-License-Identifier: MIT
#
# test: waits
"""Processes that join a run over UCX (tamis.run_elastic(grow=...)): they get what all have in common,
also when others die meanwhile, and the run goes on as one of more ranks does."""

import signal
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

import elastic_support
import ranks
from jobs import needs_ucx

pytestmark = needs_ucx

RUN = """
import os, signal, sys, time
import numpy as np, torch, tamis
import elastic_support
folder, name, address, wanted, dies = sys.argv[1:6]
joins = name != "job"
torch.distributed.init_process_group("gloo")
if not joins:
    name += str(torch.distributed.get_rank())
elastic_support.RATE = np.float32(0.02)
run = elastic_support.Run(tamis.comm(timeout_s=60))
began = {}
def train(state):
    began.setdefault(state.comm.nranks, state.step)
    last = state.step + 300
    while state.comm.nranks < int(wanted) or state.step < last:
        if name == dies and state.step >= 7 and state.joins > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        run.step(state)
        time.sleep(0.01 * (state.comm.nranks < int(wanted)))
        state.commit()
    return run.w.copy()
w = tamis.run_elastic(train, run.state, grow=address, join=joins)
np.savez(f"{folder}/{name}.npz", w=w, nranks=run.state.comm.nranks, joins=run.state.joins,
         recoveries=run.state.recoveries,
         rank=run.state.comm.rank, own=run.own[0], step=run.state.step,
         residual=elastic_support.residual(run.state.reducers[0]))
print("well", flush=True)
os._exit(0)  # torch's store may have died with rank 0
"""


def run(tmp_path, njob, nnew, wanted, dies="", script=RUN):
    """A job, and newcomers that each begin alone. What those have written that live."""
    address = f"127.0.0.1:{ranks.launch().free_port()}"
    env = {"PYTHONPATH": f"{ranks.HERE.parent}:{':'.join(sys.path)}"}

    def start(name, nranks):
        command = [sys.executable, "-c", script, str(tmp_path), name, address, str(wanted), dies]
        return ranks.start(command, nranks, "env", 200, env)

    new = [f"new{r}" for r in range(nnew)]
    processes = start("job", njob) + [start(name, 1)[0] for name in new]
    names = [f"job{r}" for r in range(njob)] + new
    ended = ranks.finish(processes, 200)
    for name, (status, text) in zip(names, ended):
        assert status == (-signal.SIGKILL if name == dies else 0), ended
    return [np.load(tmp_path / f"{name}.npz") for name in names if name != dies]


@pytest.mark.parametrize("njob, nnew", ranks.drawn((2, 1), (2, 3)))
def test_newcomers_go_on_with_the_others(njob, nnew, tmp_path):
    found = run(tmp_path, njob, nnew, njob + nnew)
    assert sorted(int(one["rank"]) for one in found) == list(range(njob + nnew))
    assert all(int(one["nranks"]) == njob + nnew for one in found)
    assert all(np.array_equal(one["w"], found[0]["w"]) for one in found)
    assert all(int(one["step"]) == int(found[0]["step"]) for one in found)
    assert [int(one["joins"]) for one in found[:njob]] == [nnew] * njob
    distance = np.abs(found[0]["w"] - elastic_support.TARGET).mean()
    assert distance < 0.1, distance


@pytest.mark.parametrize("dies", ranks.drawn("job0", "job1", "new0"))
def test_a_death_after_the_join_leaves_the_others_with_newcomers(dies, tmp_path):
    found = run(tmp_path, 2, 2, 3, dies)
    assert len(found) == 3
    assert all(int(one["nranks"]) == 3 for one in found)
    assert all(np.array_equal(one["w"], found[0]["w"]) for one in found)


TORCH = """
import os, sys, time
import numpy as np, torch, tamis, tamis.torch
folder, name, address, wanted, reduce = sys.argv[1:6]
joins = name != "job"
torch.distributed.init_process_group("gloo")
if not joins:
    name += str(torch.distributed.get_rank())
torch.manual_seed(0 if not joins else 77)  # a newcomer begins with other parameters
comm = tamis.comm(timeout_s=60)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
inner = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer = tamis.torch.DistributedOptimizer(inner, model, 0.05, comm=comm, reduce=reduce)
state = tamis.ElasticState(
    comm, {"model": model, "optimizer": inner}, reducers=[optimizer])
def train(state):
    last = state.step + 40
    while state.comm.nranks < int(wanted) or state.step < last:
        torch.manual_seed(1000 * state.step + state.comm.rank)
        x = torch.randn(16, 20)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), x[:, :4].tanh()).backward()
        optimizer.step()
        state.step += 1
        time.sleep(0.01 * (state.comm.nranks < int(wanted)))
        state.commit()
tamis.run_elastic(train, state, grow=address, join=joins)
flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
moments = [inner.state[p]["exp_avg"].numel() for p in model.parameters() if p in inner.state]
loss = torch.nn.functional.mse_loss(model(torch.eye(20)), torch.eye(20)[:, :4].tanh())
np.savez(f"{folder}/{name}.npz", w=flat, nranks=state.comm.nranks, step=state.step,
         steps=optimizer.tamis.steps, moments=len(moments), loss=loss.item())
print("well", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("reduce", ranks.drawn("gradient", "step"))
def test_an_optimizer_of_torch_takes_newcomers_in(reduce, tmp_path):
    found = run(tmp_path, 2, 2, 4, reduce, script=TORCH)
    assert all(int(one["nranks"]) == 4 for one in found)
    assert all(np.array_equal(one["w"], found[0]["w"]) for one in found)
    assert len({(int(one["step"]), int(one["steps"]), int(one["moments"])) for one in found}) == 1
    assert int(found[0]["steps"]) == int(found[0]["step"])


ALONE = """
import sys, tamis
import elastic_support
run = elastic_support.Run(tamis.Comm.local(1)[0])
try:
    tamis.run_elastic(run.train(3), run.state, grow=sys.argv[1], join=True)
except tamis.Error as error:
    print(error.status, error)
"""


def test_a_newcomer_without_a_job_does_not_train_alone():
    env = {"PYTHONPATH": f"{ranks.HERE.parent}:{':'.join(sys.path)}", "TAMIS_TIMEOUT_MS": "500"}
    command = [sys.executable, "-c", ALONE, f"127.0.0.1:{ranks.launch().free_port()}"]
    [(status, text)] = ranks.finish(ranks.start(command, 1, "env", 100, env), 100)
    assert status == 0 and "TAMIS_E_TIMEOUT" in text and "no job took this process in" in text, text


def test_what_cannot_grow_is_refused():
    comms = elastic_support.tamis.Comm.local(2)
    one = elastic_support.on_ranks(2, lambda rank: elastic_support.Run(comms[rank]).state)[0]
    for options, words in (
        ({"grow": "127.0.0.1:1"}, "over ucx alone"),
        ({"join": True}, "host:port"),
        ({"grow": True, "join": True}, "in one of 2 ranks"),
    ):
        with pytest.raises(ValueError, match=words):
            elastic_support.tamis.run_elastic(lambda state: None, one, **options)


LOCAL = """
import os, signal, sys, time
import numpy as np, torch, tamis, tamis.torch
folder, name, address, wanted, dies = sys.argv[1:6]
joins = name != "job"
torch.distributed.init_process_group("gloo")
if not joins:
    name += str(torch.distributed.get_rank())
torch.manual_seed(0 if not joins else 77)
comm = tamis.comm(timeout_s=60)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
inner = torch.optim.AdamW(model.parameters(), lr=0.01)
optimizer = tamis.torch.SparseLoCo(inner, model, steps=4, density=0.2, comm=comm)
state = tamis.ElasticState(comm, {"model": model}, reducers=[optimizer])
def train(state):
    last = state.step + 80
    while state.comm.nranks < int(wanted) or state.step < last:
        if name == dies and state.joins > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(4):
            torch.manual_seed(1000 * state.step + state.comm.rank)
            x = torch.randn(16, 20)
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), x[:, :4].tanh()).backward()
            optimizer.step()
            state.step += 1
        time.sleep(0.01 * (state.comm.nranks < int(wanted)))
        state.commit()
tamis.run_elastic(train, state, grow=address, join=joins)
flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
torch.manual_seed(5)
x = torch.randn(500, 20)
loss = torch.nn.functional.mse_loss(model(x), x[:, :4].tanh())
np.savez(f"{folder}/{name}.npz", w=flat, nranks=state.comm.nranks, step=state.step,
         rounds=optimizer.stats()["rounds"], loss=loss.item())
print("well", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("dies, nnew", ranks.drawn(("", 2), ("job0", 2), ("new0", 2)))
def test_local_steps_take_newcomers_in_and_leave_the_dead_behind(dies, nnew, tmp_path):
    wanted = 2 + nnew - bool(dies)
    found = run(tmp_path, 2, nnew, wanted, dies, script=LOCAL)
    assert all(int(one["nranks"]) == wanted for one in found)
    assert all(np.array_equal(one["w"], found[0]["w"]) for one in found)
    assert len({(int(one["step"]), int(one["rounds"])) for one in found}) == 1
    assert int(found[0]["rounds"]) * 4 == int(found[0]["step"])
    assert float(found[0]["loss"]) < 0.35, float(found[0]["loss"])


ODD = RUN.replace(
    "began = {}",
    """began, odd = {}, sys.argv[5] if name == "new0" else ""
if odd == "scheme":
    run = elastic_support.Run(run.state.comm, scheme="topk")
rows = {"w": run.w, "momentum": run.momentum}
if odd == "names":
    rows = {"v": run.w, "momentum": run.momentum}
if odd == "dtype":
    rows["momentum"] = run.momentum.astype(np.float64)
if odd in ("names", "dtype"):
    run.state = tamis.ElasticState(run.state.comm, rows, reducers=[run.reducer])
def grown(state):
    if odd == "raises":
        raise RuntimeError("odd")
    return train(state)
""",
).replace("tamis.run_elastic(train,", "tamis.run_elastic(grown,")


@pytest.mark.parametrize("odd", ranks.drawn("scheme", "names", "dtype", "raises"))
def test_a_newcomer_that_does_not_fit_costs_the_job_nothing(odd, tmp_path):
    """It ends, and another one joins. The address is the same by another name."""
    port, env = ranks.launch().free_port(), {"PYTHONPATH": f"{ranks.HERE.parent}:{':'.join(sys.path)}"}

    def start(name, host, nranks):
        command = [sys.executable, "-c", ODD, str(tmp_path), name, f"{host}:{port}", "3", odd]
        return ranks.start(command, nranks, "env", 200, env)

    job = start("job", "127.0.0.1", 2)
    [(status, text)] = ranks.finish(start("new0", "127.0.0.1", 1), 100)
    words = {"scheme": "scheme differs", "names": "cannot join", "dtype": "cannot join", "raises": "odd"}
    assert status == 1 and words[odd] in text, text
    ended = ranks.finish([*job, *start("new1", "localhost", 1)], 200)
    assert [status for status, _ in ended] == [0, 0, 0], ended
    found = [np.load(tmp_path / f"{name}.npz") for name in ("job0", "job1", "new1")]
    assert all(np.array_equal(one["w"], found[0]["w"]) for one in found)
    assert [int(one["recoveries"]) for one in found] == [0, 0, 0]
    assert [int(one["nranks"]) for one in found] == [3, 3, 3]
