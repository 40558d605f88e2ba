# SPDX-License-Identifier: MIT
"""The C extension: libtamis as Python sees it. Use `tamis` and `tamis.torch`, which wrap it.

Every blocking call lets other Python threads run. Use an object from one thread at a time, with two
exceptions, as in tamis.h: `Comm.abort` from any thread, `Reducer.ready` from one thread while
another is inside `Reducer.wait`. Any other concurrent call raises `Error` and does no harm.
"""

from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Type, TypeVar, Union, overload

# An object with __dlpack__ and __dlpack_device__: a torch tensor, an array of numpy >= 1.22, ...
Tensor = Any

class Error(Exception):
    """A library call failed. str() is the library's message and what to do about it."""

    status: str  # "TAMIS_E_TIMEOUT"
    lost: str  # "nothing", "step", "comm"
    remedy: str

class Comm:
    """The ranks that take part. Its static methods make one. Reducers keep their Comm alive."""

    @staticmethod
    def local(nranks: int, timeout_ms: int = 0) -> List["Comm"]:
        """Ranks that are threads of this process."""
    @staticmethod
    def callback(
        rank: int,
        nranks: int,
        allgather: Callable[[memoryview, memoryview], None],
        timeout_ms: int = 0,
    ) -> "Comm":
        """Over an all-gather in Python: allgather(send, recv); send is read-only, B bytes; recv is
        writable, nranks * B bytes, rank after rank. It runs on the thread that needs it.

        Both buffers become invalid when it returns. Views of them, and arrays made from them, must
        be gone by then, else the communicator is lost with a BufferError. (Tensors made by
        torch.frombuffer go undetected, but must be gone too.) If it raises, the call that needed it
        raises Error with that exception as __cause__: TAMIS_E_TIMEOUT for a TimeoutError, else
        TAMIS_E_TRANSPORT."""
    @overload
    @staticmethod
    def ucx(
        rank: int,
        nranks: int,
        allgather: Callable[[memoryview, memoryview], None],
        timeout_ms: int = 0,
    ) -> "Comm":
        """Over UCX (tamis/ucx.h). `allgather`, as that of `callback`, brings the ranks together
        while this call lasts."""
    @overload
    @staticmethod
    def ucx(*, timeout_ms: int = 0) -> "Comm":
        """The ranks find each other at TAMIS_RENDEZVOUS, with RANK and WORLD_SIZE."""
    @staticmethod
    def mpi(module: str, timeout_ms: int = 0) -> "Comm":
        """Over MPI_COMM_WORLD. `module` is the path of the shared object that links MPI, loaded at
        the first call. MPI is initialised if it is not yet; `mpi_finalize` then finalises it."""
    @staticmethod
    def nccl(module: str, bootstrap: "Comm", timeout_ms: int = 0) -> "Comm": ...
    @property
    def rank(self) -> int: ...
    @property
    def nranks(self) -> int: ...
    @property
    def transport(self) -> str: ...
    @property
    def status(self) -> str:
        """"TAMIS_OK", or the status with which it was lost."""
    def shrink(
        self,
        ranks: Optional[Sequence[int]] = None,
        callbacks: Optional[Callable[[memoryview, memoryview], None]] = None,
    ) -> "Comm":
        """A rank is gone: a Comm of those that are left, in their order. tamis_comm_shrink in
        tamis/elastic.h says how each transport finds them, and what errors leave.

        ranks      of this Comm, ascending, with this one; None: the transport finds out
        callbacks  over callback, where both must be given: the all-gather of the smaller network,
                   as Comm.callback takes it, in which this rank has its place in the list

        This one is lost by it (ABORTED). Then migrate the reducers, close the old ones and this.
        Collective: the ranks that are left, between steps."""
    def grow(self, address: Optional[str] = None) -> Optional["Comm"]:
        """Take in processes that wait to join (join_ucx): a Comm of all ranks and of these behind
        them, or None. tamis_comm_grow in tamis/elastic.h says more.

        address  "host:port" of a host of this job; None: TAMIS_RENDEZVOUS

        Then migrate the reducers, close the old ones and this. Collective, between steps."""
    @staticmethod
    def join_ucx(address: Optional[str] = None, timeout_ms: int = 0) -> "Comm":
        """Join a job over UCX: wait until its ranks call grow. A newcomer makes its reducers over a
        Comm of its own, of one rank (Comm.local(1)[0]), and migrates them to this one."""
    @property
    def joined(self) -> int:
        """How many ranks, the last ones, were newcomers when this one was made."""
    def allgather(self, data: Union[bytes, "Tensor"], /) -> List[bytes]:
        """The bytes of all ranks, of one length. `data` may be a tensor in host memory.
        Collective, between steps."""
    def broadcast(self, data: Union[bytes, "Tensor"], root: int = 0) -> bytes:
        """The bytes of the root; what the others give is ignored (b""). Collective, between steps."""
    def rank_before(self, rank: int, /) -> int:
        """Which rank of the Comm that was shrunk has become `rank` of this one; `rank` itself if
        this one was not made by shrink."""
    def set_waiting(self, waiting: str) -> None:
        """"auto", "spin" or "sleep"."""
    def abort(self) -> None: ...
    def write_flight(self, folder: Optional[str] = None, /) -> None: ...
    def close(self) -> None:
        """Error (STATE) while it has reducers or another thread is inside one of its calls."""

