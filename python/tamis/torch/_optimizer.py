# SPDX-License-Identifier: MIT
"""An optimizer that exchanges gradients sparsely, for loops without DistributedDataParallel."""

import contextlib
import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, NoReturn, Optional, Sequence, Tuple, Union

import torch

from .._core import Comm
from ._group import Place
from ._parameters import WRAPPED, Parameters, ddps_of, flat, holds_ddp, same_order
from ._state import SparseState
from ._scaling import Hidden, handed_on, scaled
from ._stepper import check_groups

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import StateOptions


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer, whose steps are then those of all ranks together.

        opt = tamis.torch.DistributedOptimizer(SGD(model.parameters(), 0.1), model, density=0.01)
        tamis.torch.broadcast_parameters(model, opt.tamis.comm)
        for x, y in loader:
            opt.zero_grad()
            loss(model(x), y).backward()          # of SGD, gradients leave as soon as they are ready
            opt.step()                            # waits for the result, then steps

    parameters  a module, or pairs of name and parameter, as in SparseState
    reduce      "gradient": the optimizer gets the mean over ranks of sparse gradients; "step": each
                rank's optimizer steps from its own gradient, and the largest entries of what it has
                changed are exchanged; None: what suits it, as of tamis.torch.attach
    norm_matching  as of tamis.torch.attach
    more        those of SparseState, among them meter=tamis.energy.Meter(...); the state is the
                attribute `tamis`

    Where steps are exchanged, gradients are the rank's own: clip them, accumulate them, use a
    GradScaler as alone. Where gradients are (SGD), call synchronize() before clipping and before a
    GradScaler: it waits and leaves the result in the gradients; step() then only steps. Put all
    micro-batches but the last into `with opt.no_sync():`. A parameter without a gradient contributes
    zeros. zero_grad() keeps the gradients' memory by default, for new memory costs time in every
    step. From backward() to synchronize() or step() gradients belong to the exchange: one that is
    changed or replaced meanwhile, also by DistributedDataParallel on the same model, is refused.

    Everything else is the wrapped optimizer's: param_groups, state, defaults, hooks, ... so
    schedulers work with either of them. add_param_group is refused, and closures with gradients.

    Collective: all ranks make, step and synchronize it
    Errors:     as SparseState; backward, synchronize and step raise what an exchange raises, and
                RuntimeError for what would let replicas drift apart. The state then ends
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Parameters,
        density: Optional[float] = None,
        reduce: Optional[str] = None,
        norm_matching: Optional[float] = None,
        **more: "Unpack[StateOptions]",
    ) -> None:
        # No Optimizer.__init__: groups and state are the wrapped optimizer's (__getattr__).
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError(f"a {type(optimizer).__name__} is not a torch.optim.Optimizer")
        if holds_ddp(parameters):
            raise TypeError(WRAPPED)
        self.optimizer = optimizer
        self.tamis = SparseState(
            parameters,
            density,
            optimizer=optimizer,
            reduce=reduce,
            norm_matching=norm_matching,
            **more,
        )
        self._targets = [
            (group, segment, parameter)
            for group in ([] if self.tamis.hooked is None else self.tamis.hooked.groups)
            for segment, parameter in enumerate(group.parameters)
        ]
        self._clear()
        self._syncing = True
        self._synchronized = self._lost = False
        self._handles = [self._watch(index) for index in range(len(self._targets))]
        self._watch_ddps()

    def __getattr__(self, name: str) -> Any:
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    # ------------------------------------------------------------------------------ gradients

    def _watch(self, index: int) -> Any:
        """Have _arrived called when backward has accumulated the gradient of a parameter."""
        parameter: Any = self._targets[index][2]
        this = weakref.ref(self)  # torch 2.14 and 2.15 never let go of the hook

        def arrived(*_: Any) -> None:
            wrapper = this()
            if wrapper is not None:
                wrapper._arrived(index)

        if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
            return parameter.register_post_accumulate_grad_hook(arrived)
        # The node lives only while something holds it.
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        node.register_hook(arrived)
        return node

    def _arrived(self, index: int) -> None:
        if not self._syncing and not self._synchronized:
            return
        try:
            if self._synchronized:
                raise RuntimeError(
                    "backward() was called after synchronize(): call step() between them, or"
                    " zero_grad() of this optimizer where the step is skipped"
                )
            if self._given[index] is not None:
                group, segment, _ = self._targets[index]
                raise RuntimeError(
                    f"the gradient of {group.names[segment]!r} came twice before step(): wrap all"
                    " backward passes of a step but the last in `with optimizer.no_sync():`"
                )
            self._mark(index)
        except BaseException as error:
            self._end_step(error)
            raise

    def _mark(self, index: int) -> None:
        group, _, parameter = self._targets[index]
        gradient: Any = parameter.grad
        place = self.tamis._cache.get(index)
        if place is None or place.tensors[0].data_ptr() != gradient.data_ptr():
            place = self._locate(index)
        # The last gradient of each dtype leaves in synchronize(). No result is applied without it,
        # so none is ever written into gradients that the caller may still change.
        self._left[group] -= 1
        self.tamis.mark(place, hold=self._left[group] == 0)
        self._given[index] = (gradient, gradient.data_ptr(), gradient._version)

    def _locate(self, index: int) -> Place:
        group, segment, parameter = self._targets[index]
        gradient: Any = parameter.grad
        name = group.names[segment]
        if gradient.is_sparse:
            raise TypeError(
                f"the gradient of {name!r} is sparse, which is not supported: make the embedding"
                " with sparse=False"
            )
        if gradient.requires_grad:
            raise RuntimeError(
                f"the gradient of {name!r} itself requires a gradient: backward(create_graph=True)"
                " is not supported, because the exchange changes gradients in place"
            )
        # In another order its entries would be added to others, where a rank has the parameter's.
        if not same_order(gradient, parameter):
            raise ValueError(
                f"the gradient of {name!r} has another memory layout than it: set it to None before"
                " backward(), which makes it in that of the parameter"
            )
        run = flat(gradient)
        place = Place(group, [segment], [run])
        self.tamis._cache[index] = place
        return place

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What a GradScaler asks for. False has it unscale gradients, also for a fused optimizer.
        True, while they are being exchanged, has it leave them and give itself away, for torch does
        not count what it changes; where steps are exchanged it has it call step() in any case."""
        return self._in_flight() or not self._targets

    def _in_flight(self) -> bool:
        return any(given is not None for given in self._given)

    def _end_step(self, error: Optional[BaseException]) -> None:
        if error is not None:
            self.tamis.fail(error)
        self._clear()

    def _clear(self) -> None:
        # Per gradient given to the exchange: the tensor, its address, its version counter.
        self._given: List[Optional[Tuple[torch.Tensor, int, int]]] = [None] * len(self._targets)
        hooked = self.tamis.hooked
        groups = [] if hooked is None else hooked.groups
        self._left = {group: len(group.parameters) for group in groups}

    def _check_untouched(self) -> None:
        """A gradient that was changed during its exchange would differ from rank to rank."""
        if self._in_flight() and scaled(self, {}):
            raise RuntimeError(
                f"rank {self.tamis.comm.rank}: a GradScaler steps while gradients are being"
                " exchanged: call synchronize() of this optimizer before scaler.step() and"
                " scaler.unscale_(), and give scaler= when it is made"
            )
        for given, (group, segment, parameter) in zip(self._given, self._targets):
            if given is None:
                continue
            gradient, address, version = given
            if parameter.grad is not gradient or gradient.data_ptr() != address:
                self._refuse_change(group.names[segment], "replaced")
            if gradient._version != version:
                self._refuse_change(group.names[segment], "changed")

    def _refuse_change(self, name: str, how: str) -> NoReturn:
        here = f"rank {self.tamis.comm.rank}: the gradient of {name!r} was {how}"
        if ddps_of(self.tamis.known_ids()):
            raise RuntimeError(f"{here} during its exchange: {WRAPPED}")
        raise RuntimeError(
            f"{here} between backward() and step(), during its exchange, so replicas would drift"
            " apart. To clip, to use a GradScaler, or to set gradients to zero or None there, call"
            " synchronize() of this optimizer first, which leaves the result there"
        )

    def _watch_ddps(self) -> None:
        """One that is made later, as by Trainer, is detected by its changes to gradients that are
        being exchanged, or, where steps are, after the first step."""
        for ddp in ddps_of(self.tamis.known_ids()):
            self._handles.append(ddp.register_forward_pre_hook(self._refuse_forward))

    def _refuse_forward(self, ddp: torch.nn.Module, _: Any) -> None:
        """A DDP may exist, and run forward passes, but must not exchange."""
        if torch.is_grad_enabled() and ddp.require_backward_grad_sync:
            raise RuntimeError(f"rank {self.tamis.comm.rank}: {WRAPPED}")

    # ------------------------------------------------------------------------------ the caller

    def synchronize(self) -> None:
        """Wait until the result of the exchange is in the gradients of all parameters.

        step() calls it if the caller has not. A second call before step() does nothing.
        """
        if self._synchronized or not self._targets:
            return
        try:
            self._check_untouched()
            check_groups(self.optimizer, self.tamis)
            for index, (_, _, parameter) in enumerate(self._targets):
                if self._given[index] is None:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    self._mark(index)
            hooked = self.tamis.hooked
            assert hooked is not None
            self._lost = not (self.tamis.finish(hooked) or hooked.late)
            for _, _, parameter in self._targets:
                if not parameter.requires_grad:  # frozen meanwhile: what the residual held is void
                    parameter.grad = None
        except BaseException as error:
            self._end_step(error)
            raise
        self._end_step(None)
        self._synchronized = True

    def step(self, closure: Optional[Callable[[], float]] = None) -> Any:
        """Exchange, unless synchronize() did, and let the wrapped optimizer step; where steps are
        exchanged, the other way round."""
        if closure is not None and self._targets:
            raise ValueError(
                "step(closure) is not supported: it would compute gradients that are not exchanged;"
                " call backward() before step()"
            )
        self.tamis.check()
        self.synchronize()
        self._synchronized = False
        if self._targets:
            return self._step_by_means()
        if self.tamis.steps == 0:
            self._watch_ddps()
        with handed_on(self, self.optimizer):
            return self.optimizer.step() if closure is None else self.optimizer.step(closure)

    def _step_by_means(self) -> Any:
        """With what was exchanged. In a step that all skip, zeros would still move momentum."""
        with Hidden(self.optimizer) if self._lost else contextlib.nullcontext():
            return self.optimizer.step()

    def zero_grad(self, set_to_none: bool = False) -> None:
        """As the wrapped optimizer's, but by default gradients keep their memory."""
        if self._in_flight():
            raise RuntimeError(
                "zero_grad() was called between backward() and step(), during the exchange"
            )
        hooked = self.tamis.hooked
        if self._synchronized and hooked is not None and hooked.may_discard:
            self.tamis.discard()
        self._synchronized = False
        self.optimizer.zero_grad(set_to_none=set_to_none)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, backward passes only add to the gradients; the next one outside exchanges."""
        before, self._syncing = self._syncing, False
        try:
            yield
        finally:
            self._syncing = before

    def state_dict(self) -> Dict[str, Any]:
        """That of the wrapped optimizer, and SparseState.state_dict() under "tamis"."""
        return dict(self.optimizer.state_dict(), tamis=self.tamis.state_dict())

    def load_state_dict(
        self, state_dict: Union[Dict[str, Any], Sequence[Dict[str, Any]]]
    ) -> None:
        """Load what state_dict gave on this rank, or a list of what it gave on all ranks of a run
        with another number of them (SparseState.load_state_dict)."""
        alone = not isinstance(state_dict, (list, tuple))
        every: List[Any] = [state_dict] if alone else list(state_dict)
        if not every or any("tamis" not in one for one in every):
            raise ValueError(
                "no residual was saved (no key 'tamis'): to begin with none, load the state of the"
                " optimizer into the wrapped one, by optimizer.optimizer.load_state_dict"
            )
        saved: Dict[str, Any] = dict(every[0])
        parts = [one["tamis"] for one in every]
        del saved["tamis"]
        self.optimizer.load_state_dict(saved)
        self.tamis.load_state_dict(parts[0] if alone else parts)

    def migrate(self, smaller: Union[Comm, Sequence[Comm]]) -> Dict[str, Any]:
        """After a failure: go on with the ranks that are left, as SparseState.migrate."""
        report = self.tamis.migrate(smaller)
        self._clear()
        self._synchronized = False
        return report

    def add_param_group(self, param_group: Dict[str, Any]) -> NoReturn:
        raise RuntimeError(
            "parameters cannot be added: residuals belong to the ones that were there when the"
            " optimizer was wrapped; make a new DistributedOptimizer"
        )

    def close(self) -> None:
        """Stop listening to gradients, and close the state."""
        for handle in self._handles:
            if hasattr(handle, "remove"):
                handle.remove()
        self._handles = []
        self._syncing = False
        self.tamis.close()

    def __repr__(self) -> str:
        reduce = "gradient" if self._targets else "step"
        return (
            f"DistributedOptimizer({self.optimizer!r}, density={self.tamis.density},"
            f" reduce={reduce!r})"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a DistributedOptimizer can be neither copied nor pickled: save state_dict() instead"
        )
