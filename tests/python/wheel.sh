#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# wheel.sh TREE PYTHON: builds a source archive and, of it alone, the wheel, without a network, with
# PYTHON's setuptools; looks into both, and runs smoke.py (and torch_smoke.py) from the wheel in every
# CPython from 3.9 on that is found: in PATH,
# in /usr/bin, of pyenv, and those that TAMIS_TEST_PYTHONS names besides (paths, separated by spaces).
# Prints a line per interpreter. Exit 77: PYTHON cannot build wheels, or has no headers.
set -u

tree=$1 python=$2
tests=$tree/tests/python
bad=0
fail() {
    echo "failed: $*"
    bad=1
}

for name in setuptools wheel pip; do
    if ! "$python" -c "import $name" 2>/dev/null; then
        echo "skipped: $python has no $name (Debian: apt-get install python3-$name)"
        exit 77
    fi
done
if ! "$python" -c 'import os, sysconfig
raise SystemExit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'; then
    echo "skipped: $python has no Python.h (Debian: apt-get install python3-dev)"
    exit 77
fi

work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
others=${TAMIS_TEST_PYTHONS:-} # a word to this script: the library does not know it
unset PYTHONPATH TAMIS_TEST_PYTHONS # nothing but what was installed
export TMPDIR=$work PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
export PIP_NO_INDEX=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
cd "$work" || exit 1

# -- the wheel -----------------------------------------------------------------------------------
sources() {
    (cd "$tree" && find . -maxdepth 1 && find python -not -name '*.pyc' -not -name __pycache__) | sort
}
sources >before
{
    (cd "$tree/python" && "$python" setup.py sdist -d "$work/archive") &&
        "$python" -m pip wheel -v --no-build-isolation --no-deps -w "$work/wheel" archive/*.tar.gz
} >log 2>&1 </dev/null || {
    cat log
    exit 1
}
tar -xzf archive/*.tar.gz
cmp "$tree/LICENSE" tamis-*/LICENSE || fail "^ the archive has another licence"
said=$(grep -A 5 '^ *tamis [0-9.]*, built in [0-9]* s:$' log) || fail "pip -v does not say what was built"
echo "$said"
[ "$(grep -cE '^ +(MPI|OPENMP|CUDA|NCCL): (on|off)' <<<"$said")" -eq 4 ] || fail "^ not all parts are named"
grep -q 'CUDA: off (TAMIS_CUDA=OFF)' <<<"$said" || fail "^ CUDA is looked for unless it is asked for"
sources >after
diff before after || fail "the build wrote into the source tree"

number() {
    sed -n "s/^#define TAMIS_VERSION_$1 //p" "$tree/include/tamis/tamis.h"
}
version=$(number MAJOR).$(number MINOR).$(number PATCH)
wheel=$(echo wheel/*)
case $wheel in
    wheel/tamis-$version-cp39-abi3-linux_"$(uname -m)".whl) echo "${wheel#*/}" ;;
    *) fail "$wheel is not tamis-$version-cp39-abi3-linux_$(uname -m).whl" ;;
esac

"$python" -m zipfile -e "$wheel" content
find content/tamis-*.dist-info -name LICENSE -exec cmp "$tree/LICENSE" {} + | grep . &&
    fail "^ the wheel has another licence"
[ -n "$(find content/tamis-*.dist-info -name LICENSE)" ] || fail "the wheel's dist-info has no LICENSE"
{
    (cd "$tree/python" && find tamis -name '*.py' -o -name '*.pyi' -o -name py.typed)
    printf 'tamis/%s\n' LICENSE _core.abi3.so
    [ ! -e content/tamis/_mpi.so ] || echo tamis/_mpi.so
} | sort >expected
(cd content && find tamis -type f) | sort | diff expected - || fail "the wheel holds something else than the package"

