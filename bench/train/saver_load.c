/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>

#include "bench/train/saver_say.h"

static bool is_folder(bench_group *group, const char *path) {
    struct stat about;
    bool mine = group->rank == 0 && stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    return bench_max(group, mine) > 0.0;
}

static bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

/* One command both begins a run and goes on with it: a folder for both that has no set yet. */
static void load_set(saver *s, const char *folder) {
    char prefix[SETS_PATH];
    bool own = same_folder(folder, s->folder);
    uint64_t step = sets_choose(s->group, folder);
    bool empty = bench_max(s->group, sets_newest(folder) != SETS_NONE) == 0.0;
    if (step == SETS_NONE && !(own && empty))
        bench_fail(s->group, "--load %s: there is no complete set of states in this folder",
                   folder);
    if (step == SETS_NONE) {
        if (s->group->rank == 0)
            fprintf(stderr, "rank 0: %s has no complete set yet: the run begins at step 0\n",
                    folder);
        return;
    }
    if (!sets_prefix(folder, step, prefix))
        bench_fail(s->group, "the path %.300s is too long", folder);
    trainer_load(s->trainer, prefix);
    if (own)
        s->newest = step;
    if (s->group->rank == 0 && !s->trainer->settings->quiet)
        fprintf(stderr, "rank 0: resumes from the set of step %" PRIu64 " in %s\n", step, folder);
}

/* Sets of two runs in one folder could not be told apart. */
static void refuse_foreign(saver *s) {
    const char *load = s->trainer->settings->load;
    if (!s->folder || (load && same_folder(load, s->folder)))
        return;
    uint64_t step = sets_newest(s->folder);
    bool any = bench_max(s->group, step != SETS_NONE) > 0.0; /* before any rank writes one */
    if (any && s->group->rank == 0)
        bench_fail(s->group,
                   "--states %.300s has the set of step %" PRIu64
                   " of an earlier run: go on from it "
                   "with --load %.300s, or give another folder",
                   s->folder, step, s->folder);
    bench_barrier(s->group);
}

void saver_load(saver *s) {
    const char *load = s->trainer->settings->load;
    refuse_foreign(s);
    if (load && is_folder(s->group, load))
        load_set(s, load);
    else if (load)
        trainer_load(s->trainer, load);
    if (s->talks)
        saver_say_newest(s);
    saver_say_watch(s);
}
