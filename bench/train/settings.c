/* SPDX-License-Identifier: MIT */
#include "bench/train/settings.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "bench/common/device.h"
#include "bench/common/group.h"
#include "bench/common/launcher.h"
#include "bench/common/option_rows.h"
#include "bench/common/options.h"
#include "bench/common/reducer.h"
#include "bench/common/report.h"
#include "bench/common/start.h"
#include "bench/common/trace.h"
#include "bench/train/density.h"
#include "bench/train/images.h"
#include "bench/train/local_steps.h"
#include "bench/train/low_rank.h"
#include "bench/train/optimizer.h"
#include "bench/train/workload.h"

static const char *const purpose =
    "Train a real model on real data with sparse gradient exchange and report JSON Lines.";

static const char workloads[] =
    "mlp: 784-hidden-...-10; cnn: two convolutions, both on Fashion-MNIST; lm: a transformer that "
    "predicts characters of a text";
static const char data[] =
    "mlp, cnn: folder of IDX files, .gz or plain (default: " IMAGES_DATA "); lm: a file (default: "
    "the text that `bible` prints)";

bool train_is_dense(const train_settings *settings) {
    return strcmp(settings->scheme, "dense") == 0;
}

static bool updates_adam(const train_settings *s) {
    return s->reduce == TRAIN_UPDATE && s->optimizer == TRAIN_ADAMW;
}

/* What the rest of a run goes by. */
const char train_own_options[] =
    "density|density_max|byte_share|output|op|nonfinite|device|grad_dtype|"
    "ranks_per_node|bucket_length|update.rule|update.beta1|update.beta2";

static void check_pipeline(const train_settings *s) {
    uint32_t ranks = bench_launched_ranks();
    if (s->batch % s->micro_batches)
        bench_usage("--micro-batches %llu must divide --batch %llu",
                    (unsigned long long)s->micro_batches, (unsigned long long)s->batch);
    if (s->device != TAMIS_DEVICE_CPU && s->stages * s->micro_batches > 1)
        bench_usage("--stages and --micro-batches need --device cpu");
    if (s->stages == 1)
        return;
    if (!workload_find(s->workload)->layers)
        bench_usage("--stages needs --workload mlp: the layers of %s are not divided",
                    workload_find(s->workload)->name);
    if (s->transport != BENCH_MPI)
        bench_usage("--stages %llu needs --transport mpi: start it under mpirun",
                    (unsigned long long)s->stages);
    if (s->stages > s->depth + 1)
        bench_usage("--stages %llu is more than the %llu layers of --depth %llu",
                    (unsigned long long)s->stages, (unsigned long long)s->depth + 1,
                    (unsigned long long)s->depth);
    if (ranks % s->stages)
        bench_usage("--stages %llu must divide the number of ranks, which is %u",
                    (unsigned long long)s->stages, ranks);
    if (s->save || s->load)
        bench_usage("--save and --load need --stages 1: a file holds the whole model");
}

static void check_record(const train_settings *s) {
    if (s->record && (s->stages > 1 || s->micro_batches > 1 || s->overlap || s->load))
        bench_usage("--record needs --stages 1, --micro-batches 1, --overlap off and no --load: it "
                    "writes whole gradients, from the first step on");
}

static void check_density(const train_settings *s) {
    if (!density_moves(s))
        return;
    if (train_is_dense(s))
        bench_usage("--density-warm-up and --density-end need a scheme that has a density");
    if (s->budget_w > 0 || s->stages > 1)
        bench_usage("--density-warm-up and --density-end must be alone in setting the density: no "
                    "--budget, --stages 1");
}

static void check_byte_share(const train_settings *s) {
    if (s->byte_share > 0 &&
        (s->density > 0 || density_moves(s) || s->budget_w > 0 || s->stages > 1))
        bench_usage("--byte-share must be alone in setting the density: no --density, "
                    "--density-warm-up, --density-end or --budget, --stages 1");
}

static void check_budget(train_settings *s) {
    if (s->density_min == 0)
        s->density_min = s->density;
    if (s->density_min > s->density)
        bench_usage("--density-min is more than --density");
    if (s->budget_w > 0 && s->stages > 1)
        bench_usage("--budget needs --stages 1");
    if (s->decisions && s->budget_w <= 0)
        bench_usage("--decisions needs --budget");
}

