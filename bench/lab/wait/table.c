/* SPDX-License-Identifier: MIT
 *
 * Turns samples into a line of the table and a record. Ratios and differences are computed in each
 * round; the median over the rounds is printed.
 */
#define _DEFAULT_SOURCE /* getloadavg */
#include <stdlib.h>

#include "bench/common/measure.h"
#include "bench/common/options.h"
#include "bench/common/report.h"
#include "bench/lab/wait/wait.h"

static const char *const legend =
    "# times in ms, medians over the rounds; a round makes one step of each variant, even and "
    "late\n"
    "#   mpi      MPI_Allreduce of the same vector; spin, auto, sleep: the library's step, waiting "
    "so\n"
    "#   step     of the slowest rank, from a barrier to the end of the exchange; q1, q3: "
    "quartiles\n"
    "#   cpu      that a rank which is early took in a late step; caller: its calling thread "
    "alone\n"
    "#   burns    cpu / step;   saved: 1 - cpu / cpu of spin\n"
    "#   longer   late step / late step of spin - 1\n"
    "#   skew     how long the library says that it waited for the late rank\n"
    "#   even     a step without delay;   added: even step - even step of spin, in us\n";

typedef double (*figure)(const wait_sample *);

#define FIGURE(name)                                                                               \
    static double name(const wait_sample *s) {                                                     \
        return s->name;                                                                            \
    }

FIGURE(step)
FIGURE(cpu)
FIGURE(caller)
FIGURE(skew)

static double cpu_per_step(const wait_sample *s) {
    return s->cpu / s->step;
}

typedef struct row {
    const wait_run *run;
    size_t variant, spin; /* spin: nvariants if there is none */
    double *scratch;      /* [rounds] */
} row;

static double load(void) {
    double one = 0.0;
    return getloadavg(&one, 1) == 1 ? one : 0.0;
}

static json_t *quartiles(double *values, size_t count) {
    return json_pack("{sf sf sf}", "median", bench_median(values, count), "q1",
                     bench_quantile(values, count, 0.25), "q3",
                     bench_quantile(values, count, 0.75));
}

static json_t *plain(const row *r, bool late, figure f) {
    size_t rounds = r->run->settings->rounds;
    for (size_t i = 0; i < rounds; i++)
        r->scratch[i] = f(&wait_samples(r->run, late, r->variant)[i]);
    return quartiles(r->scratch, rounds);
}

static double ratio_less_one(double own, double spin) {
    return own / spin - 1.0;
}

static double share_saved(double own, double spin) {
    return 1.0 - own / spin;
}

static double difference(double own, double spin) {
    return own - spin;
}

/* Compare with spin, round by round; null if there is no spin. */
static json_t *beside_spin(const row *r, bool late, figure f, double (*compare)(double, double)) {
    size_t rounds = r->run->settings->rounds;
    if (r->spin == r->run->nvariants)
        return json_null();
    for (size_t i = 0; i < rounds; i++)
        r->scratch[i] = compare(f(&wait_samples(r->run, late, r->variant)[i]),
                                f(&wait_samples(r->run, late, r->spin)[i]));
    return quartiles(r->scratch, rounds);
}

static json_t *make_record(const row *r) {
    const wait_run *run = r->run;
    const wait_settings *s = run->settings;
    const wait_variant *v = &run->variants[r->variant];
    json_t *record = bench_report_new("wait");
    json_t *what = json_pack("{ss ss sI sI sf sf sI sf}", "variant", v->name, "transport",
                             bench_choice(BENCH_TRANSPORTS, (int)run->group->transport), "ranks",
                             (json_int_t)run->group->nranks, "n", (json_int_t)s->elements,
                             "density", v->sum ? 1.0 : s->density, "late_ms", s->late_ms, "rounds",
                             (json_int_t)s->rounds, "load", load());
    json_t *figures =
        json_pack("{so so so so so so so so so}", "step_s", plain(r, true, step), "cpu_s",
                  plain(r, true, cpu), "caller_cpu_s", plain(r, true, caller), "burns",
                  plain(r, true, cpu_per_step), "saved", beside_spin(r, true, cpu, share_saved),
                  "longer", beside_spin(r, true, step, ratio_less_one), "skew_s",
                  v->sum ? json_null() : plain(r, true, skew), "even_step_s", plain(r, false, step),
                  "added_s", beside_spin(r, false, step, difference));
    json_object_update(record, what);
    json_object_update(record, figures);
    json_decref(what);
    json_decref(figures);
    return record;
}

static void print_cell(FILE *out, const json_t *record, const char *format, const char *name,
                       const char *part, double unit) {
    const json_t *value = json_object_get(record, name);
    fputc(' ', out);
    if (json_is_null(value))
        fprintf(out, "%*s", atoi(format + 1), "-");
    else
        fprintf(out, format, unit * json_number_value(json_object_get(value, part)));
}

static void print_row(FILE *out, const json_t *record) {
    fprintf(out, " %-7s", json_string_value(json_object_get(record, "variant")));
    print_cell(out, record, "%9.3f", "step_s", "median", 1e3);
    print_cell(out, record, "%9.3f", "step_s", "q1", 1e3);
    print_cell(out, record, "%9.3f", "step_s", "q3", 1e3);
    print_cell(out, record, "%8.3f", "cpu_s", "median", 1e3);
    print_cell(out, record, "%8.3f", "caller_cpu_s", "median", 1e3);
    print_cell(out, record, "%7.4f", "burns", "median", 1);
    print_cell(out, record, "%7.4f", "saved", "median", 1);
    print_cell(out, record, "%8.4f", "longer", "median", 1);
    print_cell(out, record, "%8.3f", "skew_s", "median", 1e3);
    print_cell(out, record, "%8.3f", "even_step_s", "median", 1e3);
    print_cell(out, record, "%8.1f", "added_s", "median", 1e6);
    fputc('\n', out);
}

static size_t find_spin(const wait_run *run) {
    size_t i = 0;
    while (i < run->nvariants &&
           (run->variants[i].sum || run->variants[i].waiting != TAMIS_WAITING_SPIN))
        i++;
    return i;
}

void wait_report(const wait_run *run) {
    const wait_settings *s = run->settings;
    row r = {run, 0, find_spin(run), bench_alloc(s->rounds, sizeof(double))};
    fprintf(
        s->table,
        "# tamis_wait_bench %s: %u ranks over %s, %llu elements, density %g, the last rank %g ms "
        "late\n# %llu rounds after %llu; load of the machine %.1f\n%s",
        bench_version(), run->group->nranks,
        bench_choice(BENCH_TRANSPORTS, (int)run->group->transport), (unsigned long long)s->elements,
        s->density, s->late_ms, (unsigned long long)s->rounds, (unsigned long long)s->warmup,
        load(), legend);
    fprintf(s->table, "#%-7s %9s %9s %9s %8s %8s %7s %7s %8s %8s %8s %8s\n", "variant", "step",
            "q1", "q3", "cpu", "caller", "burns", "saved", "longer", "skew", "even", "added");
    for (r.variant = 0; r.variant < run->nvariants; r.variant++) {
        json_t *record = make_record(&r);
        print_row(s->table, record);
        bench_report_write(s->report, record);
    }
    free(r.scratch);
}
