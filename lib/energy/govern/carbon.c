/* SPDX-License-Identifier: MIT */
#include "lib/energy/govern/carbon.h"
#include "lib/base/fenv.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Nothing on earth emits more: lignite gives 1,200. What is above is a file in other units. */
#define MOST_G_PER_KWH 10000.0
#define UJ_PER_KWH 3.6e12

enum { LINE_BYTES = 256, FIRST_ROWS = 64 };

typedef struct row {
    double from_s, g_per_kwh; /* NAN: unknown */
} row;

struct tamis_carbon {
    double constant;
    row *rows; /* NULL: the constant; else one more than nrows, which ends the last */
    size_t nrows, room;
};

/* -- reading ---------------------------------------------------------------------------------- */

typedef struct reader {
    const char *path;
    size_t line;
    locale_t numbers; /* a point is a point, whatever the program's language */
} reader;

static tamis_status refuse(const reader *r, const char *why) {
    return tam_fail(TAMIS_E_FORMAT, "%s, line %zu: %s", r->path, r->line, why);
}

static bool blank(const char *text) {
    return text[strspn(text, " \t\r\n")] == '\0';
}

/* A number and nothing else before `end`. */
static bool parse(const reader *r, const char *text, char end, double *out, const char **after) {
    char *stop;
    double value = strtod_l(text, &stop, r->numbers);
    if (stop == text || !isfinite(value))
        return false;
    stop += strspn(stop, " \t\r\n");
    if (*stop != end)
        return false;
    *out = value;
    *after = end ? stop + 1 : stop;
    return true;
}

static tamis_status parse_row(const reader *r, const char *text, row *out) {
    const char *value;
    if (!parse(r, text, ',', &out->from_s, &value))
        return refuse(r, "it must be time,g_per_kwh: seconds of Unix time, a comma, a number");
    out->g_per_kwh = NAN;
    if (blank(value))
        return TAMIS_OK;
    if (!parse(r, value, '\0', &out->g_per_kwh, &value))
        return refuse(r, "what follows the comma is no number");
    if (!(out->g_per_kwh >= 0.0 && out->g_per_kwh <= MOST_G_PER_KWH))
        return refuse(r, "the intensity is not between 0 and 10000 g/kWh");
    return TAMIS_OK;
}

/* There is always room for the row that ends the last. */
static tamis_status append(tam_carbon *c, row next) {
    if (c->nrows + 1 >= c->room) {
        size_t room = c->room ? 2 * c->room : FIRST_ROWS;
        row *rows = tam_alloc_array(room, sizeof rows[0]);
        if (!rows)
            return tam_fail(TAMIS_E_NOMEM, "no memory for %zu rows of carbon intensity", room);
        if (c->nrows)
            memcpy(rows, c->rows, c->nrows * sizeof rows[0]);
        tam_free(c->rows);
        c->rows = rows;
        c->room = room;
    }
    c->rows[c->nrows++] = next;
    return TAMIS_OK;
}

/* @param  more  [out]  false: the file has ended, and there is no line */
static tamis_status next_line(reader *r, FILE *file, char text[LINE_BYTES], bool *more) {
    size_t length = 0;
    int c;
    r->line++;
    while ((c = fgetc(file)) != EOF && c != '\n') {
        if (c == '\0' || length == LINE_BYTES - 1)
            return refuse(r, c ? "it is too long" : "it holds a zero byte");
        text[length++] = (char)c;
    }
    text[length] = '\0';
    *more = c != EOF || length > 0;
    if (ferror(file))
        return tam_fail(TAMIS_E_IO, "%s could not be read: %s", r->path, strerror(errno));
    return TAMIS_OK;
}

static tamis_status read_lines(reader *r, FILE *file, tam_carbon *c) {
    char text[LINE_BYTES];
    for (bool more;;) {
        row next = {0.0, NAN};
        TAM_TRY(next_line(r, file, text, &more));
        if (!more)
            break;
        bool heading = r->line == 1 && strncmp(text, "time", 4) == 0;
        if (heading || blank(text))
            continue;
        TAM_TRY(parse_row(r, text, &next));
        if (c->nrows && next.from_s <= c->rows[c->nrows - 1].from_s)
            return refuse(r, "its time is not after that of the row before");
        TAM_TRY(append(c, next));
    }
    if (c->nrows < 2)
        return refuse(r, "the trace ends with less than two rows; for one value give a constant");
    double last = c->rows[c->nrows - 1].from_s;
    c->rows[c->nrows] = (row){last + (last - c->rows[c->nrows - 2].from_s), NAN};
    return TAMIS_OK;
}

static tamis_status read_trace(const char *path, tam_carbon *c) {
    reader r = {.path = path};
    r.numbers = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!r.numbers)
        return tam_fail(TAMIS_E_NOMEM, "no memory to read %s", path);
    FILE *file = fopen(path, "re");
    tamis_status status =
        file ? read_lines(&r, file, c)
             : tam_fail(TAMIS_E_IO, "carbon trace %s cannot be opened: %s", path, strerror(errno));
    if (file)
        fclose(file);
    freelocale(r.numbers);
    return status;
}

