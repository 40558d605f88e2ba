# SPDX-License-Identifier: MIT
"""The state of sparse training: reducers, residuals, and the step that is under way."""

import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

import torch

from .. import _core, energy, launch
from . import _checkpoint, _comm, _guard, _move, _parameters, _plot, _ranks, _takeover, _update
from ._figures import Figures, joules, merged
from ._group import Group, Place
from ._streams import Streams, on

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import ReducerOptions


class SparseState:
    """Sparse exchange of the gradients of some parameters. For DDP: the state of `sparse_hook`.

    parameters     a module, or pairs of name and parameter; those that require a gradient take
                   part. float32, float16 and bfloat16, on one device. Names, order, shapes and
                   dtypes must be the same on all ranks
    density        share of the entries that travel
    scheme         a preset, or four policies joined by '+' (tamis.schemes()); None: "tamis", or
                   "tamis-update" with an update of rule adam
    transport      "auto", "mpi", "torch", "nccl", "local": see tamis.comm
    overlap        exchange while backward still computes. It changes times, never bits
    bucket_length  elements that are exchanged together, or "planned". It changes the bits
    nonfinite      what happens when a gradient holds NaN or Inf on any rank. "error": backward (or
                   synchronize, step) raises tamis.Error on all ranks, all gradients are zero, and
                   the next step works; "skip": gradients are zero; "drop": without the bad entries
    op             "mean" or "sum"
    warmup         number of first steps that exchange whole gradients; until then the residual is
                   zero
    update         "adam", "momentum", or a dict, as tamis.Reducer takes it. The gradients then hold
                   a step, which plain SGD applies: p -= lr * p.grad. A hook cannot see the
                   optimizer; DistributedOptimizer(reduce="update") takes the rule from it
    scaler         a torch.amp.GradScaler. The residual is then kept in unscaled units, so the scale
                   may change, and a step with NaN or Inf leaves Inf in the gradients of all ranks,
                   which makes the scaler skip it and lower its scale. nonfinite is then "skip"
    check_every    the first step compares the parameters of all ranks; on a difference it raises on
                   all ranks a tamis.Error that names it. N: so does every Nth step; 0: none does.
                   It costs a pass over the parameters and a small all-gather for each
    timeout_s      deadline of every wait; None: TAMIS_TIMEOUT_MS, else 300 s
    comm           a communicator to use instead of a transport; with parameters of several dtypes
                   one for each dtype, in the order in which they first appear
    clip_norm      clip each rank's own gradient to this L2 norm before it is exchanged (and before
                   Adam sees it). All gradients then leave at the end of backward, without overlap
    meter          a tamis.energy.Meter, which learns phases and steps; close the state first
    more           what else tamis.Reducer takes: wire_type, density_max, threads, link_gbit, ...

    Collective: yes, and so are the steps: every rank makes the state at the same point.

    One state serves one model, whose parameters stay the same. It can be neither copied nor
    pickled; state_dict() is what a checkpoint holds. A failure that loses the communicator ends the
    state: it leaves its communicators, so that no rank waits for it longer than the deadline, and
    every later step raises the first cause again. state_dict() still works.

    Parameters on CUDA need a build with CUDA. Gradients are taken behind the stream that is current
    when they are complete, and results appear on the one that is current at the end (the hook's
    return, synchronize, step). If NCCL carries parameters of a single dtype and there is no scaler,
    the host does not wait for a step: NaN and Inf in it are raised by the step after it, on all
    ranks, whose own result is then in the gradients; stats, state_dict and close tell those of the
    last step.

    Errors: TypeError, ValueError for what is wrong with the parameters; `Error` as tamis.Reducer
    """

    def __init__(
        self,
        parameters: _parameters.Parameters,
        density: float = 0.01,
        scheme: Optional[str] = None,
        transport: str = "auto",
        overlap: bool = True,
        bucket_length: Union[int, str] = "planned",
        nonfinite: str = "error",
        op: str = "mean",
        warmup: int = 0,
        scaler: Optional[Any] = None,
        check_every: Optional[int] = None,
        timeout_s: Optional[float] = None,
        comm: Union[_core.Comm, Sequence[_core.Comm], None] = None,
        meter: Optional[energy.Meter] = None,
        clip_norm: Optional[float] = None,
        **more: "Unpack[ReducerOptions]",
    ) -> None:
        options: Dict[str, Any] = dict(more)
        rows = _parameters.collect(parameters)
        families = list(_parameters.by_dtype(rows).values())
        if warmup < 0:
            raise ValueError(f"warmup is {warmup}, not a number of steps from 0 on")
        if warmup and options.get("update") is not None:
            raise ValueError(
                f"warmup is {warmup}, with an update: whole gradients are not updates; begin with a"
                " high density (density_max, set_density) instead"
            )
        if check_every is not None and check_every < 0:
            raise ValueError(f"check_every is {check_every}, not a number of steps, or 0 for never")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm is {clip_norm}, not a norm above 0, or None")
        if scheme is None:
            scheme = "tamis-update" if _is_adam(options.get("update")) else "tamis"
        self.device = rows[0][1].device
        _need_cuda(self.device)
        self.density, self.scheme, self.op, self.warmup = density, scheme, op, warmup
        self.overlap, self.scaler, self.check_every = overlap, scaler, check_every
        self.nonfinite = nonfinite if scaler is None else "skip"
        options.setdefault("worker", "thread" if overlap else "caller")
        options.update(
            scheme=scheme,
            density=density,
            device=self.device.type,
            op=op,
            nonfinite=self.nonfinite,
            bucket_length=bucket_length,
            meter=meter,
        )
        self.meter = meter
        self.clip_norm = None if clip_norm is None else float(clip_norm)
        self._taken: Optional[_update.Taken] = None
        self._attached: Optional[_takeover.Attached] = None
        self._tell_adaptive = True
        with on(self.device):
            comms = _ranks.communicators(
                parameters, comm, len(families), transport, timeout_s, self.device
            )
        launch.tell_detour(comms[0], self.device.type)
        self._own_comms = comms if comm is None else []
        self._ddp = isinstance(parameters, torch.nn.parallel.DistributedDataParallel)
        host_waits = self.device.type == "cpu" or len(families) > 1 or scaler is not None
        common = (
            f"check_every={check_every}, warmup={warmup}, scaler={scaler is not None},"
            f" clip_norm={clip_norm}"
        )
        try:
            _guard.check_options(comms[0], common)
            with on(self.device):
                self.groups = [
                    Group(family, one, options, warmup > 0, overlap, host_waits)
                    for family, one in zip(families, comms)
                ]
        except BaseException:
            self._leave_comms()
            raise
        self.comm = comms[0]
        self.update: Optional[Dict[str, Any]] = self.groups[0].sparse.update
        self._advised = _is_advised(options.get("update"), self.update)
        self._factor = 1.0
        self._index = {
            id(parameter): (group, segment)
            for group in self.groups
            for segment, parameter in enumerate(group.parameters)
        }
        self.steps = 0
        self.figures = Figures()
        self._limit_s = _comm.seconds(timeout_s) + 1.0
        self.error: Optional[BaseException] = None
        self._closed = False
        self._cache: Dict[int, Place] = {}
        self._futures: List[Tuple[Any, torch.Tensor]] = []
        self._streams = Streams(self.device)
        self._telling = False  # an error is on its way to backward()
        self._clear_step()
        self._unused = weakref.finalize(self, _guard.tell_unused)

    # ---------------------------------------------------------------------------------- a step

    def _clear_step(self) -> None:
        self._places: List[Place] = []
        self._held: List[Place] = []  # those of _places not handed over yet
        self._marked = 0
        self._scale = 1.0
        self._streams.clear()

    def _locate(self, parameter: torch.Tensor) -> Tuple[Group, int]:
        found = self._index.get(id(parameter))
        if found is None:
            raise RuntimeError(
                f"rank {self.comm.rank}: a gradient came for a parameter of shape"
                f" {tuple(parameter.shape)} that the state does not know: a state serves the one"
                " model that it was made for, with the parameters that required a gradient then"
            )
        return found

    def _mark(self, place: Place, hold: bool = False) -> None:
        """The gradients of a place are complete. `hold`: they leave in _finish."""
        if not self._marked:
            self._begin()
        self._marked += len(place.segments)
        self._places.append(place)
        self._streams.arrive()
        if self.overlap and not hold and self.clip_norm is None:
            self._leave(place)
        else:
            self._held.append(place)

    def _leave(self, place: Place) -> None:
        with torch.profiler.record_function("tamis: start"):
            if self._taken is not None and self._taken.decay(place, 1.0 / self._scale):
                self._streams.arrive()
            place.group.ready(place.plan, self._scale, self._streams.given())

    @torch.no_grad()
    def _clip(self) -> None:
        """Clip this rank's gradient, all of which is held. What is not finite stays so."""
        norms = [place.whole.float().norm() for place in self._held]
        norm = torch.stack(norms).norm().item() * self._scale
        self.figures.gradient_norm = norm
        if norm > self.clip_norm and norm < float("inf"):
            for place in self._held:
                place.whole.mul_(self.clip_norm / norm)

    def _begin(self) -> None:
        self.check()
        if self.scaler is not None:
            self._scale = 1.0 / self.scaler.get_scale()
        self._check_parameters()

    def _check_parameters(self) -> None:
        made = self.figures.steps
        due = made == 0 or (self.check_every and made % self.check_every == 0)
        if due and self.check_every != 0 and self.comm.nranks > 1:
            rows = [row for group in self.groups for row in zip(group.names, group.parameters)]
            _guard.check_parameters(rows, self.comm, self.steps)

    def _finish(self) -> None:
        """Put the results of all groups, or of none, into the gradients."""
        with torch.profiler.record_function("tamis: finish"):
            self._finish_all()

    def _finish_all(self) -> None:
        begin = time.perf_counter()
        if self._marked != len(self._index):
            raise RuntimeError(self._missing())
        self._streams.gather()
        if self.clip_norm is not None:
            self._clip()
            self._streams.arrive()
        for place in self._held:
            self._leave(place)
        failure, lost = None, False
        for group in self.groups:
            try:
                lost |= not group.finish(self._streams.now())
            except _core.Error as error:
                if error.lost != "step":
                    raise
                failure = error
        rows = [group.reducer.stats() for group in self.groups]
        lost = lost or failure is not None
        if lost and len(self.groups) > 1:
            self._take_back([group for group, row in zip(self.groups, rows) if not row["skipped"]])
        self._rescale(lost)
        self._unused.detach()
        self.steps += 1
        for group in self.groups:
            group.count()
        self.figures.add(self.groups, rows, time.perf_counter() - begin, lost)
        if self.meter is not None:
            self.meter.step(merged(rows, lost))
        self._clear_step()
        self._choose()
        if self._tell_adaptive:
            self._tell_adaptive = False
            _takeover.warn_of_others(self)
        if failure is not None:
            raise failure

    def _choose(self) -> None:
        warm = self.steps >= self.warmup
        if any([group.choose(warm) for group in self.groups]):
            self._cache.clear()

    def _take_back(self, applied: List[Group]) -> None:
        """Another group lost the step, so no group applies it: return results to the residual."""
        for group in applied:
            views: Dict[int, torch.Tensor] = {}
            for place in self._places:
                if place.group is group:
                    views.update(zip(place.segments, place.tensors))
            if self.scheme != "dense":
                runs = [_parameters.flat(views[segment]) for segment in range(len(views))]
                group.take_back(torch.cat(runs).float().cpu(), self.op)
            for view in views.values():
                view.zero_()

    def _rescale(self, lost: bool) -> None:
        """Scale the results by the density and the scaler; a lost step gives the scaler Inf."""
        if lost and self.scaler is not None:
            self._places[0].whole.view(-1)[0] = float("inf")
            return
        factor = self._factor / self._scale
        for place in self._places:
            if factor != 1.0:
                place.whole.mul_(factor)

    def _follow_density(self) -> None:
        """Adapt the scale: the reducers' own belongs to the density they were made with."""
        if self._advised and self.update is not None:
            scale, _ = _core.update_advise(self.density, self.update["beta1"])
            self._factor = scale / self.update["scale"]

    def _fail(self, error: BaseException) -> None:
        """A step raised. If only the step is lost, the next one starts afresh; else end here."""
        self._clear_step()
        if self.error is not None or (isinstance(error, _core.Error) and error.lost == "step"):
            return
        self.error = error
        self._unused.detach()
        for group in self.groups:
            group.comm.abort()
        self._leave_comms()

    def _settle(self) -> None:
        """After a failure, let a thread that is still inside the step leave it, and forget steps
        that a device was given but has not ended."""
        if self.error is not None:
            self.settle()
            self.steps -= min([group.uncount() for group in self.groups])

    def _leave_comms(self) -> None:
        for comm in self._own_comms:
            _comm.leave(comm)

    def _missing(self) -> str:
        found = {(id(place.group), s) for place in self._places for s in place.segments}
        names = [
            name
            for group in self.groups
            for segment, name in enumerate(group.names)
            if (id(group), segment) not in found
        ]
        some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        return (
            f"rank {self.comm.rank}: {len(names)} of {len(self._index)} parameters of the state got"
            f" no gradient in this step ({some}): the state belongs to another model, or this one"
            " has changed since the state was made"
        )

    # ------------------------------------------------------------------------------ the caller

    def check(self) -> None:
        """Raise the error that ended the state, if there is one."""
        if self.error is not None:
            raise self.error

    def stats(self) -> Dict[str, Any]:
        """Figures of this rank.

        "density_asked"; "step": the last step, "total": all steps since the state was made, both
        merged over dtypes: "wire_bytes" (sent by this rank), "dense_bytes" (what a ring all-reduce
        would send), "compression" (their ratio; None where nothing was sent), "seconds" by phase,
        with "exposed" for the time that the step had to wait, "hidden" (the share of the phases'
        time beside backward) and, per step, "density" (actual), "selected" and, with clip_norm,
        "gradient_norm" (of this rank's whole gradient); "groups": tamis_stats of each dtype. With a
        meter "energy": its joules by phase, from this host's counters; None if nothing is known;
        meter.read() then says why. "driver": "device" or "host", who drives the steps (docs/cuda.md);
        "driver_reason": what keeps the host at it where gradients are on a device.

        It waits for the last step on a device, and raises what became of it.
        """
        self._tell_outcome()
        return self._figures()

    def _tell_outcome(self) -> None:
        """Where a device runs the steps, an error of the last one would else be told by the next."""
        if self.error is not None or self._closed or self._marked:
            return
        for group in self.groups:
            group.outcome()
        self.figures.renew([group.reducer.stats() for group in self.groups])

    def _figures(self) -> Dict[str, Any]:
        figures = dict(self.figures.read(self.groups), density_asked=self.density)
        figures["driver"], figures["driver_reason"] = self._driver()
        if self.meter is not None:
            figures["energy"] = joules(self.meter)
        return figures

    def _driver(self) -> Tuple[str, str]:
        """Who drives the steps, and why a device does not; of several dtypes the first that the host
        drives."""
        every = [group.reducer.driver for group in self.groups]
        return next((one for one in every if one[0] == "host"), every[0])

    def scalars(self) -> Dict[str, float]:
        """The figures of the last step as flat numbers, for loggers (TensorBoard's add_scalar,
        logging): "tamis/density", "tamis/wire_bytes", "tamis/compression", "tamis/hidden",
        "tamis/exposed_s", with clip_norm "tamis/gradient_norm". Empty before the first step."""
        last = self.stats()["step"]
        if not last:
            return {}
        last["exposed_s"] = last["seconds"]["exposed"]
        names = ("density", "wire_bytes", "compression", "hidden", "exposed_s", "gradient_norm")
        return {"tamis/" + n: float(last[n]) for n in names if last.get(n) is not None}

    def plot(
        self, path: Union[str, "os.PathLike[str]"], losses: Optional[Sequence[float]] = None
    ) -> None:
        """Draw this rank's steps into a file (PNG, SVG, PDF): bytes beside those of a dense ring,
        and the times of a step, of waiting, and of phases hidden beside backward.

        losses  one for each step, or at even distances, to be drawn above them

        Long runs are drawn as means over steps. Needs matplotlib, and no display.
        Errors: ImportError without matplotlib; ValueError before the first step
        """
        title = f"{self.scheme}, density {self.density}, rank {self.comm.rank} of {self.comm.nranks}"
        _plot.draw(self.figures.history, losses, title).savefig(path, dpi=100)

    def residual_norm(self) -> float:
        """L2 norm of this rank's residual."""
        if self.scheme == "dense":
            return 0.0
        self._settle()
        squares = [group.residual().double().square().sum().item() for group in self.groups]
        return float(sum(squares) ** 0.5)

    def set_density(self, density: float) -> None:
        """Set the density from the next step on, at most density_max. All ranks call it between
        the same steps. Updates are then scaled as tamis.update_advise says, unless a scale was
        given.
        """
        for group in self.groups:
            group.sparse.set_density(density)
        self.density = density
        self._follow_density()

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint of this rank needs beside model and optimizer. Tensors are copies.

        Each rank has its own. The residual holds gradient that is not applied yet; a run that
        continues without it loses that gradient. With an update the moments are included. Allowed
        after a failure, but not within a step.
        """
        self._settle()
        self._tell_outcome()
        return _checkpoint.save(self)

    def load_state_dict(
        self, state_dict: Union[Dict[str, Any], Sequence[Dict[str, Any]]], strict: bool = True
    ) -> List[str]:
        """Load what state_dict gave on this rank. The run continues bit for bit.

        state_dict  what it gave; for another number of ranks a list of what it gave on all ranks,
                    in their order. Residuals are then summed, so that the gradient pending in the
                    mean stays, all ranks get the mean of the moments, and thresholds are found anew
        strict      False: take only residuals and moments, by parameter name, where name and shape
                    agree; for another density or scheme
        @return     names of parameters whose residual was taken

        All ranks load the same step, or call align().
        Errors: ValueError naming what differs; the state is then unchanged
        """
        return _checkpoint.load(self, state_dict, strict)

    def align(self) -> int:
        """After loading: bring ranks whose states are one step apart to the same step. Collective.

        If the last exchange of a step fails on some ranks only, the others have made the step.
        They undo it: what they sent in it returns to their residual. Model and optimizer must be
        those of the returned step. A rank that did not make the last step has saved them, and as
        they are equal on all ranks, that copy serves all.

        @return  finished steps, the same on all ranks
        Errors: `Error` on all ranks if their steps are further apart, or if one cannot undo its
                last; RuntimeError, also on all, if the last step exchanged parameters of one dtype
                but not those of another: go back to an older checkpoint
        """
        self._settle()
        met = [group.align() for group in self.groups]
        if min(met) != max(met):
            raise RuntimeError(
                f"the exchanges of {len(met)} dtypes stopped at steps {met}: go back to an older"
                " checkpoint"
            )
        self.steps -= min([group.uncount(made) for group, made in zip(self.groups, met)])
        self._choose()
        return self.steps

    def settle(self) -> None:
        """After a failure of the communicator: end the step under way, within the deadline."""
        for group in self.groups:
            group.settle(self._limit_s)

    def move(self, smaller: Union[_core.Comm, Sequence[_core.Comm]]) -> Dict[str, Any]:
        """After a failure: go on with the ranks that are left. Collective over them.

        smaller  state.comm.shrink(), with several dtypes one for each of their communicators. The
                 old one is closed if the state made it
        @return  as tamis.Reducer.move; "step" counts finished steps of this state

        Means are then those of the ranks that are left. Model and optimizer must be those of that
        step, and a rank that has made one step more is ahead with them: tamis.run_elastic takes
        care of that. Of a DistributedOptimizer call its own move().

        Errors: as tamis.Reducer.move; RuntimeError with DistributedDataParallel, which has a
                process group of its own
        """
        return _move.move(self, smaller)

    def close(self) -> None:
        """Free reducers, and communicators that the state made. A second call does nothing.

        Errors: `Error` if another thread is inside a step; that of the last step on a device, if
                nothing has raised it yet: all is closed then
        """
        if self._closed:
            return
        self._unused()
        self._settle()
        failure: Optional[_core.Error] = None
        try:
            self._tell_outcome()
        except _core.Error as error:
            failure = error
        if self._attached is not None:
            self._attached.close()
        self._cache.clear()
        for group in self.groups:
            group.close()
        self._closed = True
        for comm in self._own_comms:
            comm.close()
        self._leave_comms()
        if failure is not None:
            raise failure

    def __repr__(self) -> str:
        if self._closed:
            return f"SparseState({self.scheme!r}, density={self.density}, closed)"
        figures = self._figures()
        total, last = figures["total"], figures["step"]
        rule = f", update={self.update['rule']!r}" if self.update else ""
        text = (
            f"SparseState({self.scheme!r}, density={self.density}{rule}, {self.comm.transport},"
            f" rank {self.comm.rank} of {self.comm.nranks}, {total['steps']} steps"
        )
        if last and total["compression"]:
            text += (
                f", {last['density']:.2%} of the entries in {last['wire_bytes']:,} bytes a step,"
                f" 1/{total['compression']:.1f} of dense, {last['hidden']:.0%} hidden"
            )
        if self.device.type == "cuda":
            why = figures["driver_reason"]
            text += f", driven by the {figures['driver']}" + (f" ({why})" if why else "")
        return text + (f", ended by: {self.error})" if self.error else ")")

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SparseState can be neither copied nor pickled: it holds connections to other"
            " processes; save state_dict() instead"
        )


def _is_adam(update: Any) -> bool:
    """Whether an option `update` has rule adam; the reducer reports errors in it."""
    return update == "adam" or (isinstance(update, dict) and update.get("rule", "adam") == "adam")


def _is_advised(given: Any, update: Optional[Dict[str, Any]]) -> bool:
    """Whether the scale of the update comes from update_advise, not from the caller or norms."""
    own = isinstance(given, dict) and (given.get("scale") is not None or given.get("match"))
    return update is not None and update["rule"] == "adam" and not own


def _need_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        return
    feature = next(row for row in _core.features() if row["name"] == "cuda")
    if not feature["available"]:
        raise RuntimeError(
            f"the parameters are on {device}, but this tamis cannot use CUDA: {feature['reason']}"
        )
