# SPDX-License-Identifier: MIT
"""Local steps from torch over ranks: the rule in plain loops, resume, presets, what is refused."""

import copy
import hashlib

import pytest
import torch
import torch.distributed as dist

import ranks
from torch_models import bits, ddp, network, train

import tamis.torch

H, LR, MOMENTUM = 3, 0.5, 0.9


def made(kind=tamis.torch.LocalSGD, **options):
    model = network()
    inner = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, kind(inner, model, **options)


def common(optimizer):
    """The bits of the base."""
    whole = torch.empty(optimizer.reducer.layout.length)
    optimizer.local.base(whole)
    return hashlib.sha256(whole.numpy().tobytes()).hexdigest(), whole


def flat(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]).double()


# ------------------------------------------------------------------------------ run by the ranks


def case_rule(**_):
    """Against the rule over torch's own all-reduce, with an inner optimizer of its own."""
    model, optimizer = made(steps=H, outer_lr=LR, momentum=MOMENTUM)
    twin = network()
    inner = torch.optim.AdamW(twin.parameters(), lr=0.01)
    base = flat(twin)
    momentum, far = torch.zeros_like(base), 0.0
    for step in range(4 * H):
        train(model, optimizer, [step])
        train(twin, inner, [step])
        if (step + 1) % H == 0:
            mean = base - flat(twin)
            dist.all_reduce(mean)
            mean /= dist.get_world_size()
            momentum = MOMENTUM * momentum + mean
            base = base - LR * (mean + MOMENTUM * momentum)
            at = 0
            for p in twin.parameters():
                p.data.copy_(base[at : at + p.numel()].view_as(p))
                at += p.numel()
        far = max(far, (flat(model) - flat(twin)).abs().max().item())
    own = bits(model)
    train(model, optimizer, [99])
    with optimizer.base():
        inside = bits(model)
    after = bits(model)
    stats = optimizer.stats()
    optimizer.close()
    return far, own, inside, after, stats["rounds"], stats["wire_bytes_total"]


def case_resume(**_):
    found = []
    for options in (
        dict(steps=4, delay=2, scheme="quantized", value_codec="fp4"),
        dict(steps=3, scheme="topk", density=0.1, momentum=0.0),
        dict(steps=5),
    ):
        for resume in (False, True):
            model, optimizer = made(**options)
            for step in range(14):
                if resume and step in (5, 6, 10):
                    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
                    optimizer.close()
                    model, optimizer = made(**options)
                    model.load_state_dict(saved[0])
                    optimizer.load_state_dict(saved[1])
                train(model, optimizer, [step])
            found.append((bits(model), common(optimizer)[0]))
            optimizer.close()
    return found


def case_presets(**_):
    found = []
    for kind in (tamis.torch.DiLoCo, tamis.torch.SparseLoCo):
        model, optimizer = made(kind, steps=4)
        before = common(optimizer)[1]
        train(model, optimizer, range(8))
        moved = (common(optimizer)[1] - before).norm().item()
        found.append((common(optimizer)[0], moved, repr(optimizer)))
        optimizer.close()
    return found


def case_refused(**_):
    model = network()
    inner = torch.optim.SGD(model.parameters(), 0.1)
    wrap = tamis.torch.LocalSGD
    texts = [
        ranks.told(lambda: wrap(inner, ddp(network()))),
        ranks.told(lambda: wrap(inner, network().bfloat16())),
        ranks.told(lambda: wrap(inner, list(model.named_parameters())[:1])),
        ranks.told(lambda: wrap(inner, model, steps=0)),
        ranks.told(lambda: wrap(inner, model, steps=2, delay=3)),
        ranks.told(lambda: wrap(model, model)),
    ]
    if dist.get_rank() == 1:
        next(model.parameters()).data.add_(1.0)
    texts.append(ranks.told(lambda: wrap(inner, model)))
    model, optimizer = made(steps=2)
    texts.append(ranks.told(optimizer.reducer.close))
    texts.append(ranks.told(lambda: optimizer.load_state_dict(inner.state_dict())))
    texts.append(ranks.told(lambda: copy.copy(optimizer)))
    # Other memory is followed.
    for p in model.parameters():
        p.data = p.data.clone()
    train(model, optimizer, range(2))
    same = bits(model)
    optimizer.close()
    texts.append(ranks.told(optimizer.local.step))
    return texts, same


# ------------------------------------------------------------------------------ tests

CASES = ["case_rule", "case_resume", "case_presets", "case_refused"]


@pytest.fixture(scope="module")
def two():
    return ranks.run(__file__, CASES, nranks=2)


@pytest.fixture(scope="module")
def three():
    return ranks.run(__file__, ["case_rule"], nranks=3)


@pytest.fixture
def several(request):
    return request.getfixturevalue("two" if request.param == 2 else "three")


@pytest.mark.parametrize("several", [2, 3], indirect=True)
def test_ranks_do_what_the_rule_says(several):
    rows = ranks.values(several, "case_rule")
    for far, own, inside, after, rounds, sent in rows:
        assert far < 1e-5
        assert own == rows[0][1] and inside == own, "the base is not that of all ranks"
        assert after != own and rounds == 4 and sent > 0
    assert len({after for _, _, _, after, _, _ in rows}) == len(rows)


def test_a_run_that_was_stopped_ends_with_the_same_bits(two):
    rows = ranks.values(two, "case_resume")
    for found in rows:
        for whole, resumed in zip(found[::2], found[1::2]):
            assert whole == resumed


def test_presets_train(two):
    rows = ranks.values(two, "case_presets")
    for found in zip(*rows):
        assert len({repr(moved) for _, moved, _ in found}) == 1 and found[0][1] > 0


def test_what_cannot_be_is_refused_with_a_sentence(two):
    words = (
        "DistributedDataParallel averages", "local steps need float32", "drift apart", "steps is 0",
        "delay is 3", "not a torch.optim.Optimizer", "base or its momentum differs",
        "1 Local object(s) use it", "not a result of LocalSGD.state_dict", "neither copied",
        "was closed",
    )
    rows = ranks.values(two, "case_refused")
    for texts, _ in rows:
        for (kind, text), word in zip(texts, words):
            assert word in text, (word, kind, text)
    assert rows[0][1] == rows[1][1]
