/* SPDX-License-Identifier: MIT
 *
 * A record of each row. Its fields:
 *
 *     net, net_text, elements, density, entries, ranks, ranks_per_node, local_steps, index_bytes,
 *     groups, values, sum_values, jitter, loss, incast_us, seed    what was asked for
 *     plan, rounds     the chosen plan; stages of the gather and of both halves of the sums
 *     messages, peers, rank_bytes     of a step, of the rank that has most
 *     node_bytes       that leave the node that sends most
 *     memory_grows, memory_fixed      bytes of a rank: simulate.c says which are counted
 *     formula_us, simulated_us, linear_us, usual_us, dense_us     a step: by the formula; on the
 *                      simulated network, null if not run; of the linear plan, of the one where
 *                      nothing is known of the network, and of the best dense all-reduce, by
 *                      formula
 *     speedup          dense_us / simulated_us, or / formula_us
 *     break_even       density up to which a step of the chosen plan is faster than dense, by
 *                      formula; null: none is
 *     local_step_us, local_speedup    a step divided by local_steps; dense_us / that
 *     best_plan, best_us, over_best   with --candidates: the best on the simulated network, and how
 *                      much longer the chosen one takes there
 */
#include "bench/scale/table.h"

#include "bench/common/report.h"

static FILE *table_of(const scale_settings *s) {
    return s->report == stdout ? stderr : stdout;
}

static const char *const legend =
    "# times in us a step, none of them measured: formula (LogGP, lib/policy/plan.h); simulated: "
    "the\n"
    "#   library's state machines on a simulated network; linear: all with all, usual: the plan "
    "where\n"
    "#   the network is not known, as transport mpi has it (radix 8), and dense: the best of "
    "ring,\n"
    "#   ring and tree of nodes, and staged halving, by formula\n"
    "#   rounds: stages of the gather and of both halves of the sums; msgs, peers, bytes: of the\n"
    "#   rank that has most; node: bytes that leave a node; even: density up to which this is\n"
    "#   faster than dense; local: us of one of H local steps that share an exchange\n"
    "#   grows: KB of a rank that grow with P (peers, records of handshakes, headers of\n"
    "#   packets); fixed: MB that do not (buffers of messages, indices, union, values)\n";

void scale_table_header(const scale_settings *s) {
    char text[512];
    FILE *out = table_of(s);
    fprintf(out,
            "# tamis_scale %s: n %llu, density %g, %g bytes an index, values %s, sums %s, %llu "
            "groups, H %llu\n",
            bench_version(), (unsigned long long)s->elements, s->density, s->index_bytes,
            s->up->name, s->down->name, (unsigned long long)s->groups,
            (unsigned long long)s->local_steps);
    fprintf(out, "# %s\n%s", scale_net_text(&s->net, text, sizeof text), legend);
    fprintf(out,
            "#%5s %5s %14s %6s %5s %5s %10s %10s %8s %7s %10s %10s %10s %10s %10s %7s %8s %10s\n",
            "ranks", "G", "plan", "rounds", "msgs", "peers", "bytes", "node", "grows", "fixed",
            "formula", "simulated", "linear", "usual", "dense", "speedup", "even", "local");
}

static double step_s(const scale_row *r) {
    return r->simulated_s >= 0.0 ? r->simulated_s : r->formula_s;
}

static uint32_t node_of(const scale_row *r) {
    uint32_t g = r->c.net.ranks_per_node;
    return g < r->c.nranks ? g : r->c.nranks;
}