class Layout:
    """The segments of the gradient: named runs of elements, one after another."""

    def __init__(self, segments: Sequence[Union[Tuple[str, int], Tuple[str, int, int]]]) -> None:
        """(name, length), or (name, length, row_length) for an embedding, whose touched rows
        travel exactly (tamis_layout_set_rows)."""
    @property
    def length(self) -> int: ...
    @property
    def names(self) -> Tuple[str, ...]: ...
    @property
    def lengths(self) -> Tuple[int, ...]: ...

class Plan:
    """The places of some segments' gradients, checked once. Keeps the tensors alive."""

    @property
    def segments(self) -> Tuple[int, ...]: ...

class Reducer:
    """Exchanges gradients and keeps the state. Each option is the field of that name in
    tamis_reducer_config."""

    def __init__(
        self,
        comm: Comm,
        layout: Layout,
        *,
        scheme: str = "tamis",  # with update "adam" or "step": "tamis-update"
        density: float = 0.0,  # 0: what suits the update
        dtype: str = "float32",  # "float16", "bfloat16"
        device: str = "cpu",  # "cuda": the current device
        output: str = "dense",  # "sparse"
        op: str = "mean",  # "sum"
        nonfinite: str = "error",  # "skip", "drop"
        bucket_length: Union[int, str] = 0,  # elements, or "planned"
        bucket_budget: str = "norm",  # "length"
        worker: str = "caller",  # "thread"
        block: int = 0,
        overselect: float = 0.0,
        capacity: float = 0.0,
        rows_capacity: int = 0,
        threshold: float = 0.0,
        threads: int = 0,
        density_max: float = 0.0,
        byte_share: float = 0.0,
        slowdown: float = 0.0,
        link_latency_us: float = 0.0,
        link_gbit: float = 0.0,
        index_codec: str = "auto",  # docs/options.md has the others
        value_codec: str = "auto",  # likewise
        sum_codec: str = "auto",
        sum_order: str = "tree",  # "transport"
        ranks_per_node: int = 0,
        residual_decay: Optional[float] = None,  # what suits the update
        update: Union[None, str, Dict[str, Any]] = None,
        meter: Optional["Meter"] = None,  # a tamis.energy.Meter, which measures the phases
    ) -> None:
        """`update`: None, "adam" or "momentum", or a dict with some of rule, beta1, beta2, epsilon,
        scale, norm_matching, as in tamis_update. The result is then a step, not a gradient."""
    comm: Comm
    layout: Layout
    @property
    def op(self) -> str:
        """"mean" or "sum"."""
    @property
    def update(self) -> Optional[Dict[str, Any]]:
        """`update` as resolved: rule, beta1, beta2, epsilon, scale, norm_matching."""
    @property
    def driver(self) -> Tuple[str, str]:
        """Who drives the steps, "device" or "host", and why not a device."""
    @property
    def density(self) -> float:
        """Share of the entries that the next step sends."""
    @property
    def residual_decay(self) -> float: ...
    @property
    def residual_length(self) -> int:
        """layout.length; with ranks_per_node the sum of `residual_length` over the buckets."""

    # Gradients are one tensor of layout.length elements, or a sequence with one per segment. They
    # are written in place, never copied, and kept alive until the step ends. `stream`: cudaStream_t
    # as an integer, 0 is the default stream; CUDA only.
    def start(self, grad: Union[Tensor, Sequence[Tensor]], scale: float = 1.0, stream: int = 0) -> None: ...
    def plan(
        self,
        segments: Sequence[int],
        tensors: Sequence[Tensor],
        before: Optional[Sequence[Tensor]] = None,
    ) -> Plan:
        """Check the gradients of some segments once, for all steps in which they keep their place.
        Allowed at any time. The Plan serves this reducer alone and keeps the tensors' memory alive;
        do not resize their storage. At least one segment. With `before` the tensors are parameters
        after a step of an optimizer, and `before` are those before it (tamis_step)."""
    def ready(
        self,
        plan: Plan,
        scale: float = 1.0,
        stream: int = 0,
        rates: Optional[Sequence[float]] = None,
        agreed: int = 0,
    ) -> None:
        """tamis_reducer_ready for each segment of the plan: one Python call, no allocation. Scale,
        stream and `agreed` (tamis_step) must not change within a step. If any segment of the plan was already marked in
        this step, none is marked. `rates`: the learning rates of the plan's segments, if it has
        `before`, as all plans of the step then have."""
    def accumulate(self, grad: Union[Tensor, Sequence[Tensor]], scale: float = 1.0, stream: int = 0) -> None: ...
    def test(self) -> bool: ...
    def wait(self) -> None: ...
    def join(self, stream: int = 0) -> None: ...
    def outcome(self, back: int = 0) -> bool:
        """Wait for the end of the joined step that is `back` (0 to 7) before the last one. False: no
        rank applied it, for a gradient was not finite; with nonfinite="error" that raises."""
    def result(self) -> Tuple[bytes, bytes]:
        """Indices (uint32) and values (float32) of the last step, copied. CPU only."""
    def residual(self, out: Tensor) -> None:
        """Copy the residual into `out`: float32, residual_length elements, in host memory."""
    def control(self) -> bytes:
        """The rest of the state: thresholds, step number, and the configuration they belong to."""
    def restore(self, control: Optional[bytes], residual: Optional[Tensor]) -> None:
        """Restore what control() and residual() gave. One of them may be None; that part then stays
        unchanged."""
    def moments(self, first: Optional[Tensor], second: Optional[Tensor]) -> int:
        """Copy the moments of update mode, as residual() does. Pass None for a moment that the rule
        lacks: first with beta1 = 0, second with momentum. Returns the passes that made them."""
    def restore_moments(
        self, first: Optional[Tensor], second: Optional[Tensor], passes: int
    ) -> None:
        """Set the moments, whatever their source; all else stays. For another number of ranks give
        every new rank the mean of the old moments."""
    def save(self, path: str) -> None: ...
    def load(self, path: str) -> None: ...
    def resync(self) -> int:
        """Collective, after load or restore: ranks whose states are one step ahead roll it back.
        Returns the number of the next step; parameters must be of that one."""
    def migrate(self, smaller: Comm, /) -> Tuple["Reducer", Dict[str, Union[int, float]]]:
        """Go on over a Comm from Comm.shrink. Returns the Reducer that has the state of this one,
        and what was found, as in tamis_migration: step (the next one, the same on all ranks), gone
        (ranks whose residuals are lost), kept_square, lost_square (an estimate).

        The new Reducer keeps its Comm alive. This one can still be read, makes no step, cannot
        migrate again after it has migrated, and is to be closed, before its Comm. Plans belong to
        one Reducer: make new ones. Parameters must be those of report["step"]: a rank that has made
        one step more is ahead with them.

        Collective over `smaller`, between steps: after a failure call wait first. Several reducers
        migrate in the same order on all ranks."""
    def set_density(self, density: float) -> None: ...
    def stats(self) -> Dict[str, Any]:
        """Fields of tamis_stats by name."""
    def buckets(self) -> List[Dict[str, Any]]:
        """Fields of tamis_bucket by name, one dict per bucket in the order of the exchange. With
        scheme "auto": `exchange` and `index_codec` are its choices, `predicted_us` its estimate."""
    def close(self) -> None:
        """Error (STATE) while another thread is inside one of its calls."""

