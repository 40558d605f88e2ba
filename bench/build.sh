# SPDX-License-Identifier: MIT
#
# build_programs FOLDER NAME...: build programs of the preset "release" in FOLDER. Shows compiler output
# if the build fails.
#
# find_program FOLDER NAME: prints the path of one of them.
#
# To be sourced.

build_programs() {
    local folder=$1 said
    shift
    echo "Building ($folder) ..."
    said=$({ cmake --preset release -B "$folder" -DTAMIS_BENCH=ON -DTAMIS_LAB=ON &&
        cmake --build "$folder" --target "$@"; } 2>&1) || {
        printf '%s\n' "$said"
        return 1
    }
}

find_program() {
    find "$1" -name "$2" -type f -perm -u+x
}
