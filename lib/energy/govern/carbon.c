/* SPDX-License-Identifier: MIT
 *
 * Intensity of electricity over time, and grams of joules.
 *
 *     rows        t0        t1              t2        t3
 *     g/kWh       |---v0----|------v1-------| unknown |---v3---|       v3 holds as long as the
 *                                                                      row before it
 */
#include "lib/energy/govern/carbon.h"

#include "lib/base/fenv.h"

#include <errno.h>
#include <float.h>
#include <locale.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Nothing on earth emits more: lignite gives 1,200. What is above is a file in other units. */
#define MAX_G_PER_KWH 10000.0
#define UJ_PER_KWH 3.6e12
/* The year 5000. What is later is in other units: today's milliseconds are the year 50,000. */
#define LATEST_S 95617584000.0

enum { LINE_BYTES = 256, FIRST_ROWS = 64, DATE_BYTES = 32 };

typedef struct row {
    double from_s, g_per_kwh; /* NAN: unknown */
} row;

/* A constant is a row that holds for ever. */
struct tamis_carbon {
    row *rows; /* one more than nrows, which ends the last and is unknown */
    size_t nrows, capacity;
    char *path;        /* NULL: a constant */
    atomic_bool *said; /* that grams are unknown, and why */
};

/* There is always room for the row that ends the last. */
static tamis_status carbon_append(tamis_carbon *c, double from_s, double g_per_kwh) {
    if (c->nrows + 1 >= c->capacity) {
        size_t capacity = c->capacity ? 2 * c->capacity : FIRST_ROWS;
        row *rows = tam_alloc_array(capacity, sizeof rows[0]);
        if (!rows)
            return tam_fail(TAMIS_E_NOMEM, "no memory for %zu rows of carbon intensity", capacity);
        if (c->nrows)
            memcpy(rows, c->rows, c->nrows * sizeof rows[0]);
        tam_free(c->rows);
        c->rows = rows;
        c->capacity = capacity;
    }
    c->rows[c->nrows++] = (row){from_s, g_per_kwh};
    return TAMIS_OK;
}

/* -- reading ---------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    FILE *file;
    locale_t numbers; /* a point is a point, whatever the program's language */
    char text[LINE_BYTES];
    size_t line;
} reader;

static tamis_status carbon_refuse(const reader *r, const char *why) {
    return tam_fail(TAMIS_E_FORMAT, "%s, line %zu: %s", r->path, r->line, why);
}

static bool blank(const char *text) {
    return text[strspn(text, " \t\r\n")] == '\0';
}

/* A number and nothing else before `end`. @return what follows it; NULL: it is none */
static const char *carbon_parse(const reader *r, const char *text, char end, double *out) {
    char *stop;
    *out = strtod_l(text, &stop, r->numbers);
    if (stop == text || !isfinite(*out))
        return NULL;
    stop += strspn(stop, " \t\r\n");
    return *stop == end ? stop + (end != '\0') : NULL;
}

static tamis_status read_row(const reader *r, tamis_carbon *c) {
    double from_s, g_per_kwh = NAN;
    const char *value = carbon_parse(r, r->text, ',', &from_s);
    if (!value)
        return carbon_refuse(r, "expected time,g_per_kwh: Unix time in seconds, a comma, a number");
    if (!blank(value) && !carbon_parse(r, value, '\0', &g_per_kwh))
        return carbon_refuse(r, "what follows the comma is not a number");
    if (!blank(value) && !(g_per_kwh >= 0.0 && g_per_kwh <= MAX_G_PER_KWH))
        return carbon_refuse(r, "the intensity is not between 0 and 10000 g/kWh");
    if (from_s >= LATEST_S)
        return carbon_refuse(r, "its time looks like milliseconds; expected Unix time in seconds");
    if (c->nrows && from_s <= c->rows[c->nrows - 1].from_s)
        return carbon_refuse(r, "its time is not after that of the previous row");
    return carbon_append(c, from_s, g_per_kwh);
}

/* A first line that begins with a letter names the columns. */
static bool is_heading(const reader *r) {
    char first = r->line == 1 ? r->text[0] : '\0';
    return (first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z');
}

/* Numbers of another unit look the same, so only the heading can tell. */
static tamis_status check_heading(reader *r) {
    char *name = r->text + strcspn(r->text, ",");
    name += *name == ',';
    name += strspn(name, " \t");
    size_t length = strlen(name);
    while (length > 0 && strchr(" \t\r", name[length - 1]))
        name[--length] = '\0';
    if (strncmp(r->text, "time", 4) != 0)
        return carbon_refuse(r, "the first column is not time: expected time,g_per_kwh, which "
                                "tamis-carbon-convert makes of other files");
    if (strcmp(name, "g_per_kwh") == 0)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_FORMAT,
                    "%s, line 1: the second column is '%s', not g_per_kwh: multiply its values "
                    "(lb/MWh by 0.45359237, kg/MWh by 1) and rename it",
                    r->path, name);
}

