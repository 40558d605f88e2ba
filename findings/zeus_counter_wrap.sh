#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# Zeus, RAPLCPU.get_total_energy_consumption: what is read just after a counter has begun again?
#
# Version      zeus 0.16.0 of PyPI
# One guesses  that the readings of a processor grow, so that the difference of two is what it took:
#              wraps are counted
# Seen         a process of its own counts them, which looks once a second, or ten times near the end
#              of the range. Until it has looked, readings are smaller by the whole range: a window
#              that ends then took some -65,000 J. The next reading is right again
# So           end no window within a second after a wrap, or drop windows that are negative. A
#              window that begins there is too large, and nothing shows it
#
# Needs Python 3.9 or later with pip and venv. Ends with 0 if that is still so.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" install --quiet zeus==0.16.0

zone=$dir/intel-rapl/intel-rapl:0
mkdir -p "$zone"
echo package-0 >"$zone/name"
echo 65532610987 >"$zone/max_energy_range_uj"
cat >"$dir/wrap.py" <<'END_OF_PROGRAM'
import pathlib
import sys
import time

from zeus.device.cpu.rapl import RAPLCPU

RANGE_UJ = 65532610987


def main():
    folder = pathlib.Path(sys.argv[1])
    counter = folder / "intel-rapl:0" / "energy_uj"
    at_uj = RANGE_UJ // 2

    def use(joules):
        nonlocal at_uj
        at_uj = (at_uj + joules * 10**6) % RANGE_UJ
        beside = counter.with_name("next")
        beside.write_text(f"{at_uj}\n")
        beside.replace(counter)

    use(0)
    cpu = RAPLCPU(0, str(folder))
    cpu.get_total_energy_consumption()  # starts the process that counts wraps
    time.sleep(5)
    before = cpu.get_total_energy_consumption().cpu_mj / 1000
    use(50)
    usual = cpu.get_total_energy_consumption().cpu_mj / 1000 - before
    use(40000)  # over the end of the range
    soon = cpu.get_total_energy_consumption().cpu_mj / 1000 - before
    time.sleep(5)
    later = cpu.get_total_energy_consumption().cpu_mj / 1000 - before
    print(f"used 50 J: {usual:.0f} J; used 40050 J: {soon:.0f} J, five seconds later {later:.0f} J;"
          f" used 0 J since the wrap: {later - soon:.0f} J")
    right = abs(usual - 50) < 1 and abs(later - 40050) < 1
    sys.exit(0 if right and soon < -20000 and later - soon > 65000 else 1)


if __name__ == "__main__":
    main()
END_OF_PROGRAM
echo 0 >"$zone/energy_uj"
"$dir/venv/bin/python" "$dir/wrap.py" "$dir/intel-rapl"