needed() {
    readelf -d "content/tamis/$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'
}
needed _core.abi3.so |
    grep -vE '^(libc|libm|libdl|libpthread|libxxhash|libgomp|libomp|ld-linux[-a-z0-9_]*)\.so' &&
    fail "^ needed by _core.abi3.so"
if [ -e content/tamis/_mpi.so ]; then
    needed _mpi.so | grep -q '^libmpi' || fail "_mpi.so needs no libmpi"
    needed _mpi.so | grep -q '^tamis\._core\.abi3\.so$' || fail "_mpi.so needs no _core"
fi
readelf -d content/tamis/*.so | sed -n 's/.*(R[UN]*PATH).*\[\(.*\)\]/:\1:/p' |
    grep -e "$work" -e "$tree" -e :: && fail "^ RUNPATH: the build's folders, or the current one"

shown=$(nm -D --defined-only content/tamis/_core.abi3.so | awk '$2 != "A" { print $3 }')
grep -vE "^(PyInit__core|tam_[a-z0-9_]+|tamis_comm_destroy)@@TAMIS_PYTHON_$version\$" <<<"$shown" &&
    fail "^ shown by _core.abi3.so"
grep -q '^PyInit__core@' <<<"$shown" || fail "_core.abi3.so shows no PyInit__core"

# -- every interpreter ---------------------------------------------------------------------------
# Its path, "free-threaded" or "", and where its packages are; nothing for what is not meant.
describe='import os, platform, site, sys, sysconfig
if platform.python_implementation() == "CPython" and sys.version_info >= (3, 9):
    threaded = "free-threaded" if sysconfig.get_config_var("Py_GIL_DISABLED") else "-"
    print(os.path.realpath(sys.prefix), threaded, sys.executable, *site.getsitepackages())'

candidates() {
    (
        IFS=:
        for folder in $PATH; do
            ls "$folder"/python3 "$folder"/python3.{9,1[0-9]} 2>/dev/null
        done
    )
    ls /usr/bin/python3.{9,1[0-9]} "$HOME"/.pyenv/versions/*/bin/python3 2>/dev/null
    printf '%s\n' $others
}

# A venv that sees the packages of its interpreter, which may itself be that of a venv, and the wheel.
make_venv() { # interpreter, folder, folders of packages...
    local interpreter=$1 venv=$2 packages
    shift 2
    "$interpreter" -m venv --without-pip "$venv" >log 2>&1 || return 1
    packages=$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')
    printf '%s\n' "$@" >"$packages/interpreter.pth"
    if "$venv/bin/python" -c 'import pip' 2>/dev/null; then
        "$venv/bin/python" -m pip install --no-deps "$wheel" >log 2>&1
    else
        "$venv/bin/python" -m ensurepip >log 2>&1 &&
            "$venv/bin/python" -m pip install --no-deps "$wheel" >log 2>&1
    fi
}

ran=0
candidates | sort -u | while read -r candidate; do
    timeout 20 "$candidate" -c "$describe" 2>/dev/null </dev/null
done | sort -u -k 1,1 >interpreters
while read -r prefix threaded interpreter packages; do
    if [ "$threaded" = free-threaded ]; then
        echo "$interpreter: left out, free-threaded"
        continue
    fi
    ran=$((ran + 1))
    venv=$work/venv$ran
    if ! make_venv "$interpreter" "$venv" $packages; then
        cat log
        fail "$interpreter: the wheel cannot be installed into a venv of it"
        continue
    fi
    timeout 60 "$venv/bin/python" "$tests/smoke.py" "$interpreter" </dev/null ||
        fail "$interpreter: smoke.py"
    if [ -e "$tests/torch_smoke.py" ] && "$venv/bin/python" -c 'import torch' 2>/dev/null; then
        timeout 100 "$venv/bin/python" "$tests/torch_smoke.py" </dev/null ||
            fail "$interpreter: torch_smoke.py"
    fi
    rm -rf "$venv"
done <interpreters
[ $ran -gt 0 ] || fail "no CPython was found"
exit $bad