static void skip_byte_order_mark(reader *r) {
    static const char mark[] = "\xef\xbb\xbf";
    if (strncmp(r->text, mark, 3) == 0)
        memmove(r->text, r->text + 3, strlen(r->text + 3) + 1);
}

/* @param more  [out]  false: the file has ended, and there is no line */
static tamis_status next_line(reader *r, bool *more) {
    size_t length = 0;
    int c;
    r->line++;
    while ((c = fgetc(r->file)) != EOF && c != '\n') {
        if (c == '\0' || length == LINE_BYTES - 1)
            return carbon_refuse(r, c ? "it is too long" : "it holds a zero byte");
        r->text[length++] = (char)c;
    }
    r->text[length] = '\0';
    *more = c != EOF || length > 0;
    if (ferror(r->file))
        return tam_fail(TAMIS_E_IO, "%s could not be read: %s", r->path, strerror(errno));
    return TAMIS_OK;
}

static tamis_status read_rows(reader *r, tamis_carbon *c) {
    for (bool more;;) {
        TAM_TRY(next_line(r, &more));
        if (!more)
            break;
        if (r->line == 1)
            skip_byte_order_mark(r);
        if (!blank(r->text))
            TAM_TRY(is_heading(r) ? check_heading(r) : read_row(r, c));
    }
    if (c->nrows < 2)
        return carbon_refuse(
            r, "the trace has fewer than two rows; for a single value give a constant");
    double last = c->rows[c->nrows - 1].from_s;
    c->rows[c->nrows] = (row){last + (last - c->rows[c->nrows - 2].from_s), NAN};
    return TAMIS_OK;
}

static tamis_status read_trace(const char *path, tamis_carbon *c) {
    reader r = {.path = path, .numbers = newlocale(LC_ALL_MASK, "C", (locale_t)0)};
    if (!r.numbers)
        return tam_fail(TAMIS_E_NOMEM, "no memory to read %s", path);
    r.file = fopen(path, "re");
    tamis_status status = r.file ? read_rows(&r, c)
                                 : tam_fail(TAMIS_E_IO, "carbon trace %s cannot be opened: %s",
                                            path, strerror(errno));
    if (r.file)
        fclose(r.file);
    freelocale(r.numbers);
    return status;
}

static tamis_status set_constant(double g_per_kwh, tamis_carbon *c) {
    if (!isnan(g_per_kwh) && !(g_per_kwh >= 0.0 && g_per_kwh <= MAX_G_PER_KWH))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "carbon intensity %g is not between 0 and 10000 g/kWh; use NAN if unknown",
                        g_per_kwh);
    TAM_TRY(carbon_append(c, -DBL_MAX, g_per_kwh));
    c->rows[1] = (row){DBL_MAX, NAN};
    return TAMIS_OK;
}

