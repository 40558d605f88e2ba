#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# rules.sh TREE: who may include and call what, in the C, C++ and CUDA files of TREE. A floor uses what lies below
# it; a vendor's API is known in one place; the library never ends the process or prints to stdout.
set -u
shopt -s lastpipe # so that refuse, at the end of a pipe, can set `bad`
cd "$1" || exit 1

bad=0
refuse() { # reason; offending lines "file:line:text" on standard input
    local lines
    lines=$(cat)
    [ -n "$lines" ] || return 0
    printf '%s\n  ^ %s\n' "$lines" "$1"
    bad=1
}

# Code without comments and without what stands in quotes, as file:line:text. Includes keep theirs.
code() {
    find "$@" -name '*.[ch]' -o -name '*.[ch]pp' -o -name '*.cu' -o -name '*.cuh' 2>/dev/null |
        sort | xargs -r awk '
            FNR == 1 { inside = 0 }
            {
                line = $0
                if (line !~ /^[ \t]*#[ \t]*include/) gsub(/"([^"\\]|\\.)*"/, "\"\"", line)
                out = ""
                while (line != "") {
                    if (inside) {
                        end = index(line, "*/")
                        if (!end) break
                        line = substr(line, end + 2); inside = 0
                    } else {
                        begin = match(line, /\/\*|\/\//)
                        if (!begin) { out = out line; break }
                        out = out substr(line, 1, begin - 1)
                        if (substr(line, begin, 2) == "//") break
                        line = substr(line, begin + 2); inside = 1
                    }
                }
                if (out ~ /[^ \t]/) print FILENAME ":" FNR ":" out
            }'
}

all=$(code include lib kernels collectives python bench examples tests)
includes=$(grep -E '^[^:]*:[0-9]+:[ \t]*#[ \t]*include' <<<"$all")

# Quoted includes: relative to the top folder, and only of these folders.
may_include() { # folder, pattern of what it may include
    grep -P "^$1" <<<"$includes" | grep '"' | grep -vE "include[ \t]*\"$2" |
        refuse "$1 may include only \"$2"
}
may_include include/ '$'
may_include lib/base/ 'lib/base/'
may_include lib/contracts/ 'lib/(base|contracts)/'
may_include lib/transport/ 'lib/(base|contracts|transport)/'
may_include lib/policy/ 'lib/(base|contracts|policy)/'
for folder in source attribute log govern; do
    may_include "lib/energy/$folder/" "lib/(base|contracts|energy/$folder)/"
done
may_include lib/energy/cluster/ 'lib/(base|contracts|energy/(source|cluster))/'
may_include lib/energy/meter/ 'lib/(base|contracts|energy)/'
may_include kernels/ '(lib|kernels)/'
may_include collectives/coll/ '(lib|collectives/coll)/'
may_include collectives/transport/ '(lib|collectives/(coll|transport))/'
may_include collectives/exchange/ "(lib|collectives/exchange)/|collectives/transport/subcomm\.h"
may_include collectives/reducer/ '(lib|kernels|collectives/(transport|exchange|reducer))/'
may_include collectives/state/ '(lib|collectives/(transport|reducer|state))/'
may_include collectives/local/ '(lib|collectives/(transport|reducer|local))/'
may_include collectives/pipeline/ '(lib|collectives/(transport|pipeline))/'
may_include collectives/energy/ '(lib|collectives/(transport|energy))/'
may_include python/src/ '([^/"]+"|lib/base/base\.h|kernels/cuda/cuda\.h)'
may_include 'bench/(?!scale/)' '(bench/|[^/"]+")'
may_include bench/scale/ '(bench|lib|kernels/cpu|collectives)/'
may_include examples/ '[^/"]+"'

# Vendors' headers: where each may be known.
known_in() { # pattern of the header, pattern of the files
    grep -E "include[ \t]*[<\"]$1" <<<"$includes" | grep -vE "^($2)" | refuse "$1 only in: $2"
}
known_in 'Python\.h' 'python/src/'
known_in '(tamis/)?mpi\.h' \
    'collectives/transport/mpi[a-z_]*\.[ch]|include/tamis/mpi\.h|python/src/mpi_module\.c|bench/|examples/|tests/'
cuda='((cub|thrust|cccl|nv|crt|cooperative_groups|cuda/std)/|tamis/cuda\.h|(cuda[a-zA-Z0-9_]*|cupti'
cuda+='|nvtx[a-zA-Z0-9_]*|cooperative_groups|vector_types|vector_functions|driver_types'
cuda+='|device_launch_parameters)\.(h|hpp|cuh)[>"])'
cuda_users='kernels/cuda/|collectives/transport/nccl[a-z_]*\.[ch]|include/tamis/(cuda|nccl)\.h'
known_in "$cuda" "$cuda_users"'|python/src/cuda_module\.c|bench/|examples/|tests/'
known_in '(tamis/)?nccl[a-z0-9_]*\.h' \
    'collectives/transport/nccl[a-z_]*\.[ch]|include/tamis/nccl\.h|python/src/nccl_module\.c|bench/|examples/|tests/'
known_in '([a-z0-9_/]*/)?nvml[a-z0-9_]*\.h' 'nothing'
known_in '([a-z0-9]*intrin|arm_neon)\.h' 'kernels/cpu/(avx[a-z0-9_]*|neon)\.c'
known_in 'lib/|<(lib|kernels|collectives)/' \
    '(lib|kernels|collectives|tests|bench/scale)/|python/src/((mpi_|nccl_)?module\.c|cuda\.c|device_calls\.h)'

# Calls that end the process or write to stdout. A member may have such a name, a function may not.
calls='(printf|puts|putchar|vprintf|exit|_exit|_Exit|quick_exit|abort|raise|assert)'
grep -E '^(lib|kernels|collectives|python)/' <<<"$all" |
    grep -E "[^A-Za-z0-9_.>]$calls[ \t]*\(|[^A-Za-z0-9_]stdout[^A-Za-z0-9_]|<assert\.h>" |
    refuse "the library does not exit, abort, assert or write to stdout"

exit $bad