static void check_optimizer(const train_settings *s) {
    if (s->momentum >= 1 || s->beta1 >= 1 || s->beta2 >= 1)
        bench_usage("--momentum, --beta1 and --beta2 must be less than 1");
}

static void check_update(const train_settings *s) {
    if (s->reduce != TRAIN_UPDATE)
        return;
    if (s->optimizer == TRAIN_SGD)
        bench_usage("--reduce update needs --optimizer adamw or momentum: with sgd the update is "
                    "the gradient");
    if (train_is_dense(s))
        bench_usage("--reduce update needs a scheme with residuals; dense has none");
    if (s->micro_batches > 1)
        bench_usage("--reduce update needs --micro-batches 1: a step has one gradient");
}

/* What the library chooses where nothing is given. */
static void complete_residual(train_settings *s) {
    bool updates = s->reduce == TRAIN_UPDATE;
    s->update_beta1 = isnan(s->beta1) ? -1.0 : s->beta1;
    s->beta1 = isnan(s->beta1) ? 0.9 : s->beta1;
    if (s->byte_share > 0) /* known when there is a reducer */
        return;
    tamis_update update = optimizer_as_update(s);
    tamis_reducer_config chosen =
        bench_scheme_options(s->scheme, s->density, updates ? &update : NULL);
    s->density = chosen.density;
    s->update_beta1 = update.beta1;
}

/* Defaults that depend on other options. */
static void complete(train_settings *s) {
    const workload_kind *kind = workload_find(s->workload);
    if (!s->data)
        s->data = kind->data;
    if (!s->batch)
        s->batch = kind->batch;
    if (!s->steps && !s->epochs)
        s->steps = kind->steps;
    if (!s->steps && !s->epochs)
        s->epochs = 5;
    if (!s->eval_every)
        s->eval_every = kind->eval_every;
    if (isnan(s->lr))
        s->lr = s->optimizer == TRAIN_ADAMW ? 0.003 : 0.1;
    if (isnan(s->beta2))
        s->beta2 = updates_adam(s) ? 0.99 : 0.999;
    if (isnan(s->outer_lr))
        s->outer_lr = 0.7;
    if (isnan(s->outer_momentum))
        s->outer_momentum = 0.9;
}

/* A decision is written as soon as it is made. */
static FILE *open_decisions(const char *path) {
    if (!path || bench_launched_rank() != 0)
        return NULL;
    FILE *file = fopen(path, "w");
    if (!file)
        bench_usage("--decisions %s cannot be written: %s", path, strerror(errno));
    setvbuf(file, NULL, _IONBF, 0);
    return file;
}

