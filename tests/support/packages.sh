# SPDX-License-Identifier: MIT
#
# need_packages [--no-install] NAME...: see that Debian packages are there, installing the missing
# ones as root or with sudo.
#
# share_objects: compilers take objects from ccache, in builds of builds, too. What differs between them
# are definitions that most files do not read, so a file is compiled once for all of them.
#
# find_nvcc [--no-install] FOLDER: see that there is a compiler for CUDA, putting one of the Python
# package index into FOLDER if there is none; sets CUDA_HOME and NCCL_HOME then. Tests go on without.
#
# install_wheels FOLDER PACKAGE...: put packages of the Python package index into an environment.
#
# unpack_foreign ARCHITECTURE FOLDER PACKAGE...: unpack Debian packages for another architecture, by
# lists of its own, so that the machine is not told of that architecture.
#
# To be sourced.

missing_packages() {
    local name
    for name in "$@"; do
        [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" = installed ] ||
            printf ' %s' "$name"
    done
}

share_objects() {
    local language
    for language in C CXX CUDA; do
        export "CMAKE_${language}_COMPILER_LAUNCHER=ccache"
    done
}

need_packages() {
    local install=yes missing as_root=
    if [ "$1" = --no-install ]; then
        install=no
        shift
    fi
    if ! command -v dpkg-query >/dev/null; then
        echo "Not a Debian system: taking for granted what these packages hold: $*"
        return 0
    fi
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        as_root="sudo -n"
        sudo -n true 2>/dev/null || install=no
    fi
    if [ $install = no ]; then
        echo "Missing Debian packages:$missing"
        echo "Install them with: apt-get install$missing"
        return 1
    fi
    echo "Installing Debian packages:$missing"
    $as_root apt-get update -qq </dev/null &&
        $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
            --no-install-recommends $missing </dev/null >/dev/null
}

# Without pip of its own: Debian has what puts that there in another package.
install_wheels() { # folder, package...
    [ ! -e "$1/complete" ] || return 0
    { python3 -m venv --without-pip "$1" &&
        timeout 300 python3 -m pip --python "$1/bin/python" install -q "${@:2}" &&
        touch "$1/complete"; } </dev/null >/dev/null 2>&1
}

# Pinned to one toolkit: by default nvcc would pull in the newest of the other parts.
nvcc_packages="nvidia-cuda-nvcc==13.0.* nvidia-nvvm==13.0.* nvidia-cuda-crt==13.0.*
    nvidia-cuda-runtime==13.0.* nvidia-cuda-cccl==13.0.* nvidia-nccl-cu13==2.28.*"

find_nvcc() {
    local install=yes folder home
    if [ "$1" = --no-install ]; then
        install=no
        shift
    fi
    folder=$1
    if command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; then
        return 0
    fi
    if [ $install = yes ] && [ ! -e "$folder/complete" ]; then
        echo "Installing nvcc from the Python package index into $folder"
        install_wheels "$folder" $nvcc_packages
    fi
    for home in "$folder"/lib/python3*/site-packages/nvidia; do
        if [ -e "$folder/complete" ] && [ -x "$home/cu13/bin/nvcc" ]; then
            export CUDA_HOME=$home/cu13 NCCL_HOME=$home/nccl
            return 0
        fi
    done
    echo "No nvcc: tests of compiled CUDA code are skipped."
    return 1
}

unpack_foreign() { # architecture, folder, package...
    local apt=$2/apt options package
    [ ! -e "$2/complete" ] || return 0
    options=(-qq -o APT::Architecture="$1" -o APT::Architectures="$1" -o Dir::State="$apt"
        -o Dir::State::status="$apt/status" -o Dir::Cache="$apt")
    { mkdir -p "$apt/lists/partial" "$apt/archives/partial" && : >"$apt/status" || return 1
      apt-get "${options[@]}" update # some of the machine's sources may not have it
      (cd "$apt/archives" && apt-get "${options[@]}" download "${@:3}") || return 1
      for package in "$apt"/archives/*.deb; do
          dpkg-deb -x "$package" "$2" || return 1
      done
      rm -r "$apt" && touch "$2/complete"; } </dev/null >/dev/null 2>&1
}
