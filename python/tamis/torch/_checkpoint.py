# SPDX-License-Identifier: MIT
"""What a checkpoint holds of a SparseState: residuals by name, thresholds as bytes, and the state of
optimizers that step by each rank's own gradient.

    {"rank1": {...}}                     of each rank its own, under a key of its own, so that torch's
                                         distributed checkpoints do not take them for one
    {"rank0": {...}, "rank1": {...}}     of all, in a checkpoint that one rank writes (_gathered.py)
"""

import copy
import ctypes
import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Union

import torch

from ._group import Group

if TYPE_CHECKING:
    from ._state import SparseState

FORMAT = 3
Saved = Union[Dict[str, Any], Sequence[Dict[str, Any]]]


def _belongs(state: "SparseState") -> Dict[str, Any]:
    """What must be the same when a saved state is loaded."""
    return {
        "format": FORMAT,
        "rank": state.comm.rank,
        "nranks": state.comm.nranks,
        "scheme": state.scheme,
        "op": state.op,
        "warmup": state.warmup,
        "exchanges": [exchange.name for exchange in state.exchanges],
    }


def _shapes(state: "SparseState") -> Dict[str, List[Any]]:
    return {
        name: [_dtype(group), *parameter.shape]
        for group in state.groups
        for name, parameter in zip(group.names, group.memory())
    }


def _dtype(group: Group) -> str:
    return str(group.dtype).split(".")[1]


def save(state: "SparseState") -> Dict[str, Any]:
    dropped = state.hooked if state.dropped() else None  # its last pass, as no step followed it
    residual: Dict[str, torch.Tensor] = {}
    control: List[torch.Tensor] = []
    for group in state.groups:
        before = dropped is not None and group in dropped.groups
        data, part = group.saved(before)
        control.append(_tensor(data))
        if part is not None:
            residual.update(group.pieces(part))
    made = [exchange.steps - (exchange is dropped) for exchange in state.exchanges]
    own_states = [one.state_dict() for one in state.local_optimizers()]
    own = dict(
        _belongs(state),
        density=state.density,
        steps=max(made),
        made=made,
        parameters=_shapes(state),
        control=control,
        residual=residual,
        optimizers=_copied(own_states),
        kept=[len(values["state"]) for values in own_states],  # parameters that have one
    )
    return {f"rank{state.comm.rank}{state.suffix}": own}


def _copied(value: Any) -> Any:
    """In host memory: a device may have no room for it twice. Counts of steps stay where they are."""
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(one) for one in value)
    if not isinstance(value, torch.Tensor) and getattr(value, "ndim", 1) == 0:
        return value.item()  # a rate of numpy: torch.load(weights_only=True) does not take it
    moves = isinstance(value, torch.Tensor) and value.device.type != "cpu" and value.numel() > 1
    if moves and not hasattr(value, "_local_tensor"):
        return value.detach().cpu()
    return copy.deepcopy(value)


def _tensor(data: bytes) -> torch.Tensor:
    """torch.load(weights_only=True) takes tensors in all versions, unlike bytes."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def load(state: "SparseState", given: Saved, strict: bool) -> List[str]:
    saved = _chosen(_by_rank(given, state.suffix), state.comm.rank, state.comm.nranks)
    if strict:
        _compare(state, saved)
    elif _kinds(saved["exchanges"]) != _kinds([exchange.name for exchange in state.exchanges]):
        raise ValueError(
            "a residual of gradients cannot serve steps, nor the other way round: saved were"
            f" {saved['exchanges']}, here are {[exchange.name for exchange in state.exchanges]}"
        )
    taken: List[str] = []
    _restore(state, saved, strict, taken)
    if strict:
        for exchange, made in zip(state.exchanges, saved["made"]):
            exchange.steps = made
        state.density = saved["density"]
        state._choose()
    for stepper in state.steppers:
        stepper.accept()
    return taken


def _kinds(names: List[str]) -> List[bool]:
    return [name == "gradients" for name in names]


def _by_rank(given: Saved, suffix: str) -> Dict[int, Dict[str, Any]]:
    """The states in one dictionary, or in several."""
    found: Dict[int, Dict[str, Any]] = {}
    for one in given if isinstance(given, (list, tuple)) else [given]:
        rows = one.items() if isinstance(one, dict) else ()
        named = [(re.fullmatch(rf"rank(\d+){suffix}", str(key)), row) for key, row in rows]
        own = {int(match[1]): row for match, row in named if match}
        if not own:
            of = f" of {suffix[1:]}" if suffix else ""
            raise ValueError(f"this is not a result of SparseState.state_dict(){of}")
        for rank, row in own.items():
            _check_format(rank, row)
            if rank in found:
                raise ValueError(f"the state of rank {rank} was given twice: give that of each rank")
            found[rank] = row
    return found


def _check_format(rank: int, saved: Any) -> None:
    if not isinstance(saved, dict) or "residual" not in saved or "parameters" not in saved:
        raise ValueError("this is not a result of SparseState.state_dict()")
    if saved.get("format") != FORMAT:
        raise ValueError(f"format {saved.get('format')} of a saved state; this tamis has {FORMAT}")
    if saved.get("rank") != rank:
        raise ValueError(f"the state of rank {saved.get('rank')} was saved as that of rank {rank}")


def _chosen(states: Dict[int, Dict[str, Any]], rank: int, nranks: int) -> Dict[str, Any]:
    """The state with which rank `rank` of `nranks` continues the run that saved `states`."""
    old = next(iter(states.values()))["nranks"]
    if old == nranks and rank in states:
        return states[rank]
    if old == nranks:
        raise ValueError(
            f"rank {rank}: the saved state is of rank {sorted(states)[0]} of {old}: each rank saves and"
            " loads its own, or one rank that of all (SparseState.gathered)"
        )
    if sorted(states) != list(range(old)):
        raise ValueError(
            f"rank {rank}: saved by {old} ranks, here are {nranks}: give the states of all {old}, not"
            f" those of {sorted(states)}"
        )
    return _regroup([states[number] for number in range(old)], rank, nranks)


def _regroup(states: Sequence[Dict[str, Any]], rank: int, nranks: int) -> Dict[str, Any]:
    """For another number of ranks.

        old ranks     0 1 2 3 4
        new rank 0    0 + 2 + 4    residuals; with op "mean" times new / old, for a rank's part in
        new rank 1    1 + 3        the mean is 1 / ranks
        every one     mean of what the optimizers keep
    """
    old = len(states)
    share = nranks / old if states[0]["op"] == "mean" else 1.0
    merged = dict(states[0], rank=rank, nranks=nranks, control=None)
    merged["residual"] = _sums(states, range(rank, old, nranks), share)
    merged["optimizers"] = _mean([one["optimizers"] for one in states])
    return merged


def _sums(
    states: Sequence[Dict[str, Any]], ranks: Sequence[int], factor: float
) -> Dict[str, torch.Tensor]:
    """Sums in the order of the ranks, so that every process gets the same bits."""
    sums = {name: torch.zeros_like(tensor) for name, tensor in states[0]["residual"].items()}
    for rank in ranks:
        for name, sum_ in sums.items():
            sum_ += states[rank]["residual"][name]
    return {name: sum_.mul_(factor) for name, sum_ in sums.items()}


def _mean(values: Sequence[Any]) -> Any:
    """Join what an optimizer's state_dict holds: mean of float tensors, else that of rank 0."""
    first = values[0]
    if isinstance(first, torch.Tensor) and first.is_floating_point():
        same = all(one.shape == first.shape for one in values)
        return sum(one.double() for one in values).div_(len(values)).to(first) if same else first
    if isinstance(first, dict):
        return {key: _mean([one.get(key, value) for one in values]) for key, value in first.items()}
    if isinstance(first, list):
        return [_mean(row) for row in zip(*values)]
    return first


