/* SPDX-License-Identifier: MIT */
#include "bench/train/elastic.h"

#include <stdlib.h>

#include "bench/common/options.h"

const char *elastic_next_loss(const char *at, uint64_t *rank, uint64_t *step) {
    char *end;
    if (*at < '0' || *at > '9')
        return NULL;
    *rank = strtoull(at, &end, 10);
    if (end[0] != '@' || end[1] < '0' || end[1] > '9')
        return NULL;
    *step = strtoull(end + 1, &end, 10);
    return *end == ',' && end[1] ? end + 1 : *end == '\0' ? end : NULL;
}

static void check_losses(const char *list) {
    uint64_t rank, step;
    for (const char *at = list; at == list || *at;) {
        at = elastic_next_loss(at, &rank, &step);
        if (!at)
            bench_usage("--lose %s is no list of RANK@STEP, as in 2@100,0@250", list);
    }
}

void elastic_check(const train_settings *s) {
    if (s->lose && !s->elastic)
        bench_usage("--lose needs --elastic");
    if (s->lose)
        check_losses(s->lose);
    if (!s->elastic)
        return;
    if (s->transport == BENCH_NCCL || s->stages > 1 || s->micro_batches > 1)
        bench_usage("--elastic needs --transport local or mpi, --stages 1 and --micro-batches 1");
    if (s->dense_segments || s->local_steps || s->low_rank)
        bench_usage("--elastic goes without --dense-segments, --local-steps and --low-rank: "
                    "what these keep cannot migrate to fewer ranks");
    if (s->record || s->trace || s->budget_w > 0)
        bench_usage("--elastic goes without --record, --trace and --budget, which need all ranks");
}