static void print_row(const scale_settings *s, const scale_row *r) {
    FILE *out = table_of(s);
    char text[64], even[16] = "never", simulated[16] = "-";
    if (r->break_even > 0.0)
        snprintf(even, sizeof even, "%.2g%%", 100.0 * r->break_even);
    if (r->simulated_s >= 0.0)
        snprintf(simulated, sizeof simulated, "%.1f", 1e6 * r->simulated_s);
    fprintf(out,
            "%6u %5u %14s %6u %5llu %5u %10llu %10llu %8.1f %7.2f %10.1f %10s %10.1f %10.1f %10.1f "
            "%7.2f %8s %10.1f\n",
            r->c.nranks, node_of(r), tam_plan_text(&r->plan, text, sizeof text), r->counts.rounds,
            (unsigned long long)r->counts.messages, r->counts.peers,
            (unsigned long long)r->counts.bytes, (unsigned long long)r->counts.node_bytes,
            1e-3 * (double)r->memory.grows, 1e-6 * (double)r->memory.fixed, 1e6 * r->formula_s,
            simulated, 1e6 * r->linear_s, 1e6 * r->usual_s, 1e6 * r->dense_s,
            r->dense_s / step_s(r), even, 1e6 * step_s(r) / (double)s->local_steps);
    if (r->best_s >= 0.0)
        fprintf(out, "#      best candidate %s: %.1f us; the chosen one takes %.3f of it\n",
                tam_plan_text(&r->best, text, sizeof text), 1e6 * r->best_s,
                r->simulated_s / r->best_s);
    fflush(out);
}

/* -- record ----------------------------------------------------------------------------------- */

static json_t *us_if(bool known, double seconds) {
    return known ? json_real(1e6 * seconds) : json_null();
}

static void add(json_t *record, json_t *more) {
    json_object_update(record, more);
    json_decref(more);
}

static json_t *asked(const scale_settings *s, const scale_row *r) {
    char text[512];
    json_t *record = bench_report_new("scale");
    add(record,
        json_pack("{ss ss sI sf sI sI sI sI sf sI}", "net", s->net.name, "net_text",
                  scale_net_text(&s->net, text, sizeof text), "elements", (json_int_t)s->elements,
                  "density", s->density, "entries", (json_int_t)r->c.entries, "ranks",
                  (json_int_t)r->c.nranks, "ranks_per_node", (json_int_t)node_of(r), "local_steps",
                  (json_int_t)s->local_steps, "index_bytes", s->index_bytes, "groups",
                  (json_int_t)s->groups));
    add(record, json_pack("{ss ss}", "values", s->up->name, "sum_values", s->down->name));
    add(record, json_pack("{sf sf sf sI}", "jitter", s->weather.jitter, "loss", s->weather.loss,
                          "incast_us", s->incast_us, "seed", (json_int_t)s->weather.seed));
    return record;
}

static void write_record(const scale_settings *s, const scale_row *r) {
    char plan[64], best[64];
    double local_s = step_s(r) / (double)s->local_steps;
    bool simulated = r->simulated_s >= 0.0, compared = r->best_s >= 0.0;
    json_t *record = asked(s, r);
    add(record,
        json_pack("{ss si sI sI sI sI sI sI}", "plan", tam_plan_text(&r->plan, plan, sizeof plan),
                  "rounds", (int)r->counts.rounds, "messages", (json_int_t)r->counts.messages,
                  "peers", (json_int_t)r->counts.peers, "rank_bytes", (json_int_t)r->counts.bytes,
                  "node_bytes", (json_int_t)r->counts.node_bytes, "memory_grows",
                  (json_int_t)r->memory.grows, "memory_fixed", (json_int_t)r->memory.fixed));
    add(record,
        json_pack("{sf so sf sf sf sf so sf sf}", "formula_us", 1e6 * r->formula_s, "simulated_us",
                  us_if(simulated, r->simulated_s), "linear_us", 1e6 * r->linear_s, "usual_us",
                  1e6 * r->usual_s, "dense_us", 1e6 * r->dense_s, "speedup", r->dense_s / step_s(r),
                  "break_even", r->break_even > 0.0 ? json_real(r->break_even) : json_null(),
                  "local_step_us", 1e6 * local_s, "local_speedup", r->dense_s / local_s));
    if (compared)
        add(record, json_pack("{ss sf sf}", "best_plan", tam_plan_text(&r->best, best, sizeof best),
                              "best_us", 1e6 * r->best_s, "over_best", r->simulated_s / r->best_s));
    bench_report_write(s->report, record);
}

void scale_table_row(const scale_settings *s, const scale_row *r) {
    print_row(s, r);
    write_record(s, r);
}
