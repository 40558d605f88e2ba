/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* pread, pwrite, ftruncate */
#include "bench/common/recording.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bench/common/measure.h"

static const char magic[8] = "TAMGRD2";

enum { MAX_SEGMENTS = 1 << 20, MAX_RANKS = 4096 };

static size_t begin_of(const bench_recording_header *h) {
    size_t bytes = sizeof *h + h->nsegments * sizeof(bench_recording_segment);
    return (bytes + 63) / 64 * 64; /* gradients are aligned for any kernel */
}

static size_t offset_of(const bench_recording_header *h, uint64_t record, uint32_t rank) {
    return begin_of(h) + (record * h->ranks + rank) * h->length * sizeof(float);
}

static void copy_segments(const tamis_segment *segments, bench_recording *out) {
    out->segments = bench_alloc(out->header.nsegments, sizeof *out->segments);
    for (size_t i = 0; i < out->header.nsegments; i++) {
        const char *name = segments[i].name ? segments[i].name : "";
        snprintf(out->segments[i].name, sizeof out->segments[i].name, "%s", name);
        out->segments[i].length = segments[i].length;
        out->header.length += segments[i].length;
    }
}

static bool write_all(int file, const void *data, size_t bytes, size_t place) {
    const char *from = data;
    while (bytes > 0) {
        ssize_t written = pwrite(file, from, bytes, (off_t)place);
        if (written <= 0 && errno != EINTR)
            return false;
        from += written > 0 ? written : 0;
        place += written > 0 ? (size_t)written : 0;
        bytes -= written > 0 ? (size_t)written : 0;
    }
    return true;
}

void bench_recording_create(bench_group *group, const char *path, const tamis_segment *segments,
                            size_t nsegments, uint64_t records, uint64_t every,
                            bench_recording *out) {
    *out = (bench_recording){.header = {"", 0, nsegments, group->nranks, records, every}};
    memcpy(out->header.magic, magic, sizeof magic);
    copy_segments(segments, out);
    out->bytes = offset_of(&out->header, records, 0);
    if (group->rank > 0)
        bench_barrier(group); /* now rank 0 has created the file, empty */
    out->file = open(path, group->rank == 0 ? O_WRONLY | O_CREAT | O_TRUNC : O_WRONLY, 0666);
    size_t bytes = nsegments * sizeof *out->segments;
    bool ok = out->file >= 0;
    if (ok && group->rank == 0)
        ok = ftruncate(out->file, (off_t)out->bytes) == 0 &&
             write_all(out->file, &out->header, sizeof out->header, 0) &&
             write_all(out->file, out->segments, bytes, sizeof out->header);
    if (!ok)
        bench_fail(group, "%s cannot be written: %s", path, strerror(errno));
    if (group->rank == 0)
        bench_barrier(group);
}

void bench_recording_put(bench_group *group, const bench_recording *recording, uint64_t record,
                         const float *gradient) {
    const bench_recording_header *h = &recording->header;
    if (record < h->records && !write_all(recording->file, gradient, h->length * sizeof(float),
                                          offset_of(h, record, group->rank)))
        bench_fail(group, "a gradient could not be written: %s", strerror(errno));
}

/* -- reading ---------------------------------------------------------------------------------- */

static bool plausible(const bench_recording *r) {
    const bench_recording_header *h = &r->header;
    if (memcmp(h->magic, magic, sizeof magic) != 0 || h->nsegments == 0 || h->ranks == 0 ||
        h->nsegments > MAX_SEGMENTS || h->ranks > MAX_RANKS || h->length == 0 ||
        h->length > UINT32_MAX || h->records == 0 || h->records > UINT32_MAX)
        return false;
    size_t gradient = h->length * sizeof(float) * h->ranks; /* < 2^44 */
    return begin_of(h) <= r->bytes && (r->bytes - begin_of(h)) % gradient == 0 &&
           (r->bytes - begin_of(h)) / gradient == h->records;
}

static bool segments_add_up(const bench_recording *r) {
    uint64_t sum = 0;
    for (size_t i = 0; i < r->header.nsegments; i++) {
        const bench_recording_segment *s = &r->segments[i];
        if (s->length == 0 || s->length > r->header.length || s->name[sizeof s->name - 1])
            return false;
        sum += s->length;
    }
    return sum == r->header.length;
}

static bool map_file(const char *path, bench_recording *out) {
    struct stat about;
    int file = open(path, O_RDONLY);
    if (file < 0)
        return false;
    if (fstat(file, &about) == 0 && about.st_size > 0) {
        out->bytes = (size_t)about.st_size;
        out->map = mmap(NULL, out->bytes, PROT_READ, MAP_PRIVATE, file, 0);
        out->map = out->map == MAP_FAILED ? NULL : out->map;
    }
    close(file);
    return out->map != NULL;
}

bool bench_recording_open(const char *path, bench_recording *out, char *error, size_t error_size) {
    *out = (bench_recording){.file = -1};
    if (!map_file(path, out)) {
        snprintf(error, error_size, "%s cannot be read: %s", path,
                 errno ? strerror(errno) : "it is empty");
        return false;
    }
    char *memory = out->map;
    if (out->bytes >= sizeof out->header)
        memcpy(&out->header, memory, sizeof out->header);
    bool ok = plausible(out);
    if (ok) {
        out->segments = (bench_recording_segment *)(void *)(memory + sizeof out->header);
        out->gradients = (const float *)(const void *)(memory + begin_of(&out->header));
        ok = segments_add_up(out);
    }
    if (!ok) {
        snprintf(error, error_size,
                 "%s is not a recording of gradients, or is truncated; write it again with "
                 "tamis_train --record",
                 path);
        munmap(out->map, out->bytes);
    }
    return ok;
}

const float *bench_recording_get(const bench_recording *recording, uint64_t record, uint32_t rank) {
    const bench_recording_header *h = &recording->header;
    return recording->gradients + (record % h->records * h->ranks + rank) * h->length;
}

void bench_recording_close(bench_recording *recording) {
    if (recording->map) {
        munmap(recording->map, recording->bytes);
        return;
    }
    free(recording->segments);
    if (recording->file >= 0)
        close(recording->file);
}