class Local:
    """Local steps above a Reducer: ranks train alone for `steps` steps, then exchange what they
    have changed. tamis/local.h explains every option. Keeps reducer and parameters alive."""

    def __init__(
        self,
        reducer: Reducer,
        params: Sequence[Tensor],
        *,
        steps: int = 16,
        steps_max: int = 0,
        delay: int = 0,
        offset: int = 0,
        lr: float = 0.7,
        momentum: float = 0.9,
        wait_share: float = 0.0,
    ) -> None:
        """`params`: a tensor for each segment, float32, contiguous, in host memory, written in
        place. Collective: the ranks compare them."""
    def step(self) -> None:
        """The optimizer has made a step."""
    def rebind(self, params: Sequence[Tensor]) -> None:
        """The parameters lie in other memory from here on."""
    def set_steps(self, steps: int) -> None: ...
    def base(self, out: Tensor) -> None:
        """Copy what all ranks have in common: float32, layout.length elements."""
    def state(self) -> bytes: ...
    def restore(self, state: bytes) -> None:
        """After the Reducer's state. Error (FORMAT) if it belongs to something else."""
    def stats(self) -> Dict[str, Any]: ...
    def close(self) -> None: ...

_Meter = TypeVar("_Meter", bound="Meter")

class Meter:
    """Joules by phase; tamis.energy.Meter wraps it and says what each call does. A reducer keeps
    its Meter alive."""

    def __new__(
        cls: Type[_Meter],
        *,
        sources: Optional[str] = ...,
        sysfs_root: Optional[str] = ...,
        nvml_path: Optional[str] = ...,
        gpus: Optional[str] = ...,
        files: Optional[str] = ...,
        json: Optional[str] = ...,
        run: Optional[str] = ...,
        intensity: Optional[str] = ...,
        window_s: float = ...,
        settle_s: float = ...,
        pue: float = ...,
        g_per_kwh: float = ...,
        rank: int = ...,
        nranks: int = ...,
    ) -> _Meter: ...
    def begin(self, phase: str) -> None: ...
    def end(self, phase: str) -> None: ...
    def step(self, stats: Dict[str, Any]) -> None: ...
    def read(self) -> Dict[str, Any]: ...
    def domains(self) -> List[Dict[str, Any]]: ...
    def report(self, comm: Comm) -> Dict[str, Any]: ...
    def _window_begin(self, name: str, /) -> int: ...
    def _window_end(self, window: int, /) -> None: ...
    def _window_result(self, window: int, /) -> Optional[Dict[str, Any]]:
        """Like read, of the window, and closes it; None: its end is not known yet. Never waits."""
    def _window_drop(self, window: int, /) -> None: ...
    def close(self) -> None:
        """Error (STATE) while reducers use it, or while report is in progress."""