tamis_status tamis_carbon_open(const char *path, double constant_g_per_kwh, tamis_carbon **out) {
    TAM_FENV_HELD();
    if (!out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_carbon_open: out is NULL");
    tamis_carbon *c = tam_alloc(sizeof *c);
    if (!c)
        return tam_fail(TAMIS_E_NOMEM, "no memory for carbon intensity");
    bool trace = path && path[0];
    c->path = trace ? tam_strdup(path) : NULL;
    c->said = tam_alloc(sizeof *c->said);
    tamis_status status = TAMIS_OK;
    if (!c->said || (trace && !c->path))
        status = tam_fail(TAMIS_E_NOMEM, "no memory for carbon intensity");
    else
        status = trace ? read_trace(path, c) : set_constant(constant_g_per_kwh, c);
    if (status == TAMIS_OK)
        *out = c;
    else
        tamis_carbon_close(c);
    return status;
}

void tamis_carbon_close(tamis_carbon *c) {
    if (!c)
        return;
    tam_free(c->said);
    tam_free(c->path);
    tam_free(c->rows);
    tam_free(c);
}

/* -- looking up ------------------------------------------------------------------------------- */

/* The row that holds at a time; nrows: none does. */
static size_t carbon_find(const tamis_carbon *c, double unix_s) {
    size_t low = 0, high = c->nrows;
    if (!(unix_s >= c->rows[0].from_s && unix_s < c->rows[c->nrows].from_s))
        return c->nrows;
    while (high - low > 1) { /* rows[low] <= unix_s < rows[high] */
        size_t middle = low + (high - low) / 2;
        if (c->rows[middle].from_s <= unix_s)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* From a time on, until another or where intensity is no longer known. */
static tamis_carbon_outlook carbon_look(const tamis_carbon *c, double from_s, double until_s) {
    tamis_carbon_outlook out = TAMIS_CARBON_OUTLOOK_INIT;
    double at = from_s, sum = 0.0;
    for (size_t i = carbon_find(c, from_s); at < until_s && !isnan(c->rows[i].g_per_kwh); i++) {
        const row *r = &c->rows[i];
        double next = r[1].from_s < until_s ? r[1].from_s : until_s;
        sum += r->g_per_kwh * (next - at);
        out.low = out.low <= r->g_per_kwh ? out.low : r->g_per_kwh; /* NAN at first */
        out.high = out.high >= r->g_per_kwh ? out.high : r->g_per_kwh;
        at = next;
    }
    out.known_s = at - from_s;
    out.mean = out.known_s > 0.0 ? sum / out.known_s : NAN;
    return out;
}

double tamis_carbon_intensity(const tamis_carbon *c, double unix_s) {
    TAM_FENV_HELD();
    return c && isfinite(unix_s) ? c->rows[carbon_find(c, unix_s)].g_per_kwh : NAN;
}

/* -- why it is unknown ------------------------------------------------------------------------- */

static void put_date(double unix_s, char out[DATE_BYTES]) {
    bool dated = fabs(unix_s) < LATEST_S;
    time_t seconds = dated ? (time_t)floor(unix_s) : 0;
    struct tm date;
    if (!dated || !gmtime_r(&seconds, &date) ||
        strftime(out, DATE_BYTES, "%Y-%m-%d %H:%M", &date) == 0)
        snprintf(out, DATE_BYTES, "%g", unix_s);
}

void tam_carbon_explain(const tamis_carbon *c, double unix_s, char *out, size_t bytes) {
    char first[DATE_BYTES], last[DATE_BYTES], wanted[DATE_BYTES];
    size_t at = c && isfinite(unix_s) ? carbon_find(c, unix_s) : SIZE_MAX;
    out[0] = '\0';
    if (c && at < c->nrows && !isnan(c->rows[at].g_per_kwh))
        return;
    put_date(unix_s, wanted);
    if (!c || !c->path)
        snprintf(out, bytes, "no carbon intensity was given");
    else if (at < c->nrows)
        snprintf(out, bytes, "the carbon trace has no value at %s (UTC)", wanted);
    else {
        put_date(c->rows[0].from_s, first);
        put_date(c->rows[c->nrows].from_s, last);
        snprintf(out, bytes, "the carbon trace covers %s to %s, not %s (UTC)", first, last, wanted);
    }
}

/* Once, for the next stretch of time will mostly be unknown as well. */
static void carbon_warn(const tamis_carbon *c, double unix_s) {
    char reason[192];
    if (!c->path || atomic_exchange(c->said, true))
        return;
    tam_carbon_explain(c, unix_s, reason, sizeof reason);
    tam_log(TAM_WARN, "grams of CO2 are unknown: %s: %s", c->path, reason);
}

double tamis_carbon_grams(const tamis_carbon *c, double begin_s, double end_s, int64_t uj,
                          double pue) {
    TAM_FENV_HELD();
    double kwh = (double)uj / UJ_PER_KWH * pue;
    if (!c || !(pue >= 1.0 && isfinite(pue)) || !isfinite(begin_s) || !isfinite(end_s) ||
        begin_s > end_s)
        return NAN;
    if (begin_s == end_s)
        return kwh * tamis_carbon_intensity(c, begin_s);
    tamis_carbon_outlook whole = carbon_look(c, begin_s, end_s);
    if (whole.known_s == end_s - begin_s)
        return kwh * whole.mean;
    carbon_warn(c, begin_s + whole.known_s);
    return NAN;
}

tamis_status tamis_carbon_look(const tamis_carbon *carbon, double unix_s, double horizon_s,
                               tamis_carbon_outlook *out) {
    TAM_FENV_HELD();
    if (!carbon || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_carbon_look: %s is NULL",
                        carbon ? "out" : "carbon");
    if (!isfinite(unix_s) || !(horizon_s > 0.0 && isfinite(horizon_s)))
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_carbon_look: a horizon of %g s from %g is invalid",
                        horizon_s, unix_s);
    tamis_carbon_outlook ours = carbon_look(carbon, unix_s, unix_s + horizon_s);
    return tam_struct_return("tamis_carbon_outlook", &ours, sizeof ours, out);
}
