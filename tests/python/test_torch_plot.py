# SPDX-License-Identifier: MIT
#
# test: slow
"""state.plot: what is kept of a run, and the curves that are drawn of it."""

import sys

import pytest
import torch

import tamis
import tamis.torch
from tamis.torch._plot import KEPT, History, draw


def history(steps, captured=float("nan")):
    made = History()
    for step in range(steps):
        made.add(100.0 + step, 4000.0, captured, 0.01, 0.002, 0.001)
    return made


def test_a_long_run_is_kept_as_means():
    steps = 5 * KEPT + 3
    kept = history(steps)
    points = kept.steps()
    sent = kept.rows["wire_bytes"]
    assert KEPT <= len(points) < 2 * KEPT and steps - kept.every < points[-1] <= steps
    assert all(len(row) == len(points) for row in kept.rows.values())
    assert sum(sent) * kept.every == sum(100.0 + step for step in range(points[-1]))


def test_the_curves_are_those_of_the_run():
    pytest.importorskip("matplotlib")
    losses = [3.0, 2.0, 1.0]
    loss, size, time = draw(history(6), losses, "a title").axes
    lines = {line.get_label(): line for axis in (loss, size, time) for line in axis.get_lines()}
    assert list(lines["loss"].get_xdata()) == [2, 4, 6]
    assert list(lines["loss"].get_ydata()) == losses
    sent = next(line for label, line in lines.items() if label.startswith("sent"))
    assert sent.get_label() == f"sent, 1/{6 * 4000 / 615:.1f} of dense"
    assert list(sent.get_xdata()) == [1, 2, 3, 4, 5, 6]
    assert list(sent.get_ydata()) == [100, 101, 102, 103, 104, 105]
    assert list(lines["dense, a ring"].get_ydata()) == [4000] * 6
    for label, want in (("step", 10), ("waited", 1), ("hidden", 2)):
        assert list(lines[label].get_ydata()) == pytest.approx([want] * 6)
    assert len(draw(history(6), None, "").axes) == 2
    captured = draw(history(6, 0.75), None, "").axes[0].get_lines()[0]
    assert captured.get_label() == "captured" and list(captured.get_ydata()) == [0.75] * 6


def test_a_state_writes_its_picture(tmp_path, monkeypatch):
    model = torch.nn.Linear(4, 3)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = tamis.torch.DistributedOptimizer(inner, model, transport="local")
    path = tmp_path / "run.png"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        with pytest.raises(ImportError, match="pip install matplotlib"):
            optimizer.tamis.plot(path)
    pytest.importorskip("matplotlib")
    with pytest.raises(ValueError, match="no step"):
        optimizer.tamis.plot(path)
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.tamis.plot(path, losses=[1.0, 0.5, 0.2])
    assert path.read_bytes().startswith(b"\x89PNG")
    history = optimizer.tamis.figures.history
    assert history.steps() == [1, 2, 3] and history.rows["step_s"][2] > 0
    optimizer.close()


def test_captured_is_the_share_of_energy_that_travelled():
    model = torch.nn.Linear(4, 1, bias=False)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    options = dict(density=0.25, reduce="gradient", comm=tamis.Comm.local(1)[0])
    optimizer = tamis.torch.DistributedOptimizer(inner, model, **options)
    model(torch.tensor([3.0, 4.0, 0.0, 0.0])).sum().backward()
    optimizer.step()
    assert model.weight.grad.tolist() == [[0.0, 4.0, 0.0, 0.0]]
    assert optimizer.tamis.scalars()["tamis/captured"] == pytest.approx(16 / 25)
    optimizer.close()
