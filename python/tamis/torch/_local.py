# SPDX-License-Identifier: MIT
"""Local steps: every rank trains alone for H steps, then exchanges what it has changed."""

import contextlib
import ctypes
from typing import Any, Callable, Dict, Iterator, List, NoReturn, Optional

import torch

from .. import _core, launch
from ._parameters import Parameters, collect, flat, holds_ddp
from ._scaling import Scaling, handed_on

FORMAT = 1
_VALUE_CODECS = ("auto", "float32", "bfloat16", "int8", "fp4", "fp2")


class LocalSGD(torch.optim.Optimizer):
    """Wraps an optimizer: step() steps it, and every `steps`-th exchanges what has changed.

        opt = tamis.torch.LocalSGD(AdamW(model.parameters(), 1e-3), model, steps=16)
        for x, y in loader:
            opt.zero_grad()
            loss(model(x), y).backward()
            opt.step()
        with opt.base():                          # the model that all ranks have in common
            evaluate(model)

    parameters  a module, or pairs of name and parameter: float32, in host memory or on one CUDA
                device; the same on all ranks, which is checked (tamis.torch.broadcast_parameters).
                Rounds are made in host memory: from a device parameters are copied there and back
                in those steps that exchange, and in no others
    steps       H, local steps of a round
    outer_lr, momentum   of the outer optimizer, SGD with Nesterov momentum
    delay       steps that ranks go on beside an exchange; steps_max, offset, wait_share: see
                include/tamis/local.h
    scheme, density, options   of the exchange, as tamis.Reducer takes them
    comm        a communicator; None: tamis.comm(transport, timeout_s)

    With DistributedDataParallel, which averages gradients in every step, local steps have no
    meaning: give the bare model. Buffers (statistics of BatchNorm) stay on each rank. The optimizer's
    own state does, too. param_groups, hooks and schedulers are the wrapped optimizer's.

    Collective: all ranks make it and step it together
    Errors:     TypeError, ValueError for parameters; tamis.Error of an exchange: if nothing else is
                lost than a round ("step"), go on
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Parameters,
        steps: int = 16,
        outer_lr: float = 0.7,
        momentum: float = 0.9,
        delay: int = 0,
        wait_share: float = 0.0,
        steps_max: int = 0,
        offset: int = 0,
        scheme: str = "dense",
        density: Optional[float] = None,
        comm: Optional[_core.Comm] = None,
        transport: str = "auto",
        timeout_s: Optional[float] = None,
        **options: Any,
    ) -> None:
        # No Optimizer.__init__: groups and state are the wrapped optimizer's (__getattr__).
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"a {type(optimizer).__name__} is not a torch.optim.Optimizer")
        if holds_ddp(parameters):
            raise TypeError(
                "DistributedDataParallel averages gradients in every step: give the bare model"
            )
        self.optimizer = optimizer
        rows = collect(parameters)
        self._names = [name for name, _ in rows]
        self._parameters = [parameter for _, parameter in rows]
        self._check(rows)
        self._has_residual = scheme != "dense"
        self._places = self._locate()
        self._delay = delay
        self._runs = self._flat()
        # What the library reads and writes: the parameters, or copies of those on a device.
        self._shared = self._runs
        if rows[0][1].device.type == "cuda":
            self._shared = [torch.empty(run.numel()) for run in self._runs]
            self._fetch()
        if density is not None and not 0.0 < density <= 1.0:
            raise ValueError(f"density is {density}, not a share in (0, 1]: 3 % is 0.03")
        if density is None:
            density = 1.0 if scheme in ("dense", "quantized") else 0.01
        self._rounds: Dict[str, Any] = dict(
            steps=steps,
            steps_max=steps_max,
            delay=delay,
            offset=offset,
            lr=outer_lr,
            momentum=momentum,
            wait_share=wait_share,
        )
        self._own = comm is None
        self.comm = launch.comm(transport, timeout_s) if comm is None else comm
        try:
            layout = _core.Layout([(name, p.numel()) for name, p in rows])
            self.reducer = _core.Reducer(
                self.comm, layout, scheme=scheme, density=density, **options
            )
            self.local = _core.Local(self.reducer, self._shared, **self._rounds)
        except BaseException:
            self._leave()
            raise
        self._scaling = Scaling(optimizer)

    def _leave(self) -> None:
        """What was made before something failed. A comm of the caller stays usable."""
        reducer = self.__dict__.get("reducer")
        if reducer is not None:
            reducer.close()
        if self._own:
            self.comm.close()

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What a GradScaler asks for: it then calls step() also where it skips one."""
        return True

    def _check(self, rows: List[Any]) -> None:
        for name, parameter in rows:
            if parameter.dtype != torch.float32:
                raise TypeError(
                    f"parameter {name!r} is {parameter.dtype} on {parameter.device}: local steps"
                    " need float32"
                )
        known = {id(parameter) for parameter in self._parameters}
        for number, group in enumerate(self.optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) not in known and parameter.requires_grad and parameter.numel():
                    raise ValueError(
                        f"param_groups[{number}] has a parameter of shape"
                        f" {tuple(parameter.shape)} that was not given: it would not be exchanged,"
                        " and ranks would drift apart"
                    )

    def _flat(self) -> List[torch.Tensor]:
        return [flat(parameter.detach()) for parameter in self._parameters]

    def _locate(self) -> List[Any]:
        return [(p.data_ptr(), tuple(p.shape), p.stride()) for p in self._parameters]

    def _follow(self) -> None:
        """Parameters may have been given other memory (parameter.data = ...), but not another shape
        or order of elements, which is that of the base and of the residual."""
        places = self._locate()
        if places == self._places:
            return
        self._check(list(zip(self._names, self._parameters)))
        for name, new, old in zip(self._names, places, self._places):
            if new[1:] != old[1:]:
                raise RuntimeError(
                    f"parameter {name!r} now has shape {new[1]} and strides {new[2]}, it had"
                    f" {old[1]} and {old[2]} when LocalSGD was made: change shape or memory format"
                    " (channels_last) before"
                )
        shares = self._shared is self._runs
        if (self._parameters[0].device.type == "cpu") != shares:
            raise RuntimeError(
                f"the parameters are on {self._parameters[0].device} now: move the model before"
                f" {type(self).__name__} is made"
            )
        self._runs = self._flat()
        if shares:
            self._shared = self._runs
            self.local.rebind(self._shared)
        self._places = places

    def _is_due(self) -> bool:
        """Whether the step that comes reads or writes parameters (tamis_local_step)."""
        row = self.local.stats()
        return bool(row["position"] + 1 >= (self._delay if row["under_way"] else row["steps"]))

    def _fetch(self) -> None:
        for copy, run in zip(self._shared, self._runs):
            copy.copy_(run)

    def _send(self) -> None:
        for copy, run in zip(self._shared, self._runs):
            run.copy_(copy)

    # ------------------------------------------------------------------------------ the caller

    def step(self, closure: Optional[Callable[[], float]] = None) -> Any:
        """A step of the wrapped optimizer; at the end of a round, the exchange."""
        self._check(list(zip(self._names, self._parameters)))
        loss = self._step_alone(closure)
        self._follow()
        if self._shared is self._runs or not self._is_due():
            self.local.step()
            return loss
        self._fetch()
        try:
            self.local.step()
        finally:  # what a failed round leaves counts, too
            self._send()
        return loss

    def _step_alone(self, closure: Optional[Callable[[], float]]) -> Any:
        """A step that a GradScaler leaves out on this rank counts, or rounds would no longer fit."""
        with handed_on(self, self.optimizer):
            self._scaling.heed({})
            try:
                return self.optimizer.step() if closure is None else self.optimizer.step(closure)
            finally:
                self._scaling.end()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none=set_to_none)

    @contextlib.contextmanager
    def base(self) -> Iterator[None]:
        """Within it the parameters are those that all ranks have in common."""
        self._follow()
        kept = [run.clone() for run in self._runs]
        self._fill()
        try:
            yield
        finally:
            for run, own in zip(self._runs, kept):
                run.copy_(own)

    def _fill(self) -> None:
        whole = torch.empty(sum(run.numel() for run in self._runs))
        self.local.base(whole)
        for run, piece in zip(self._runs, torch.split(whole, [r.numel() for r in self._runs])):
            run.copy_(piece)

    def stats(self) -> Dict[str, Any]:
        """Rounds, H, norms, bytes and times."""
        return self.local.stats()

    def set_steps(self, steps: int) -> None:
        """Change H, on all ranks."""
        self.local.set_steps(steps)

    def state_dict(self) -> Dict[str, Any]:
        """What this rank needs to go on bit for bit, beside the parameters: at any step."""
        local = _tensor(self.local.state())  # first: it ends an exchange under way
        saved = dict(self.optimizer.state_dict())
        saved["tamis_local"] = dict(
            format=FORMAT,
            names=list(self._names),
            local=local,
            control=_tensor(self.reducer.control()),
            residual=self._residual(),
        )
        return saved

    def _residual(self) -> Optional[torch.Tensor]:
        if not self._has_residual:
            return None
        residual = torch.empty(self.reducer.residual_length)
        self.reducer.residual(residual)
        return residual

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        saved = dict(state_dict)
        own = saved.pop("tamis_local", None)
        if not isinstance(own, dict) or own.get("format") != FORMAT:
            raise ValueError("this is not a result of LocalSGD.state_dict() of this version")
        if own["names"] != self._names:
            raise ValueError("the state was saved for other parameters, or in another order")
        if (own["residual"] is not None) != self._has_residual:
            raise ValueError("the state has no residual, or one that this scheme does not keep")
        before = (self.reducer.control(), self._residual())
        inner = self.optimizer.state_dict()
        self.optimizer.load_state_dict(saved)
        try:
            self.reducer.restore(_bytes(own["control"]), own["residual"])
            self.local.restore(_bytes(own["local"]))
        except BaseException:
            self.reducer.restore(*before)
            self.optimizer.load_state_dict(inner)
            raise

    def migrate(self, other: _core.Comm, joins: bool = False) -> Dict[str, Any]:
        """Go on over a communicator from Comm.shrink, Comm.grow or Comm.join_ucx, between rounds.
        Collective over it.

        joins    this rank has joined the job, and takes step and thresholds of the others; then
                 take_common of what common() gives on one of those
        @return  as tamis.Reducer.migrate

        Errors: `Error` (FORMAT) with a delay whose exchange is under way
        """
        old, state = self.reducer, self.local.state()
        self.local.close()
        self.reducer, report = old.migrate(other)
        old.close()
        self._begin_anew()
        if not joins:
            self.local.restore(state)
        self.comm = other
        return report

    def _begin_anew(self) -> None:
        """Local steps begin with equal parameters, which theirs are not within a round."""
        kept = [run.clone() for run in self._shared]
        for run in self._shared:
            run.zero_()
        try:
            self.local = _core.Local(self.reducer, self._shared, **self._rounds)
        finally:
            for run, own in zip(self._shared, kept):
                run.copy_(own)

    def common(self) -> Dict[str, Any]:
        """What a rank that joins needs: the base, the outer momentum, and the state of this rank's
        optimizer."""
        return {"local": self.local.state(), "optimizer": self.optimizer.state_dict()}

    def take_common(self, common: Dict[str, Any]) -> None:
        """The parameters become the base."""
        self.local.restore(common["local"])
        self.optimizer.load_state_dict(common["optimizer"])
        self._follow()
        self._fill()

    def add_param_group(self, param_group: Dict[str, Any]) -> NoReturn:
        raise RuntimeError("parameters cannot be added: make a new LocalSGD")

    def close(self) -> None:
        """Wait for an exchange under way, and close what was made here."""
        self._scaling.close()
        self.local.close()
        self.reducer.close()
        if self._own:
            self.comm.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.optimizer!r}, steps={self.stats()['steps']})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} can be neither copied nor pickled: save state_dict() instead"
        )


