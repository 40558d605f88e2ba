#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# lowtime, ExecutionOption: how many units is a time that is a whole number of units?
#
# Version      lowtime 0.3.0 of PyPI
# One guesses  that 0.3 s in units of 0.1 s are 3: times are rounded down, and nothing is left over
# Seen         2, for the quotient is taken of binary fractions by floor division. So are 1.0 s in
#              units of 0.1 s 9, and 0.6 s in units of 0.2 s 2, while 0.4 s in units of 0.1 s are 4.
#              A schedule is then shorter than what it consists of, by a unit for each such pass
# So           give times a little longer, by a thousandth of the unit, or take units that are a
#              power of two, such as 1/1024 s
#
# Needs Python 3.9 or later with pip and venv. Ends with 0 if that is still so.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet lowtime==0.3.0

cat >"$dir/units.py" <<'END_OF_PROGRAM'
import sys

from lowtime.operation import ExecutionOption

cases = [(0.3, 0.1), (1.0, 0.1), (0.6, 0.2), (0.4, 0.1)]
units = [ExecutionOption(seconds, unit, 1.0, 0).quant_time for seconds, unit in cases]
print(", ".join(f"{s} s in units of {u} s: {n}" for (s, u), n in zip(cases, units)))
longer = ExecutionOption(0.3001, 0.1, 1.0, 0).quant_time
print(f"a tenth of a ms longer than 0.3 s: {longer}")
sys.exit(units != [2, 9, 2, 4] or longer != 3)
END_OF_PROGRAM
"$dir/venv/bin/python" "$dir/units.py"
