# SPDX-License-Identifier: MIT
"""tamis._core with tensors of torch."""

import sys

import pytest
from tamis._core import Comm, Error, Layout, Reducer

torch = pytest.importorskip("torch")

LAYOUT = [("weight", 96), ("bias", 32)]


def alone(**options):
    return Reducer(Comm.local(1)[0], Layout(LAYOUT), **options)


def refused(call, *args):
    with pytest.raises(Error) as caught:
        call(*args)
    assert caught.value.lost == "nothing"
    return str(caught.value)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_tensor_is_written_in_place(dtype):
    reducer = alone(dtype=dtype, density=0.01)
    torch.manual_seed(1)
    grads = [g.to(getattr(torch, dtype)) for g in (torch.randn(8, 12), torch.randn(32))]
    flat = torch.cat([g.flatten() for g in grads])
    top = flat.float().abs().argmax().item()
    where = [g.data_ptr() for g in grads]
    reducer.start(grads)
    reducer.wait()
    assert [g.data_ptr() for g in grads] == where
    now = torch.cat([g.flatten() for g in grads])
    assert now[top] == flat[top] and now.count_nonzero() == 1


def test_wrong_tensors_are_refused():
    reducer, bias = alone(), torch.zeros(32)
    assert "not contiguous" in refused(reducer.start, [torch.zeros(12, 8).t(), bias])
    assert "float64" in refused(reducer.start, [torch.zeros(96, dtype=torch.float64), bias])
    assert "detach" in refused(reducer.start, [torch.zeros(96, requires_grad=True), bias])
    assert "__dlpack__ failed" in refused(reducer.start, [torch.zeros(96).to_sparse(), bias])
    assert "of weight" in refused(reducer.plan, [0], [torch.zeros(97)])


def test_views_of_one_buffer_are_borrowed_where_they_lie():
    reducer, buffer = alone(density=1.0), torch.arange(1.0, 129.0)
    plan = reducer.plan([1, 0], [buffer[96:], buffer[:96].view(8, 12)])
    for step in range(3):
        buffer.copy_(torch.arange(1.0, 129.0))
        reducer.ready(plan)
        reducer.wait()
        assert torch.equal(buffer, torch.arange(1.0, 129.0))


def test_a_plan_keeps_the_memory_of_its_tensors():
    reducer = alone(density=1.0)
    plan = reducer.plan([0, 1], [torch.full((96,), 2.0), torch.full((32,), 3.0)])
    others = [torch.zeros(96) for _ in range(8)]  # would be handed the same memory
    reducer.ready(plan)
    reducer.wait()
    assert reducer.stats()["acc_norm"] ** 2 == pytest.approx(96 * 4 + 32 * 9)
    assert not any(t.any() for t in others)


def test_references_return_to_what_they_were():
    reducer, grad = alone(), torch.randn(128)
    before = sys.getrefcount(grad)
    for step in range(3):
        reducer.start(grad)
        reducer.wait()
    assert sys.getrefcount(grad) == before


def test_the_residual_fits_a_tensor():
    reducer, out = alone(), torch.zeros(128)
    grad = torch.randn(128)
    given = grad.clone()
    reducer.start(grad)
    reducer.wait()
    reducer.residual(out)
    assert torch.equal(out + grad, given)