_Governor = TypeVar("_Governor", bound="Governor")

class Governor:
    """tamis_governor; tamis.energy.Governor wraps it and says what each call does."""

    def __new__(cls: Type[_Governor], **options: Any) -> _Governor: ...
    def decide(self, **window: Any) -> Dict[str, Any]: ...
    def set_budget(self, watts: float = 0.0, g_per_h: float = 0.0, until_step: int = 0) -> None: ...
    def line(self) -> str: ...
    def outlook(self, unix_s: float, horizon_s: float, /) -> Dict[str, Optional[float]]:
        """intensity_g_per_kwh now, outlook_g_per_kwh and outlook_low_g_per_kwh, as decide takes
        them."""

def digest(data: Union[bytes, Tensor], /) -> int:
    """XXH3, 64 bits, of what check_equal takes."""

def check_equal(comm: Comm, data: Union[bytes, Tensor]) -> None:
    """Check that all ranks hold the same bytes: `data`, or a contiguous tensor of any type in host
    memory. Collective, between steps. Error TAMIS_E_MISMATCH, on all ranks, names those that differ;
    nothing is lost."""
def version() -> Tuple[int, int, int]: ...
def schemes() -> List[Dict[str, str]]: ...
def features() -> List[Dict[str, Union[str, bool]]]: ...
def settings() -> List[Dict[str, str]]: ...
def local_presets() -> List[Dict[str, Any]]:
    """Published forms of local steps: name, steps, lr, momentum; scheme, density, value_codec (a
    number) and residual_decay (-1: as by default) of the Reducer; source."""
def mpi_state() -> str:
    """"absent" (module never loaded), "foreign" (other code initialised MPI), "own" (we did),
    "finalized"."""
def mpi_finalize() -> None:
    """Finalise MPI if it is our own and every Comm over it was closed without error."""