tamis_status tam_carbon_open(const char *path, double constant_g_per_kwh, tam_carbon **out) {
    bool trace = path && path[0];
    if (!trace && !isnan(constant_g_per_kwh) &&
        !(constant_g_per_kwh >= 0.0 && constant_g_per_kwh <= MOST_G_PER_KWH))
        return tam_fail(TAMIS_E_ARGUMENT,
                        "carbon intensity %g is not between 0 and 10000 g/kWh; NAN if unknown",
                        constant_g_per_kwh);
    tam_carbon *c = tam_alloc(sizeof *c);
    if (!c)
        return tam_fail(TAMIS_E_NOMEM, "no memory for carbon intensity");
    c->constant = constant_g_per_kwh;
    tamis_status status = trace ? read_trace(path, c) : TAMIS_OK;
    if (status != TAMIS_OK) {
        tam_carbon_close(c);
        return status;
    }
    *out = c;
    return TAMIS_OK;
}

void tam_carbon_close(tam_carbon *c) {
    if (!c)
        return;
    tam_free(c->rows);
    tam_free(c);
}

/* -- looking up ------------------------------------------------------------------------------- */

/* The row that holds at a time; nrows: none does. */
static size_t find(const tam_carbon *c, double unix_s) {
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

double tam_carbon_intensity(const tam_carbon *c, double unix_s) {
    if (!c->rows)
        return c->constant;
    return c->rows[find(c, unix_s)].g_per_kwh; /* NAN in the one that ends the last */
}

double tam_carbon_mean(const tam_carbon *c, double begin_s, double end_s) {
    if (!isfinite(begin_s) || !isfinite(end_s) || begin_s > end_s)
        return NAN;
    if (!c->rows || begin_s == end_s)
        return tam_carbon_intensity(c, begin_s);
    double sum = 0.0, at = begin_s;
    for (size_t i = find(c, begin_s); at < end_s; i++) {
        if (i == c->nrows)
            return NAN;
        double next = c->rows[i + 1].from_s < end_s ? c->rows[i + 1].from_s : end_s;
        sum += c->rows[i].g_per_kwh * (next - at); /* NAN stays NAN */
        at = next;
    }
    return sum / (end_s - begin_s);
}

double tam_carbon_grams(const tam_carbon *c, double begin_s, double end_s, int64_t uj, double pue) {
    if (!c || !(pue >= 1.0 && isfinite(pue)))
        return NAN;
    return (double)uj / UJ_PER_KWH * pue * tam_carbon_mean(c, begin_s, end_s);
}

static void look(const tam_carbon *c, double from_s, double until_s, tamis_carbon_outlook *out) {
    double at = from_s, sum = 0.0;
    for (size_t i = find(c, from_s); i < c->nrows && at < until_s; i++) {
        const row *r = &c->rows[i];
        if (isnan(r->g_per_kwh))
            break;
        double next = r[1].from_s < until_s ? r[1].from_s : until_s;
        sum += r->g_per_kwh * (next - at);
        out->low = out->low <= r->g_per_kwh ? out->low : r->g_per_kwh; /* NAN at first */
        out->high = out->high >= r->g_per_kwh ? out->high : r->g_per_kwh;
        at = next;
    }
    out->known_s = at - from_s;
    out->mean = out->known_s > 0.0 ? sum / out->known_s : NAN;
}

/* -- as <tamis/governor.h> has it ------------------------------------------------------------- */

tamis_status tamis_carbon_open(const char *path, double constant_g_per_kwh, tamis_carbon **out) {
    TAM_FENV_HELD();
    if (!out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_carbon_open: out is NULL");
    return tam_carbon_open(path, constant_g_per_kwh, out);
}

void tamis_carbon_close(tamis_carbon *carbon) {
    tam_carbon_close(carbon);
}

double tamis_carbon_intensity(const tamis_carbon *carbon, double unix_s) {
    TAM_FENV_HELD();
    return carbon && isfinite(unix_s) ? tam_carbon_intensity(carbon, unix_s) : NAN;
}

double tamis_carbon_grams(const tamis_carbon *carbon, double unix_begin_s, double unix_end_s,
                          int64_t uj, double pue) {
    TAM_FENV_HELD();
    return tam_carbon_grams(carbon, unix_begin_s, unix_end_s, uj, pue);
}

tamis_status tamis_carbon_look(const tamis_carbon *carbon, double unix_s, double horizon_s,
                               tamis_carbon_outlook *out) {
    TAM_FENV_HELD();
    tamis_carbon_outlook ours = TAMIS_CARBON_OUTLOOK_INIT;
    if (!carbon || !out)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_carbon_look: %s is NULL",
                        carbon ? "out" : "carbon");
    if (!isfinite(unix_s) || !(horizon_s > 0.0 && isfinite(horizon_s)))
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_carbon_look: a horizon of %g s from %g is none",
                        horizon_s, unix_s);
    if (carbon->rows) {
        look(carbon, unix_s, unix_s + horizon_s, &ours);
    } else if (!isnan(carbon->constant)) {
        ours.known_s = horizon_s;
        ours.mean = ours.low = ours.high = carbon->constant;
    }
    return tam_struct_give("tamis_carbon_outlook", &ours, sizeof ours, out);
}

void tamis_carbon_span(const tamis_carbon *carbon, double *begin_s, double *end_s) {
    TAM_FENV_HELD();
    bool trace = carbon && carbon->rows;
    *begin_s = trace ? carbon->rows[0].from_s : 0.0;
    *end_s = trace ? carbon->rows[carbon->nrows].from_s : 0.0;
}