def _compare(state: "SparseState", saved: Dict[str, Any]) -> None:
    here = f"rank {state.comm.rank}: the saved state does not fit"
    for key, value in _belongs(state).items():
        if saved.get(key) != value:
            raise ValueError(f"{here}: {key} is {value}, {saved.get(key)} was saved")
    density = saved["density"]
    if density is not None and not 0.0 < density <= 1.0:
        raise ValueError(f"{here}: its density is {density}, not in (0, 1]")
    mine, theirs = _shapes(state), saved["parameters"]
    for name in mine:
        if name not in theirs:
            raise ValueError(f"{here}: it has no parameter {name!r}")
        if list(theirs[name]) != mine[name]:
            raise ValueError(f"{here}: {name!r} is {mine[name]}, {list(theirs[name])} was saved")
    for name in theirs:
        if name not in mine:
            raise ValueError(f"{here}: {name!r} was saved, but is no parameter of this state")
    if list(mine) != list(theirs):
        raise ValueError(f"{here}: its parameters are in another order")


def _restore(state: "SparseState", saved: Dict[str, Any], strict: bool, taken: List[str]) -> None:
    """Restore all or nothing: when a later part refuses, roll back those already changed."""
    rollback: List[Any] = []
    try:
        for number, group in enumerate(state.groups):
            before = (group.sparse.control(), group.residual() if group.has_residual else None)
            residual = None if before[1] is None else before[1].clone()
            if residual is not None:
                taken.extend(_fill(group, residual, saved["residual"], strict))
            control: Optional[bytes] = None
            if strict and saved["control"] is not None:
                control = _bytes(saved["control"][number])
            rollback.append((group, before))
            wanted = group.asked(saved["density"])
            if strict and control is None and wanted != group.density:
                group.set_density(wanted)
            group.restore(control, residual)
        _restore_optimizers(state, saved, strict)
    except BaseException:
        for group, before in rollback:
            group.restore(*before)
        raise


def _restore_optimizers(state: "SparseState", saved: Dict[str, Any], strict: bool) -> None:
    """Their own states, which differ from rank to rank."""
    own, theirs = state.local_optimizers(), saved["optimizers"]
    if strict and len(own) != len(theirs):
        raise ValueError(f"{len(theirs)} optimizers were saved, here are {len(own)}")
    for optimizer, values, kept in zip(own, theirs, saved["kept"]):
        if strict and len(values["state"]) != kept:
            raise ValueError(
                f"rank {state.comm.rank}: the saved state of {type(optimizer).__name__} has come for"
                f" {len(values['state'])} of {kept} parameters: torch.distributed.checkpoint loads only"
                " what is there, so load the optimizer's own state before"
            )
        if strict:
            optimizer.load_state_dict(_numbered(values))


def _numbered(values: Dict[str, Any]) -> Dict[str, Any]:
    """A distributed checkpoint of torch makes words of the numbers of parameters."""
    rows = values["state"].items()
    return dict(values, state={int(key) if str(key).isdigit() else key: row for key, row in rows})


def _fill(
    group: Group, residual: torch.Tensor, saved: Dict[str, torch.Tensor], strict: bool
) -> List[str]:
    """Names of the parameters for which something was saved."""
    taken = []
    for name, piece in group.pieces(residual).items():
        source = saved.get(name)
        if source is not None and source.shape == piece.shape:
            piece.copy_(source)
            taken.append(name)
        elif strict:
            raise ValueError(f"the residual of {name!r} is missing or has another shape")
    return taken


def _bytes(tensor: torch.Tensor) -> bytes:
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())
