# SPDX-License-Identifier: MIT
#
# test: release
#
# What tests of tamis_train share: data, options, and what a record says. To be sourced after
# expect.sh; $train, $python and $dir are the test's own.
export OPENBLAS_NUM_THREADS=1

# Images whose class is where they are bright, and a text of few words in any order.
"$python" - "$dir" <<'END_OF_DATA'
import random, struct, sys
random.seed(1)
for name in ("train", "t10k"):
    with open(f"{sys.argv[1]}/{name}-images-idx3-ubyte", "wb") as out:
        out.write(struct.pack(">IIII", 0x803, 100, 28, 28))
        for i in range(100):
            out.write(bytes(min(255, random.randrange(100) + 155 * (p // 79 == i % 10))
                            for p in range(784)))
    with open(f"{sys.argv[1]}/{name}-labels-idx1-ubyte", "wb") as out:
        out.write(struct.pack(">II", 0x801, 100) + bytes(i % 10 for i in range(100)))
words = ["sieve", "fine", "large", "what", "passes", "stays"]
with open(f"{sys.argv[1]}/text", "w") as out:
    out.write(" ".join(random.choice(words) for _ in range(4000)))
END_OF_DATA

ranks=2
run() { # record file, options: a run on $ranks ranks, one record a line
    local record=$1
    shift
    "$train" --transport local --ranks "$ranks" --quiet --json "$record" "$@" ||
        fail "status $?: $*"
    grep -q '"replicas_identical":true' "$record" || fail "replicas differ: $*"
}
field() { # name, record on standard input
    sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p"
}

# The files of a rank behind their headers, whose second word says how long they are: vectors and
# thresholds, but no joules.
same() { # names of two runs that were saved, what for
    local rank begin
    for ((rank = 0; rank < ranks; rank++)); do
        begin=$(od -An -tu8 -j8 -N8 "$dir/$1.rank$rank.state")
        cmp -i "$((begin))" "$dir/$1.rank$rank.state" "$dir/$2.rank$rank.state" || fail "$3"
    done
}

lm=(--workload lm --data "$dir/text" --layers 1 --width 16 --heads 2 --context 16 --batch 4
    --optimizer adamw --lr 0.01)
cnn=(--workload cnn --data "$dir" --batch 4 --channels 4 --optimizer momentum --lr 0.02)
mlp=(--workload mlp --data "$dir" --batch 4 --hidden 16)
