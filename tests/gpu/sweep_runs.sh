#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# tests/gpu.sh sweep --run-only, by itself: programs that only pretend, one of which fails. It ends
# in time, keeps what the others found, and says what to change.
#
#     bash tests/gpu/sweep_runs.sh
set -u

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder"/{bin,kept,tests/gpu,build/gpu/programs}
cd "$folder" || exit 1

die() {
    cat log
    echo "$1"
    exit 1
}

pretend() { # file, lines of the script
    { echo '#!/usr/bin/env bash'; cat; } >"$1"
    chmod +x "$1"
}

cp "$top/tests/gpu.sh" tests/
cp "$top"/tests/gpu/{sweep.sh,sweep.py,sweep.txt,bundled.sh} tests/gpu/
pretend bin/nvidia-smi <<<'echo "GPU Pretended 1"'
pretend build/gpu/programs/tamis_info <<<'echo "cuda yes"'
# Every library is faster than the present one, and the larger its value the faster.
pretend build/gpu/programs/gpu_sweep <<'END'
parameter=$1 now=${3%%=*}
[ "$parameter" != exchange_blocks ] || exit 3
for pair in "${@:3}"; do
    value=${pair%%=*} library=${pair#*=}
    [ -f "$library" ] || exit 4
    ratio=1.001
    [ "$value" = "$now" ] || ratio=$(awk "BEGIN { print 0.9 / (1 + $value / 1e8) }")
    printf '{"record":"sweep","parameter":"%s","value":"%s","now":"%s","case":"step","n":1,' \
        "$parameter" "$value" "$now"
    printf '"density":0.01,"same":true,"ratio":%s}\n' "$ratio"
done
END
mkdir build/gpu/lib
touch build/gpu/lib/libtamis.so.0
grep -v '^#' tests/gpu/sweep.txt | while read -r name _ _ values _; do
    for value in ${values//,/ }; do
        pretend "build/gpu/programs/libsweep_${name}_$value.so" </dev/null
    done
done

PATH=$folder/bin:$PATH OUT=$folder/kept bash tests/gpu.sh sweep --run-only >log 2>&1
status=$?
[ $status -eq 1 ] || die "it ended with $status, not 1, though a step failed"
grep -q "^FAIL  sweep_exchange_blocks .* status 3" log || die "it hides the step that failed"
for line in "TAM_DENSE_PIECE in kernels/cuda/parameters.h to 16777216" \
    "TAM_RANGE in kernels/cuda/parameters.h to 131072" "exchange_blocks  not measured" \
    "6 passed, 1 failed, 0 skipped"; do
    grep -q "$line" log || die "it does not say: $line"
done
[ "$(grep -c '"record":"sweep"' kept/results.jsonl)" -eq 13 ] || die "records were lost"
grep -q "^PASS  sweep_range" kept/summary.txt || die "its summary was not kept"
grep -q sweep bench/results/*-sweep.jsonl || die "its records were not filed"
cat log
