# SPDX-License-Identifier: MIT
"""Optimizers that were not given, or not as what they are: found, judged, warned of."""

import gc
import warnings
from typing import TYPE_CHECKING, Any, Dict, List

import torch

from ._kinds import is_adaptive

if TYPE_CHECKING:
    from ._steps import Steps

# Figures: docs/measured/fidelity.md, a character model, AdamW.
HARMED = (
    "{name} gets sparse means of gradients, which harm adaptive optimizers: at 1 % of the entries a"
    " small language model lost 39 % against dense, and 4 % where the ranks exchange steps. Write"
    " {line}; where sparse means are meant, reduce=\"gradient\""
)
ATTACH = "tamis.torch.attach(ddp, optimizer=optimizer)"


def warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=4)


def warn_of_others(state: "Steps") -> None:
    """After the first step: find the optimizers that means of gradients end in, and judge them."""
    told = set()
    for parameter in state.not_given():
        for group in _param_groups_of(parameter):
            if is_adaptive(group) and id(group) not in told:
                told.add(id(group))
                named = ("betas", "alpha", "eps", "momentum")
                words = ", ".join(f"{key}={group[key]}" for key in named if key in group)
                warn(HARMED.format(name=f"an optimizer with {words}", line=ATTACH))


def _param_groups_of(parameter: torch.Tensor) -> List[Dict[str, Any]]:
    """The param_groups that a parameter is in.

    Not by gc.get_objects, which holds all tensors for a while: within backward, torch 1.13 then
    frees some that are still needed.
    """
    lists = [found for found in gc.get_referrers(parameter) if type(found) is list]
    known = set(map(id, lists))
    found = gc.get_referrers(*lists) if lists else []
    return [row for row in found if type(row) is dict and id(row.get("params")) in known]
