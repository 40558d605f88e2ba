# SPDX-License-Identifier: MIT
"""What a SparseState says of itself: figures, flat numbers for loggers, a line in the log, its repr."""

import logging
from typing import TYPE_CHECKING, Any, Dict, Tuple

from ._figures import joules

if TYPE_CHECKING:
    from ._steps import Steps

SCALARS = (
    "density",
    "wire_bytes",
    "compression",
    "hidden",
    "exposed_s",
    "residual_norm",
    "captured",
    "gradient_norm",
    "lost_steps",
)
log = logging.getLogger("tamis")


def figures(state: "Steps") -> Dict[str, Any]:
    found = dict(state.figures.read(state.groups), density_asked=state.density)
    found["driver"], found["driver_reason"] = _driver(state)
    if state.meter is not None:
        found["energy"] = joules(state.meter)
    return found


def _driver(state: "Steps") -> Tuple[str, str]:
    """Who drives the steps, and why a device does not; of several dtypes the first that the host
    drives."""
    every = [group.reducer.driver for group in state.groups]
    return next((one for one in every if one[0] == "host"), every[0])


def _driven(state: "Steps") -> str:
    driver, why = _driver(state)
    return f"driven by the {driver}" + (f" ({why})" if why else "")


def scalars(stats: Dict[str, Any]) -> Dict[str, float]:
    last = stats["step"]
    if not last:
        return {}
    last["exposed_s"] = last["seconds"]["exposed"]
    last["lost_steps"] = stats["total"]["lost_steps"]
    return {"tamis/" + n: float(last[n]) for n in SCALARS if last.get(n) is not None}


def at_a_glance(state: "Steps") -> str:
    """The row of the first step."""
    last = state.figures.last
    forms = "; ".join(f"{exchange.name}: {exchange.form}" for exchange in state.exchanges)
    return (
        f"{state.comm.nranks} ranks over {state.comm.transport}, {_driven(state)}; {forms}; the first"
        f" step sent {last['wire_bytes']:,} bytes of a rank, whole gradients are"
        f" {last['dense_bytes']:,}"
    )


def text(state: "Steps") -> str:
    if state._closed:
        return f"SparseState({state.scheme!r}, density={state.density}, closed)"
    found = figures(state)
    total, last = found["total"], found["step"]
    words = (
        f"SparseState({state.scheme!r}, density={state.density}, {state.comm.transport},"
        f" rank {state.comm.rank} of {state.comm.nranks}, {total['steps']} steps"
    )
    if last and total["compression"]:
        words += (
            f", {last['density']:.2%} of the entries in {last['wire_bytes']:,} bytes a step,"
            f" 1/{total['compression']:.1f} of dense, {last['hidden']:.0%} hidden"
        )
    if state.device.type == "cuda":
        words += f", {_driven(state)}"
    return words + (f", ended by: {state.error})" if state.error else ")")
