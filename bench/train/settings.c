/* SPDX-License-Identifier: MIT */
#include "bench/train/settings.h"

#include "bench/common/device.h"
#include "bench/common/group.h"
#include "bench/common/options.h"
#include "bench/common/report.h"

static const char *const purpose =
    "Train a real model on real data with sparse gradient exchange and report JSON Lines.";

void train_settings_read(int argc, char **argv, train_settings *out) {
    *out = (train_settings){
        .data = "/usr/share/datasets/fashion-mnist",
        .scheme = "tamis",
        .transport = -1,
        .batch = 32,
        .hidden = 256,
        .seed = 1,
        .density = 0.01,
        .momentum = 0.9,
        .lr = 0.1,
    };
    const bench_option options[] = {
        {"workload", 0, BENCH_CHOICE, &out->workload, "mlp", 0, 0,
         "784-hidden-10, ReLU, cross-entropy"},
        {"data", 0, BENCH_TEXT, &out->data, "DIR", 0, 0, "IDX files, .gz or plain"},
        {"scheme", 0, BENCH_TEXT, &out->scheme, "S", 0, 0, "preset or four policies a+b+c+d"},
        {"density", 0, BENCH_REAL, &out->density, "D", 1e-9, 1, "share of entries that travel"},
        {"steps", 0, BENCH_COUNT, &out->steps, "N", 1, 1e12, "length of the run, or"},
        {"epochs", 0, BENCH_COUNT, &out->epochs, "N", 1, 1e6, "the same in epochs (default 5)"},
        {"stop", 0, BENCH_COUNT, &out->stop, "N", 1, 1e12, "end early, after step N"},
        {"batch", 0, BENCH_COUNT, &out->batch, "N", 1, 65536, "samples per rank and step"},
        {"hidden", 0, BENCH_COUNT, &out->hidden, "N", 1, 65536, "width of the hidden layer"},
        {"optimizer", 0, BENCH_CHOICE, &out->optimizer, TRAIN_OPTIMIZERS, 0, 0, ""},
        {"momentum", 0, BENCH_REAL, &out->momentum, "M", 0, 1, "of --optimizer momentum"},
        {"lr", 0, BENCH_REAL, &out->lr, "X", 0, 1e6, "learning rate"},
        {"lr-decay", 0, BENCH_CHOICE, &out->decay, TRAIN_DECAYS, 0, 0, ""},
        {"seed", 0, BENCH_COUNT, &out->seed, "N", 0, 1e18, "of parameters and order of samples"},
        {"transport", 0, BENCH_CHOICE, &out->transport, BENCH_TRANSPORTS, 0, 0,
         "default: mpi under mpirun, else local"},
        {"device", 0, BENCH_CHOICE, &out->device, BENCH_DEVICES, 0, 0,
         "of the reducer; the model stays on the CPU (cuda: to check results, not for speed)"},
        {"values", 0, BENCH_CHOICE, &out->values, "fp32", 0, 0, "as they travel"},
        {"reduce", 0, BENCH_CHOICE, &out->reduce, "gradient", 0, 0, "what is reduced"},
        {"overlap", 0, BENCH_CHOICE, &out->overlap, "off", 0, 0, "of exchange and backward"},
        {"ranks", 0, BENCH_COUNT, &out->ranks, "P", 1, 1024, "threads of local (default 1)"},
        {"eval-every", 0, BENCH_COUNT, &out->eval_every, "N", 1, 1e12,
         "steps between test runs (default: an epoch)"},
        {"save", 0, BENCH_TEXT, &out->save, "PREFIX", 0, 0,
         "write PREFIX.rankR.{model,residual} at the end of the run"},
        {"load", 0, BENCH_TEXT, &out->load, "PREFIX", 0, 0, "go on from such files"},
        {"json", 0, BENCH_TEXT, &out->json, "FILE", 0, 0, "records, - for stdout"},
        {"quiet", 'q', BENCH_FLAG, &out->quiet, "", 0, 0, "no progress on stderr"},
    };
    bench_options_parse("tamis_train", purpose, options, sizeof options / sizeof options[0], argc,
                        argv);
    if (out->steps && out->epochs)
        bench_usage("--steps and --epochs exclude each other; give one");
    if (out->momentum >= 1)
        bench_usage("--momentum must be less than 1");
    if (!out->steps && !out->epochs)
        out->epochs = 5;
    bench_launch_check(&out->transport, &out->ranks);
    bench_device_check(out->device, out->transport);
    bench_scheme_check(out->scheme, out->density);
    if (bench_launched_rank() == 0)
        out->report = bench_report_open(out->json);
}
