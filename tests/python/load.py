# SPDX-License-Identifier: MIT
"""Time limits of tests, as tests/support/load.h has them."""

import os


def stretch(limit):
    """A time limit of an idle machine on this one: others may keep it busy."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return limit * min(12, max(1, round(busy / 3)))
