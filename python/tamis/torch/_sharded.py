# SPDX-License-Identifier: MIT
"""FSDP2 (fully_shard) inside a node, a sparse exchange across nodes.

    ranks    0 1 2 3 | 4 5 6 7       FSDP over each node: it sums gradients there, as always
    shards   a b c d | a b c d       those that hold the same shard exchange: 0 with 4, 1 with 5, ...

The mesh given to fully_shard is that of a node, of one dimension: with two (HSDP) torch all-reduces
whole gradients across nodes by itself.
"""

from typing import Any, Dict, List, Optional, Tuple

import torch

from ._group import Group, Place
from ._guard import agreed_hash
from ._kinds import GRADIENT
from ._parameters import Shards, flat, local
from ._scaling import SUPPORTS, scaled
from ._state import SparseState
from ._stepper import Stepper


def is_sharded(model: Any) -> bool:
    return any(base.__name__ == "FSDPModule" for base in type(model).__mro__)


def attach_sharded(
    model: torch.nn.Module,
    density: Optional[float],
    optimizer: Any,
    across: Any,
    options: Dict[str, Any],
) -> SparseState:
    if optimizer is None:
        raise TypeError(
            "a model of fully_shard needs the optimizer, in whose step ranks exchange: write"
            " tamis.torch.attach(model, optimizer=optimizer)"
        )
    for name in ("scaler", "clip_norm", "skip_norm"):
        if options.get(name) is not None:
            raise ValueError(
                f"{name}= is not for a model of fully_shard, whose ranks hold parts of a gradient: train"
                " in bfloat16 or float32, and clip by torch.nn.utils.clip_grad_norm_"
            )
    group = across_of(model) if across is None else _group_of(across)
    shards = Shards(model, group, _mesh_of(model).get_group())
    state = SparseState(shards, density, optimizer=optimizer, **options)
    for one in state.optimizers:
        if not any(stepper.optimizer is one for stepper in state.steppers):
            state.steppers.append(MeanStepper(one, GRADIENT, state))
    _watch(model, state)
    return state


def _watch(model: torch.nn.Module, state: SparseState) -> None:
    """No hook of an exchange is there to say that the state was closed, or has ended: forward does."""
    before = model.__dict__.pop("_tamis_watch", None)
    if before is not None:
        before.remove()

    def check(*_: Any) -> None:
        if torch.is_grad_enabled():
            state.check()

    model.__dict__["_tamis_watch"] = model.register_forward_pre_hook(check)


def _mesh_of(model: torch.nn.Module) -> Any:
    return next(p.device_mesh for p in model.parameters() if hasattr(p, "device_mesh"))


def _group_of(across: Any) -> Any:
    return across.get_group() if hasattr(across, "get_group") else across


def across_of(model: torch.nn.Module) -> Any:
    """The ranks that hold the same shards: the other dimension of the mesh that a node's is of."""
    mesh = _mesh_of(model)
    if mesh.ndim != 1:
        raise ValueError(
            f"fully_shard was given a mesh of {mesh.ndim} dimensions, so torch all-reduces whole"
            ' gradients across nodes itself: give it that of a node, fully_shard(unit, mesh=mesh["in"])'
        )
    root = _root_of(mesh)
    names = root.mesh_dim_names or ()
    others = [name for name in names if (name,) != tuple(mesh.mesh_dim_names or ())]
    if root is mesh or len(others) != 1 or root.ndim != 2:
        raise ValueError(
            "the mesh of fully_shard does not show which ranks hold the same shards: give it one"
            ' dimension of a mesh of two (init_device_mesh("cuda", (nodes, per_node),'
            ' mesh_dim_names=("across", "in"))["in"]), or pass across=mesh["across"]'
        )
    return root[others[0]].get_group()


def _root_of(mesh: Any) -> Any:
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    from torch.distributed.device_mesh import _mesh_resources

    return _mesh_resources.get_root_mesh(mesh)


class MeanStepper(Stepper):
    """Puts the mean over nodes into the gradients of the shards before the optimizer steps."""

    def __init__(self, optimizer: torch.optim.Optimizer, kind: Any, state: SparseState) -> None:
        super().__init__(optimizer, kind, state)
        setattr(optimizer, SUPPORTS, True)  # has a scaler give itself away
        self._places: List[Place] = []
        self._from: List[int] = []

    def before(self, kwargs: Dict[str, Any]) -> None:
        state = self._state
        if scaled(self.optimizer, kwargs):
            raise RuntimeError(
                f"{self.here()}a GradScaler cannot step a model of fully_shard here: train in bfloat16"
                " or float32"
            )
        parameters = [p for p in state.parameters_of(self.optimizer) if state.known(p)]
        missing = [p for p in parameters if p.grad is None]
        try:
            state.begin()
            state.hooked.begin(agreed_hash([self.optimizer]))
            places = self._located(parameters)
            if state.spoiled_inside([tensor for place in places for tensor in place.tensors]):
                places[0].tensors[0][0] = float("nan")
            for place in places:
                state.hooked.mark(place)
            state.finish(state.hooked)
            for parameter in missing:  # no rank has used it, and the optimizer leaves it alone
                if not local(parameter.grad).any():
                    parameter.grad = None
        except BaseException as error:
            state.fail(error)
            raise

    def _located(self, parameters: List[torch.Tensor]) -> List[Place]:
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        runs = [flat(local(p.grad)) for p in parameters if p.grad is not None]
        now = [run.data_ptr() for run in runs]
        if now != self._from:
            self._from = now
            rows: Dict[Group, List[Tuple[int, torch.Tensor]]] = {}
            for parameter, run in zip(parameters, runs):
                group, segment = self._state.locate(parameter)
                rows.setdefault(group, []).append((segment, run))
            self._places = [
                Place(group, [segment for segment, _ in found], [run for _, run in found])
                for group, found in rows.items()
            ]
        return self._places

    def forget_places(self) -> None:
        self._from = []
