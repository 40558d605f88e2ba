# SPDX-License-Identifier: MIT
"""Inside of what SparseState.state_dict() returns."""


def own(saved):
    """The state of the rank that saved it."""
    (found,) = saved.values()
    return found
