# SPDX-License-Identifier: MIT
"""The state of sparse training: how it is made, and what its callers use. Its steps: _steps.py."""

import os
import weakref
from typing import TYPE_CHECKING, Any, Dict, List, NoReturn, Optional, Sequence, Tuple, Union

import torch

from .. import _core, energy, launch
from . import _checkpoint, _comm, _files, _guard, _migrate, _parameters, _plan, _plot, _ranks, _report
from ._figures import Figures
from ._gathered import Gathered
from ._group import Group
from ._kinds import WHOLE
from ._limits import Limits
from ._options import check_options
from ._stepper import check_groups, release
from ._steps import Steps
from ._streams import on

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._options import ReducerOptions


CHECK_EVERY = 200  # steps


class SparseState(Steps):
    """Sparse exchange of a model's training. For DDP: the state of `sparse_hook`.

    parameters     a module, or pairs of name and parameter; those that require a gradient take
                   part. float32, float16 and bfloat16, on one device. Names, order, shapes and
                   dtypes must be the same on all ranks
    density        share of the entries that travel; None: what suits the optimizer
    byte_share     in its place: the most bytes of a step, as a share of those of dense
    slowdown       share of a step's computing that it may wait for the exchange: the density falls
                   while steps wait longer, and rises again. Not on a device. Bits depend on times
    scheme         a preset, or four policies joined by '+' (tamis.schemes()); None: "tamis" for
                   gradients, "tamis-update" for steps
    transport      "auto", "mpi", "torch", "nccl", "local": see tamis.comm
    overlap        exchange gradients while backward still computes. It changes times, never bits
    bucket_length  elements that are exchanged together, or "planned". It changes the bits
    nonfinite      what happens when an entry is NaN or Inf on any rank. "error": backward (or
                   synchronize, step) raises tamis.Error on all ranks, nothing is applied, and the
                   next step works; "skip": nothing is applied; "drop": without the bad entries,
                   not where steps are exchanged
    op             "mean" or "sum"
    warmup         number of first steps that exchange whole gradients; until then the residual is
                   zero
    scaler         a torch.amp.GradScaler. Residuals of gradients are then kept in unscaled units,
                   so the scale may change, and a step with NaN or Inf leaves Inf in the gradients
                   of all ranks, which makes the scaler skip it and lower its scale. nonfinite is
                   then "skip"
    check_every    the first step and every Nth, of which None makes 200, compare the parameters of
                   all ranks, and their learning rates; on a difference they raise on all ranks a
                   tamis.Error that names it. 0: none does. It costs a pass over the parameters, and
                   the moments of an optimizer that gets means, from a device by way of the host,
                   and three small all-gathers
    timeout_s      deadline of every wait; None: TAMIS_TIMEOUT_MS, else 300 s
    comm           a communicator to use instead of a transport; a list where there are several
                   dtypes, or optimizers whose steps are exchanged, in the order in which they first
                   appear
    clip_norm      clip each rank's own gradient to this L2 norm before it is exchanged, or before
                   the optimizer steps. Gradients then leave at the end of backward, without overlap
    skip_norm      a step in which the gradient of any rank has a larger L2 norm is left out by all,
                   as if it had not been: for what a script does by `if norm > ...: continue`, which
                   here each rank would decide by its own gradient. So is one with NaN or Inf, but
                   for a GradScaler's. It costs a message of a few bytes a step
    discards       where gradients are exchanged: keep what the residual was before each backward
                   pass, so that a pass which no step() follows is forgotten when the next one
                   begins, bit for bit, and discard() works. It costs 4 bytes an element and a pass.
                   All but the last pass of a step then go into no_sync()
    meter          a tamis.energy.Meter, which learns phases and steps; close the state first
    optimizer      the one, or several, that step the parameters: see `attach`
    reduce, norm_matching  as there
    more           what else tamis.Reducer takes: value_codec, density_max, threads, link_gbit, ...

    Collective: yes, and so are the steps: every rank makes the state at the same point.

    One state serves one model, whose parameters stay the same. It can be neither copied nor
    pickled; state_dict() is what a checkpoint holds. A failure that loses the communicator ends the
    state: it leaves its communicators, so that no rank waits for it longer than the deadline, and
    every later step raises the first cause again. state_dict() still works.

    Parameters on CUDA need a build with CUDA. Gradients are taken behind the stream that is current
    when they are complete, and results appear on the one that is current at the end (the hook's
    return, synchronize, step). If NCCL carries parameters of a single dtype and there is no scaler,
    the host does not wait for a step: NaN and Inf in it are raised by the step after it, on all
    ranks, whose own result is then applied; stats, state_dict and close report those of the last
    step.

    Errors: TypeError, ValueError for what is wrong with the parameters; `Error` as tamis.Reducer
    """

    def __init__(
        self,
        parameters: _parameters.Parameters,
        density: Optional[float] = None,
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
        skip_norm: Optional[float] = None,
        discards: bool = False,
        optimizer: Any = None,
        reduce: Optional[str] = None,
        norm_matching: Optional[float] = None,
        **more: "Unpack[ReducerOptions]",
    ) -> None:
        options: Dict[str, Any] = dict(more)
        rows = _parameters.collect(parameters)
        self.optimizers = _plan.optimizers_of(optimizer)
        kinds = _plan.kinds_of(self.optimizers, reduce, density, scheme, norm_matching)
        self._known = {id(p): (name, _parameters.form(p)) for name, p in rows}
        for one in self.optimizers:
            release(one)
            check_groups(one, self)
        families = _plan.families_of(rows, self.optimizers, kinds)
        scaler = scaler if scaler is None or scaler.is_enabled() else None
        local = any(family.kind.mode == "step" for family in families)
        parts = len({family.owner for family in families})
        norms = {"clip_norm": clip_norm, "skip_norm": skip_norm}
        check_options(options, density, warmup, check_every, norms, local, parts, nonfinite)
        nonfinite = nonfinite if scaler is None else "skip"
        self.device = rows[0][1].device
        self.op, self.warmup = op, warmup
        self.overlap, self.scaler = overlap, scaler
        self.check_every = CHECK_EVERY if check_every is None else check_every
        self.nonfinite = nonfinite
        self.meter = meter
        self.discards = discards
        options.setdefault("worker", "thread" if overlap else "caller")
        options.update(
            scheme=scheme,
            device=self.device.type,
            op=op,
            nonfinite=self.nonfinite,
            bucket_length=bucket_length,
            meter=meter,
        )
        with on(self.device):
            comms = _ranks.communicators(
                parameters, comm, len(families), transport, timeout_s, self.device
            )
        launch.tell_detour(comms[0], self.device.type)
        self._own_comms = comms if comm is None else []
        self._inside = getattr(parameters, "inside", None)
        self.ranks_inside, self.suffix = 1, ""  # of what it saves: ranks of a node have other shards
        if self._inside is not None:
            self.ranks_inside = torch.distributed.get_world_size(self._inside)
            self.suffix = f"-shard{torch.distributed.get_rank(self._inside)}"
        self.by_ddp = isinstance(parameters, torch.nn.parallel.DistributedDataParallel)
        waits = scaler is not None or self.discards  # for what becomes of a step
        host_waits = self.device.type == "cpu" or len(families) > 1 or waits
        common = (
            f"check_every={self.check_every}, warmup={warmup}, scaler={scaler is not None},"
            f" clip_norm={clip_norm}, skip_norm={skip_norm}, discards={discards},"
            f" reduce={[kind.mode for kind in kinds]}"
        )
        try:
            _guard.check_options(comms[0], common)
            with on(self.device):
                self.groups = self._make_groups(families, comms, density, options, host_waits)
                self.limits = Limits(clip_norm, skip_norm, comms[0], self.device)
        except BaseException:
            self._leave_comms()
            raise
        self.comm = comms[0]
        self.density = self._density_of(density)
        self.scheme = "+".join(sorted({group.scheme for group in self.groups}))
        self._checked = -1
        self._make_exchanges(families, kinds)
        self.figures = Figures()
        self._limit_s = _comm.seconds(timeout_s) + 1.0
        self.error = None
        self._closed = False
        self._cache = {}
        self._futures: List[Tuple[Any, torch.Tensor]] = []
        self._tell_adaptive = self.density != 1.0 and bool(self.not_given())
        self._told = False
        self._telling = False  # an error is on its way to backward()
        self._unused = weakref.finalize(self, _guard.tell_unused)

    def _make_groups(
        self,
        families: List[_plan.Family],
        comms: List[_core.Comm],
        density: Optional[float],
        options: Dict[str, Any],
        host_waits: bool,
    ) -> List[Group]:
        groups = []
        for family, comm in zip(families, comms):
            owner = None if family.owner is None else self.optimizers[family.owner]
            own = _plan.options_of(family.kind, owner, density, options)
            groups.append(
                Group(family.rows, comm, own, self.warmup > 0, self.overlap, host_waits)
            )
        return groups

    def _density_of(self, given: Optional[float]) -> Optional[float]:
        """None: several optimizers have each its own."""
        if given is not None:
            return float(given)
        own = {group.sparse.density for group in self.groups if group.scheme not in WHOLE}
        return own.pop() if len(own) == 1 else None if own else 1.0

    def _quiesce(self) -> None:
        """After a failure, let a thread that is still inside the step leave it, and forget steps
        that a device was given but has not ended."""
        if self.error is not None:
            self.quiesce()
            for exchange in self.exchanges:
                exchange.steps -= min([group.uncount() for group in exchange.groups])

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
        return _report.figures(self)

    def _tell_outcome(self) -> None:
        """Where a device runs the steps, an error of the last one would else be the next one's."""
        under_way = any(exchange.under_way for exchange in self.exchanges)
        if self.error is not None or self._closed or under_way:
            return
        for group in self.groups:
            group.outcome()
        self.figures.renew([group.reducer.stats() for group in self.groups])

    def scalars(self) -> Dict[str, float]:
        """The figures of the last step as flat numbers, for loggers (TensorBoard's add_scalar,
        logging): "tamis/density", "tamis/wire_bytes", "tamis/compression", "tamis/hidden",
        "tamis/exposed_s", "tamis/residual_norm", "tamis/captured" (of the energy that this rank had
        accumulated, the share that travelled), with clip_norm "tamis/gradient_norm"; and
        "tamis/lost_steps" since the beginning. Empty before the first step."""
        return _report.scalars(self.stats())

    def plot(
        self, path: Union[str, "os.PathLike[str]"], losses: Optional[Sequence[float]] = None
    ) -> None:
        """Draw this rank's steps into a file (PNG, SVG, PDF): bytes beside those of a dense ring,
        the share of energy that travelled, and the times of a step, of waiting, and of phases
        hidden beside backward.

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
        self._quiesce()
        squares = [group.residual().double().square().sum().item() for group in self.groups]
        return float(sum(squares) ** 0.5)

    def set_density(self, density: float) -> None:
        """Set the density from the next step on, at most density_max. All ranks call it between
        the same steps. If it raises, all is as before.
        """
        before = [(group, group.density) for group in self.groups]
        try:
            for group in self.groups:
                group.set_density(float(density))
        except BaseException:
            for group, own in before:
                if group.density != own:
                    group.set_density(own)
            raise
        self.density = float(density)

    def state_dict(self) -> Dict[str, Any]:
        """What a checkpoint of this rank needs beside model and optimizer. Tensors are copies.

        Each rank has its own, under the key "rank<r>". The residual holds what is not applied yet; a
        run that continues without it loses that. The state of optimizers that step by this rank's
        own gradient is included. Allowed after a failure, but not within a step. Where one rank
        writes the checkpoint: gathered()
        """
        self._quiesce()
        self._tell_outcome()
        return _checkpoint.save(self)

    def load_state_dict(
        self, state_dict: Union[Dict[str, Any], Sequence[Dict[str, Any]]], strict: bool = True
    ) -> List[str]:
        """Load what state_dict gave on this rank. The run continues bit for bit.

        state_dict  what it gave; or a dictionary with the keys of all ranks, or a list of
                    dictionaries. With another number of ranks their residuals are summed, so that
                    what is pending in the mean stays, all ranks get the mean of the moments, and
                    thresholds are found anew
        strict      False: take only residuals and moments, by parameter name, where name and shape
                    agree; for another density or scheme
        @return     names of parameters whose residual was taken

        All ranks load the same step, or call resync().
        Errors: ValueError naming what differs; the state is then unchanged
        """
        return _checkpoint.load(self, state_dict, strict)

    def gathered(self) -> Gathered:
        """An object whose state_dict() is that of all ranks, for checkpoints that one rank writes:
        accelerator.register_for_checkpointing(state.gathered()). Both its calls are for all ranks;
        it needs torch.distributed, and memory for all states on rank 0, and on each that loads."""
        return Gathered(self)

    def save(self, folder: Union[str, "os.PathLike[str]"]) -> None:
        """Write this rank's state_dict() into a folder, as tamis-rank<r>.pt."""
        _files.save(self, folder)

    def load(self, folder: Union[str, "os.PathLike[str]"]) -> None:
        """Load what save() has written, also of another number of ranks, which then must see all
        files. After the optimizer's own state. Collective.

        Errors: on all ranks FileNotFoundError, ValueError or `Error` that names the file
        """
        _files.load(self, folder)

    def resync(self) -> int:
        """After loading: bring ranks whose states are one step apart to the same step. Collective.

        If the last exchange of a step fails on some ranks only, the others have made the step.
        They roll it back: what they sent in it returns to their residual. Model and optimizer must
        be those of the returned step. A rank that did not make the last step has saved them, and as
        they are equal on all ranks, that copy serves all.

        @return  finished steps, the same on all ranks
        Errors: `Error` on all ranks if their steps are further apart, or if one cannot roll back
                its last; RuntimeError, also on all, if the last step exchanged parameters of one
                dtype but not those of another: go back to an older checkpoint
        """
        self._quiesce()
        for exchange in self.exchanges:
            now = [group.resync() for group in exchange.groups]
            if min(now) != max(now):
                raise RuntimeError(
                    f"the exchanges of {len(now)} dtypes stopped at steps {now}: go back to an older"
                    " checkpoint"
                )
            rows = zip(exchange.groups, now)
            exchange.steps -= min([group.uncount(made) for group, made in rows])
        self._choose()
        return self.steps

    def quiesce(self) -> None:
        """After a failure of the communicator: end the step under way, within the deadline."""
        for group in self.groups:
            group.quiesce(self._limit_s)

    def migrate(self, smaller: Union[_core.Comm, Sequence[_core.Comm]]) -> Dict[str, Any]:
        """After a failure: go on with the ranks that are left. Collective over them.

        smaller  state.comm.shrink(), with several dtypes one for each of their communicators. The
                 old one is closed if the state made it
        @return  as tamis.Reducer.migrate; "step" counts finished steps of this state

        Means are then those of the ranks that are left. Model and optimizer must be those of that
        step, and a rank that has made one step more is ahead with them: tamis.run_elastic takes
        care of that. With a DistributedOptimizer call its own migrate(). Gradients become None.

        Errors: as tamis.Reducer.migrate; ValueError with a DistributedDataParallel that sends more
                than gradients: see attach
        """
        return _migrate.migrate(self, smaller)

    def close(self) -> None:
        """Free reducers, and communicators that the state made. A second call does nothing.

        Errors: `Error` if another thread is inside a step; that of the last step on a device, if
                nothing has raised it yet: all is closed then
        """
        if self._closed:
            return
        self._unused()
        self._quiesce()
        failure: Optional[_core.Error] = None
        try:
            self._tell_outcome()
        except _core.Error as error:
            failure = error
        for stepper in self.steppers:
            stepper.close()
        self.forget_places()
        self.limits.close()
        for group in self.groups:
            group.close()
        self._closed = True
        for comm in self._own_comms:
            comm.close()
        self._leave_comms()
        if failure is not None:
            raise failure

    def __repr__(self) -> str:
        return _report.text(self)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a SparseState can be neither copied nor pickled: it holds connections to other"
            " processes; save state_dict() instead"
        )