def _preset(name: str, options: Dict[str, Any]) -> Dict[str, Any]:
    """The published settings, less what the caller gives."""
    row = next(row for row in _core.local_presets() if row["name"] == name)
    settings = dict(
        steps=row["steps"],
        outer_lr=row["lr"],
        momentum=row["momentum"],
        scheme=row["scheme"],
        density=row["density"],
        value_codec=_VALUE_CODECS[row["value_codec"]],
    )
    if row["residual_decay"] >= 0.0:
        settings["residual_decay"] = row["residual_decay"]
    settings.update(options)
    return settings


class DiLoCo(LocalSGD):
    """LocalSGD as in DiLoCo (arXiv 2311.08105): 500 steps, outer rate 0.7, momentum 0.9."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Parameters, **options: Any
    ) -> None:
        super().__init__(optimizer, parameters, **_preset("diloco", options))


class SparseLoCo(LocalSGD):
    """LocalSGD as in SparseLoCo (arXiv 2508.15706): 30 steps; 3 % of each rank's own entries, in two
    bits, with error feedback in place of the outer momentum."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, parameters: Parameters, **options: Any
    ) -> None:
        super().__init__(optimizer, parameters, **_preset("sparseloco", options))


def _tensor(data: bytes) -> torch.Tensor:
    """torch.load(weights_only=True) takes tensors in all versions, unlike bytes."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _bytes(tensor: torch.Tensor) -> bytes:
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())
