/* SPDX-License-Identifier: MIT */
#include "bench/scale/settings.h"

#include "bench/common/group.h"
#include "bench/common/half.h"
#include "bench/common/launcher.h"
#include "bench/common/option_rows.h"
#include "bench/common/options.h"
#include "bench/common/report.h"
#include "bench/common/start.h"
#include "lib/contracts/value_codec.h"

static const char *const purpose =
    "What a step of the sparse exchange costs as ranks become more: counted from the library's\n"
    "state machines, by its formula, and run on a simulated network; beside the best dense\n"
    "all-reduce by formula. Nothing here is measured, except with --passes or --verify.\n\n"
    "Networks: ib  8 ranks a node with a card each: inside 1 us, 1600 Gbit/s; between nodes 3 us,\n"
    "              400 Gbit/s a rank; 0.4 us of processor a message pair; copies 5e-11 s a byte\n"
    "          ib1   the same with one card of 400 Gbit/s a node\n"
    "          tcp   25 Gbit/s, 20 us, a rank a host; 5 us a message pair; copies 1e-10 s a byte\n"
    "          tcp8  the same with 8 ranks a host: inside 1 us, 80 Gbit/s\n"
    "          wan   4 sites with a quarter of the ranks each: between them 20 ms, 1 Gbit/s a\n"
    "                site; inside 20 us, 25 Gbit/s; 5 us a message pair, copies 1e-10 s a byte";

static void check_settings(scale_settings *s) {
    s->net = scale_net_parse(s->net_text);
    s->net.net.incast_s = 1e-6 * s->incast_us;
    s->weather.resend_s = 1e-6 * s->resend_us;
    s->nranks = bench_parse_counts("ranks", s->ranks_text, 16384, SCALE_RANKS, s->ranks);
    for (size_t i = 0; i < s->nranks; i++)
        if (s->ranks[i] < 2.0)
            bench_usage("--ranks %s: one rank exchanges nothing; 2 are the fewest", s->ranks_text);
    if (s->density <= 0.0)
        bench_usage("--density %g is out of range: it must be above 0", s->density);
    if (s->index_bytes <= 0.0)
        bench_usage("--index-bytes %g is out of range: it must be above 0", s->index_bytes);
    if (s->weather.loss >= 1.0)
        bench_usage("--loss %g is out of range: nothing would arrive", s->weather.loss);
    tamis_value_codec up = tam_value_codec_resolve((tamis_value_codec)s->values);
    s->up = tam_value_codec_of(up);
    s->down = tam_value_codec_of(tam_sum_codec_resolve((tamis_value_codec)s->sum_values, up));
    if (!s->verify)
        return;
    s->transport = -1;
    bench_launch_check(&s->transport, &s->mpi_ranks);
    if (s->transport != BENCH_MPI)
        bench_usage("--verify needs ranks: start it with mpirun, or srun --mpi=pmix");
}

void scale_settings_read(int argc, char **argv, scale_settings *out) {
    *out = (scale_settings){
        .net_text = "ib",
        .ranks_text = "4,16,64,256,1024,4096",
        .elements = 25000000,
        .density = 0.01,
        .local_steps = 1,
        .index_bytes = 4.0,
        .simulate = 1,
        .steps = 10,
        .resend_us = 2e5,
        .weather = {.seed = 1},
    };
    const bench_option options[] = {
        {"net", 0, BENCH_TEXT, &out->net_text, "NET", 0, 0, SCALE_NETS},
        {"elements", 'n', BENCH_COUNT, &out->elements, "N", 1, 4e9, "elements of the gradient"},
        {"density", 'd', BENCH_REAL, &out->density, "D", 0, 1, ""},
        {"ranks", 0, BENCH_TEXT, &out->ranks_text, "P[,P...]", 0, 0, ""},
        {"ranks-per-node", 0, BENCH_COUNT, &out->ranks_per_node, "G", 0, 16384,
         "0: as usual for the network"},
        {"local-steps", 0, BENCH_COUNT, &out->local_steps, "H", 1, 1e6,
         "steps that share one exchange"},
        {"index-bytes", 0, BENCH_REAL, &out->index_bytes, "B", 0, 8,
         "of an index on the wire (docs/exchange.md)"},
        BENCH_ROW_VALUES(&out->values),
        BENCH_ROW_SUM_VALUES(&out->sum_values),
        {"groups", 0, BENCH_COUNT, &out->groups, "L", 0, 1e6,
         "groups whose norms travel with the values: those of budget norm; 0: budget global"},
        {"simulate", 0, BENCH_COUNT, &out->simulate, "0|1", 0, 1,
         "run the state machines of the chosen plan on the simulated network, if it has at most "
         "262,144 "
         "messages a gather"},
        {"jitter", 0, BENCH_REAL, &out->weather.jitter, "J", 0, 100,
         "simulated: latencies are longer by a random part, J on average"},
        {"loss", 0, BENCH_REAL, &out->weather.loss, "L", 0, 1,
         "simulated: part of the messages between nodes that are sent again"},
        {"resend", 0, BENCH_REAL, &out->resend_us, "US", 0, 1e9, "simulated: after so long"},
        {"incast", 0, BENCH_REAL, &out->incast_us, "US", 0, 1e9,
         "for each sender beyond 8 that a rank hears at once from other nodes"},
        {"seed", 0, BENCH_COUNT, &out->weather.seed, "N", 0, 1e18, "of jitter and loss"},
        {"candidates", 0, BENCH_FLAG, &out->candidates, "", 0, 0,
         "simulate all candidate plans, and compare the chosen one with the best; those of more "
         "than 262,144 messages a gather by formula"},
        {"verify", 0, BENCH_FLAG, &out->verify, "", 0, 0,
         "under mpirun: run steps, compare the bytes sent with those predicted; ignores --ranks"},
        {"steps", 0, BENCH_COUNT, &out->steps, "N", 2, 1e6, "of --verify"},
        {"passes", 0, BENCH_FLAG, &out->passes, "", 0, 0,
         "time one rank's own passes instead, in the divisions of so many ranks: accumulate over "
         "all elements, union of the selections of all ranks"},
        BENCH_ROW_JSON_TABLE(&out->json),
    };
    bench_options_parse("tamis_scale", purpose, options, sizeof options / sizeof options[0], argc,
                        argv);
    check_settings(out);
    if (!out->verify || bench_launched_rank() == 0)
        out->report = bench_report_open(out->json);
}

scale_case scale_case_of(const scale_settings *s, uint32_t nranks) {
    double entries = s->density * (double)s->elements;
    scale_case c = {.nranks = nranks, .elements = s->elements};
    c.up = s->up;
    c.down = s->down;
    c.net = scale_net_of(&s->net, nranks, s->ranks_per_node);
    scale_fill_case(&c, entries >= 1.0 ? (uint64_t)entries : 1, s->index_bytes, s->groups);
    return c;
}