void train_settings_read(int argc, char **argv, train_settings *out) {
    *out = (train_settings){
        .transport = -1,
        .hidden = 256,
        .depth = 1,
        .channels = 16,
        .layers = 2,
        .width = 64,
        .heads = 4,
        .context = 64,
        .stages = 1,
        .micro_batches = 1,
        .record_every = 1,
        .seed = 1,
        .momentum = 0.9,
        .beta1 = NAN,
        .beta2 = NAN,
        .weight_decay = 0.01,
        .lr = NAN,
        .outer_lr = NAN,
        .outer_momentum = NAN,
    };
    const bench_option options[] = {
        {"workload", 0, BENCH_CHOICE, &out->workload, TRAIN_WORKLOADS, 0, 0, workloads},
        {"data", 0, BENCH_FILE, &out->data, "PATH", 0, 0, data},
        {"scheme", 0, BENCH_TEXT, &out->scheme, "S", 0, 0,
         "preset or four policies a+b+c+d (default: tamis, with adamw updates tamis-update)"},
        {"density", 0, BENCH_REAL, &out->density, "D", 1e-9, 1,
         "share of entries that are sent (default: what suits the optimizer)"},
        {"density-warm-up", 0, BENCH_COUNT, &out->density_warm_up, "N", 0, 1e12,
         "steps in which density falls from 0.25 to --density, exponentially"},
        {"density-end", 0, BENCH_REAL, &out->density_end, "D", 1e-9, 1,
         "density at the end of the run, approached exponentially"},
        {"steps", 0, BENCH_COUNT, &out->steps, "N", 1, 1e12, "length of the run, or"},
        {"epochs", 0, BENCH_COUNT, &out->epochs, "N", 1, 1e6,
         "length in epochs (default: 5; lm: 1,200 steps)"},
        {"batch", 0, BENCH_COUNT, &out->batch, "N", 1, 65536,
         "samples per rank and step (default: 32; lm: 8)"},
        {"hidden", 0, BENCH_COUNT, &out->hidden, "N", 1, 65536, "mlp: width of the hidden layers"},
        {"depth", 0, BENCH_COUNT, &out->depth, "N", 1, TRAIN_MAX_DEPTH,
         "mlp: number of hidden layers"},
        {"channels", 0, BENCH_COUNT, &out->channels, "N", 1, 4096,
         "cnn: channels of the first convolution; the second has twice as many"},
        {"layers", 0, BENCH_COUNT, &out->layers, "N", 1, 256, "lm: number of blocks"},
        {"width", 0, BENCH_COUNT, &out->width, "N", 1, 65536, "lm: width of the embedding"},
        {"heads", 0, BENCH_COUNT, &out->heads, "N", 1, 65536,
         "lm: attention heads; must divide --width"},
        {"context", 0, BENCH_COUNT, &out->context, "N", 1, 8192,
         "lm: characters in a context window"},
        {"optimizer", 0, BENCH_CHOICE, &out->optimizer, TRAIN_OPTIMIZERS, 0, 0, ""},
        {"momentum", 0, BENCH_REAL, &out->momentum, "M", 0, 1,
         "coefficient of --optimizer momentum"},
        {"beta1", 0, BENCH_REAL, &out->beta1, "B", 0, 1, "adamw: decay of the first moment"},
        {"beta2", 0, BENCH_REAL, &out->beta2, "B", 0, 1,
         "adamw: decay of the second moment (default: 0.999; with --reduce update 0.99)"},
        {"weight-decay", 0, BENCH_REAL, &out->weight_decay, "L", 0, 1e3,
         "adamw: decay of matrices, times the learning rate"},
        {"lr", 0, BENCH_REAL, &out->lr, "X", 0, 1e6,
         "learning rate (default: 0.1, with adamw 0.003)"},
        {"warm-up", 0, BENCH_COUNT, &out->warm_up, "N", 0, 1e12,
         "steps in which the learning rate rises from 0, linearly"},
        {"lr-decay", 0, BENCH_CHOICE, &out->decay, TRAIN_DECAYS, 0, 0,
         "learning rate after the warm-up"},
        {"lr-floor", 0, BENCH_REAL, &out->lr_floor, "X", 0, 1,
         "fraction of --lr at which the decay ends"},
        {"seed", 0, BENCH_COUNT, &out->seed, "N", 0, 1e18,
         "seed of parameters and order of samples"},
        BENCH_ROW_TRANSPORT(&out->transport),
        {"device", 0, BENCH_CHOICE, &out->device, BENCH_DEVICES, 0, 0,
         "device of the reducer; the model stays on the CPU (cuda: to check results, not for "
         "speed)"},
        {"reduce", 0, BENCH_CHOICE, &out->reduce, TRAIN_REDUCED, 0, 0,
         "reduce gradients before the optimizer, or each rank's updates after it"},
        {"local-steps", 0, BENCH_COUNT, &out->local_steps, "H", 0, 1 << 20,
         "exchange what H steps of every rank have changed, not gradients; 0: every gradient"},
        {"local-delay", 0, BENCH_COUNT, &out->local_delay, "N", 0, 1 << 20,
         "steps that ranks go on beside such an exchange"},
        {"outer-lr", 0, BENCH_REAL, &out->outer_lr, "X", 0, 100,
         "learning rate of the outer optimizer of --local-steps (default: 0.7)"},
        {"outer-momentum", 0, BENCH_REAL, &out->outer_momentum, "M", 0, 1,
         "its Nesterov momentum (default: 0.9)"},
        {"low-rank", 0, BENCH_COUNT, &out->low_rank, "R", 0, 1024,
         "PowerSGD with R vectors a matrix, to compare with; 0: not"},
        {"overlap", 0, BENCH_CHOICE, &out->overlap, TRAIN_OVERLAPS, 0, 0,
         "overlap exchange and backward: layers are handed over as they become ready"},
        {"bucket-length", 0, BENCH_COUNT, &out->bucket_length, "N", 1, 1e12,
         "join layers until they have N parameters"},
        {"set", 0, BENCH_TEXT, &out->set, "O=V[,O=V...]", 0, 0,
         "other options of the reducer, as in docs/options.md"},
        {"stages", 0, BENCH_COUNT, &out->stages, "N", 1, TRAIN_MAX_DEPTH + 1,
         "pipeline stages over which the layers are divided (mpi)"},
        {"micro-batches", 0, BENCH_COUNT, &out->micro_batches, "N", 1, 65536,
         "micro-batches per batch"},
        BENCH_ROW_RANKS(&out->ranks),
        {"eval-every", 0, BENCH_COUNT, &out->eval_every, "N", 1, 1e12,
         "steps between validations (default: an epoch; lm: 100)"},
        {"check-every", 0, BENCH_COUNT, &out->check_every, "N", 0, 1e12,
         "steps between comparisons of the replicas' parameters (default: only first and last)"},
        {"save", 0, BENCH_FILE, &out->save, "PREFIX", 0, 0,
         "write PREFIX.rankR.state at the end of the run, for --load"},
        {"save-every", 0, BENCH_COUNT, &out->save_every, "N", 0, 1e12,
         "also write PREFIX.stepS.rankR.state every N steps S"},
        {"load", 0, BENCH_FILE, &out->load, "PREFIX", 0, 0,
         "resume from files of --save: PREFIX, or PREFIX.stepS"},
        {"record", 0, BENCH_FILE, &out->record, "FILE", 0, 0,
         "write the gradients of all ranks, for tamis_schemes --input"},
        {"record-every", 0, BENCH_COUNT, &out->record_every, "N", 1, 1e12,
         "steps from one gradient of --record to the next"},
        BENCH_ROW_JSON(&out->json),
        {"trace", 0, BENCH_FILE, &out->trace, "FILE", 0, 0,
         "write a timeline of all ranks, for chrome://tracing and Perfetto"},
        {"energy-log", 0, BENCH_FILE, &out->energy_log, "FILE", 0, 0,
         "write joules every five seconds, as JSON Lines; ranks in other processes write "
         "FILE.rankR"},
        {"intensity", 0, BENCH_FILE, &out->intensity, "FILE", 0, 0,
         "carbon intensity over time: CSV, Unix seconds and g/kWh"},
        {"budget", 0, BENCH_REAL, &out->budget_w, "W", 0, 1e9,
         "watts of all ranks, kept within what --density-min and --pace-max permit"},
        {"byte-share", 0, BENCH_REAL, &out->byte_share, "S", 0, 1,
         "in place of --density: most bytes of a step, as a share of a dense ring's"},
        {"density-min", 0, BENCH_REAL, &out->density_min, "D", 0, 1,
         "lowest density under --budget (default: --density)"},
        {"pace-max", 0, BENCH_REAL, &out->pace_max, "S", 0, 3600,
         "longest pause after a step under --budget"},
        {"decisions", 0, BENCH_FILE, &out->decisions, "FILE", 0, 0,
         "write the decisions under --budget, for tamis_replay --log"},
        {"quiet", 'q', BENCH_FLAG, &out->quiet, "", 0, 0, "no progress on stderr"},
    };
    bench_options_parse("tamis_train", purpose, options, sizeof options / sizeof options[0], argc,
                        argv);
    if (out->steps && out->epochs)
        bench_usage("--steps and --epochs are mutually exclusive");
    if (!out->scheme)
        out->scheme = updates_adam(out) ? "tamis-update" : "tamis";
    local_steps_check(out);
    low_rank_check(out);
    complete(out);
    bench_reducer_check(out->set, train_own_options);
    check_optimizer(out);
    check_update(out);
    check_byte_share(out);
    complete_residual(out);
    check_density(out);
    check_budget(out);
    if (workload_find(out->workload)->check)
        workload_find(out->workload)->check(out);
    if (out->overlap && out->device != TAMIS_DEVICE_CPU)
        bench_usage("--overlap on needs --device cpu: the gradient goes to a device as a whole, "
                    "after the backward pass");
    bench_launch_check(&out->transport, &out->ranks);
    check_pipeline(out);
    check_record(out);
    if (out->save_every && !out->save)
        bench_usage("--save-every needs --save");
    bench_device_check(out->device, out->transport);
    if (bench_launched_rank() == 0)
        out->report = bench_report_open(out->json);
    out->trace_file = bench_trace_file(out->trace);
    out->decisions_file = open_decisions(out->decisions);
}
