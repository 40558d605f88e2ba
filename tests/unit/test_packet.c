/* SPDX-License-Identifier: MIT
 *
 * Packets that a rank sealed well but filled with what it may not send: refused, before anybody
 * works with them. The functions that seal are not public, so this is packet.c once more.
 */
#include "collectives/exchange/packet.c"

#include <setjmp.h>
#include <stdarg.h>
/* cmocka.h wants the headers above it */
#include <cmocka.h>

enum { SPAN = 600, LIMIT = 20, HALF = SPAN / 2 };

/* Two ranks, of which this is rank 0; rank 1 sends what lies here. */
typedef struct fake_link {
    unsigned char forged[4096];
    tam_packets *packets;
} fake_link;

static tamis_status deliver(void *self, const void *send, size_t bytes, void *recv,
                            tam_call *call) {
    const fake_link *w = self;
    size_t from =
        send == w->packets->send ? 0 : w->packets->header_bytes; /* growing: the payload */
    (void)call;
    memcpy(recv, send, bytes);
    memcpy((char *)recv + bytes, w->forged + from, bytes);
    return TAMIS_OK;
}

/* Rank 0 may select from blocks 0, 2, ...; rank 1 from 1, 3, ... of 50 elements. */
static const tam_strided ranges[] = {{0, 50, 100, HALF}, {50, 50, 100, HALF}};

static tam_packets open_packets(tamis_index_codec index_codec, bool growing) {
    tam_packets s = {.nranks = 2,
                     .capacity = LIMIT,
                     .growing = growing,
                     .index_codec = index_codec,
                     .span = HALF,
                     .ranges = ranges,
                     .config = 7};
    assert_int_equal(tam_packets_open(&s), TAMIS_OK);
    return s;
}

/* Make a packet of a rank with these bytes for indices, which comes as rank 1's. */
static void forge_as(tam_packets *s, fake_link *w, uint32_t rank, uint32_t count,
                     const void *indices, size_t bytes) {
    const tam_header_due due = due_of(s, rank);
    tam_header *h = tam_packet_begin(s);
    memset(w, 0, sizeof *w);
    w->packets = s;
    tam_header_address(h, &due);
    h->count = count;
    h->index_bytes = (uint32_t)bytes;
    memcpy(w->forged + s->header_bytes, indices, bytes);
    h->check = packet_check_of(s, rank, h, w->forged + s->header_bytes,
                        w->forged + s->header_bytes + s->index_step);
    memcpy(w->forged, s->send, s->header_bytes);
    h->count = 0; /* of rank 0 */
}

static void forge(tam_packets *s, fake_link *w, uint32_t count, const void *indices, size_t bytes) {
    forge_as(s, w, 1, count, indices, bytes);
}

static tamis_status exchange(tam_packets *s, fake_link *w) {
    static const tam_transport transport = {.allgather = deliver};
    tam_link link = {.transport = &transport, .self = w, .nranks = 2};
    return tam_packets_exchange(s, &link);
}

static void check(tamis_index_codec index_codec, uint32_t count, const void *indices, size_t bytes,
                  tamis_status expected) {
    for (int growing = 0; growing < 2; growing++) {
        static fake_link w;
        tam_packets s = open_packets(index_codec, growing);
        forge(&s, &w, count, indices, bytes);
        assert_int_equal(exchange(&s, &w), expected);
        if (expected != TAMIS_OK)
            assert_non_null(strstr(tamis_last_error(), "the packet of rank 1 was refused"));
        tam_packets_close(&s);
    }
}

static void test_what_a_codec_reads_is_where_its_sender_may_select(void **state) {
    static fake_link w;
    const unsigned char gaps[] = {3, 255, 39}; /* positions 3 and 298 */
    (void)state;
    tam_packets s = open_packets(TAMIS_INDEX_GAP8, false);
    forge(&s, &w, 2, gaps, sizeof gaps);
    assert_int_equal(exchange(&s, &w), TAMIS_OK);
    assert_int_equal(tam_packet_indices_of(&s, 1)[0], 53);
    assert_int_equal(tam_packet_indices_of(&s, 1)[1], 5 * 100 + 50 + 48);
    tam_packets_close(&s);
}

static void test_sealed_indices_that_no_list_has_are_refused(void **state) {
    const unsigned char gaps[] = {3, 255, 39}, far[] = {3, 255, 41}, open[] = {3, 4, 255};
    const uint16_t equal[] = {9, 9}, good[] = {9, 10};
    unsigned char blocks[5] = {2}, map[38] = {0};
    (void)state;
    check(TAMIS_INDEX_GAP8, 2, gaps, sizeof gaps, TAMIS_OK);
    check(TAMIS_INDEX_GAP8, 2, far, sizeof far, TAMIS_E_PROTOCOL);
    check(TAMIS_INDEX_GAP8, 2, open, sizeof open, TAMIS_E_PROTOCOL);
    check(TAMIS_INDEX_GAP8, 3, gaps, sizeof gaps, TAMIS_E_PROTOCOL);
    check(TAMIS_INDEX_GAP8, 1, gaps, sizeof gaps, TAMIS_E_PROTOCOL);
    memcpy(blocks + 1, good, sizeof good);
    check(TAMIS_INDEX_BLOCK16, 2, blocks, sizeof blocks, TAMIS_OK);
    memcpy(blocks + 1, equal, sizeof equal);
    check(TAMIS_INDEX_BLOCK16, 2, blocks, sizeof blocks, TAMIS_E_PROTOCOL);
    map[5] = 1;
    check(TAMIS_INDEX_BITMAP, 1, map, sizeof map, TAMIS_OK);
    check(TAMIS_INDEX_BITMAP, 2, map, sizeof map, TAMIS_E_PROTOCOL);
    map[37] = 0x10; /* position 300 of 300 */
    check(TAMIS_INDEX_BITMAP, 2, map, sizeof map, TAMIS_E_PROTOCOL);
}

/* A message that went astray: whole and sealed, but of another rank. */
static void test_the_packet_of_another_rank_is_refused(void **state) {
    static const uint32_t list[] = {53, 598};
    static fake_link w;
    (void)state;
    for (uint32_t rank = 0; rank < 2; rank++) {
        tam_packets s = open_packets(TAMIS_INDEX_U32, false);
        forge_as(&s, &w, rank, 2, list, sizeof list);
        assert_int_equal(exchange(&s, &w), rank == 1 ? TAMIS_OK : TAMIS_E_PROTOCOL);
        tam_packets_close(&s);
    }
}

static void test_a_damaged_value_is_refused(void **state) {
    static const uint32_t list[] = {53, 598};
    static fake_link w;
    (void)state;
    for (int damaged = 0; damaged < 2; damaged++) {
        tam_packets s = {.nranks = 2,
                         .capacity = LIMIT,
                         .with_values = true,
                         .value_codec = tam_value_codec_of(TAMIS_VALUE_FLOAT32),
                         .index_codec = TAMIS_INDEX_U32,
                         .span = HALF,
                         .ranges = ranges,
                         .config = 7};
        assert_int_equal(tam_packets_open(&s), TAMIS_OK);
        forge(&s, &w, 2, list, sizeof list);
        w.forged[s.header_bytes + s.index_step + 6] ^= (unsigned char)(damaged << 4);
        assert_int_equal(exchange(&s, &w), damaged ? TAMIS_E_PROTOCOL : TAMIS_OK);
        if (damaged)
            assert_non_null(strstr(tamis_last_error(), "its checksum is wrong"));
        tam_packets_close(&s);
    }
}

/* A shorter part than the longest: the last block of a vector. */
static void test_positions_beyond_the_part_of_their_sender_are_refused(void **state) {
    static const tam_strided uneven[] = {{0, 50, 100, HALF}, {50, 50, 100, HALF - 20}};
    static fake_link w;
    (void)state;
    for (unsigned char last = 20; last < 30; last++) {
        const unsigned char gaps[] = {255, last}; /* position 255 + last */
        tam_packets s = open_packets(TAMIS_INDEX_GAP8, false);
        s.ranges = uneven;
        forge(&s, &w, 1, gaps, sizeof gaps);
        assert_int_equal(exchange(&s, &w), last < 25 ? TAMIS_OK : TAMIS_E_PROTOCOL);
        tam_packets_close(&s);
    }
}

static void test_counts_and_lengths_beyond_the_packet_are_refused(void **state) {
    static const uint32_t list[LIMIT + 1] = {1};
    const unsigned char gaps[LIMIT + 3] = {0};
    (void)state;
    check(TAMIS_INDEX_U32, 1, list, 4, TAMIS_OK);
    check(TAMIS_INDEX_U32, 1, list, 3, TAMIS_E_PROTOCOL);
    check(TAMIS_INDEX_U32, 1, list, 8, TAMIS_E_PROTOCOL);
    check(TAMIS_INDEX_U32, LIMIT + 1, list, sizeof list, TAMIS_E_PROTOCOL);
    check(TAMIS_INDEX_GAP8, LIMIT, gaps, LIMIT, TAMIS_OK);
    check(TAMIS_INDEX_GAP8, LIMIT + 1, gaps, LIMIT + 1, TAMIS_E_PROTOCOL);
    check(TAMIS_INDEX_GAP8, LIMIT, gaps, LIMIT + 2,
          TAMIS_E_PROTOCOL); /* most that 20 can take: 21 */
}

/* -- memory ----------------------------------------------------------------------------------- */

#define GIB (UINT64_C(1) << 30)

static void check_memory(tam_packets s, tamis_status expected) {
    uint64_t made = tam_alloc_made();
    assert_int_equal(tam_packets_open(&s), expected);
    if (expected == TAMIS_OK) {
        tam_packets_close(&s);
        return;
    }
    assert_int_equal(tam_alloc_made(), made); /* before anything was taken */
    assert_non_null(strstr(tamis_last_error(), "the limit is 4 GiB (TAMIS_MESSAGE_GIB)"));
}

/* 28 bytes and 20 indices of this rank and of both as they come: 108 each. */
static void test_packets_may_take_as_much_as_the_limit_and_not_a_byte_more(void **state) {
    tam_packets s = {.nranks = 2, .capacity = LIMIT, .index_codec = TAMIS_INDEX_U32, .span = HALF};
    (void)state;
    s.beside = 4 * GIB - 3 * 108;
    check_memory(s, TAMIS_OK);
    s.beside++;
    check_memory(s, TAMIS_E_UNSUPPORTED);
    s.beside = UINT64_MAX;
    check_memory(s, TAMIS_E_UNSUPPORTED);
}

static void test_what_thousands_of_ranks_may_send_is_refused_before_it_is_taken(void **state) {
    const tam_packets u32 = {
        .nranks = 4096, .capacity = 300000, .index_codec = TAMIS_INDEX_U32, .span = UINT32_MAX};
    tam_packets s = u32;
    (void)state;
    check_memory(s, TAMIS_E_UNSUPPORTED); /* 4.6 GiB */
    assert_non_null(strstr(tamis_last_error(), "4.6 GiB on each of 4096 ranks, with room for "
                                               "300000 entries of each"));
    s.growing = true;
    check_memory(s, TAMIS_E_UNSUPPORTED);
    s.headers_only = true; /* lists are sent otherwise */
    check_memory(s, TAMIS_OK);
    s = u32, s.led = true; /* one rank sends, in pieces */
    check_memory(s, TAMIS_OK);
    s.index_codec = TAMIS_INDEX_GAP8;
    check_memory(s, TAMIS_OK);
    s.led = false; /* shorter on the wire, but decoded lists */
    check_memory(s, TAMIS_E_UNSUPPORTED);
    s = u32, s.nranks = UINT32_MAX, s.capacity = UINT32_MAX / 4, s.beside = UINT64_MAX;
    check_memory(s, TAMIS_E_UNSUPPORTED);
    s = u32, s.nranks = 1, s.capacity = UINT32_MAX / 4 + 1; /* a header says how many bytes */
    assert_int_equal(tam_packets_open(&s), TAMIS_E_UNSUPPORTED);
    assert_non_null(strstr(tamis_last_error(), "would exceed 4 GiB"));
}

/* A header tells steps apart modulo 4096. */
static void test_a_rank_at_another_step_is_named_with_a_step_that_there_is(void **state) {
    static const struct {
        uint64_t own, other;
        const char *words;
    } cases[] = {
        {6, 7, "rank 1 is at step 7,"},          {7, 6, "rank 1 is at step 6,"},
        {4096, 4095, "rank 1 is at step 4095,"}, {0, 3000, "rank 1 is at step 3000,"},
        {0, 4095, "rank 1 is at step 4095,"},    {9000, 10000, "rank 1 is at step 10000,"},
        {0, 10000, "a multiple of 4096 away"},   {5, 5 + 4096, "comes from another step"},
    };
    static fake_link w;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tam_packets s = open_packets(TAMIS_INDEX_GAP8, false);
        s.step = cases[i].other;
        forge(&s, &w, 0, "", 0);
        s.step = cases[i].own;
        assert_int_equal(exchange(&s, &w), TAMIS_E_PROTOCOL);
        if (!strstr(tamis_last_error(), cases[i].words))
            fail_msg("%s", tamis_last_error());
        tam_packets_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_rank_at_another_step_is_named_with_a_step_that_there_is),
        cmocka_unit_test(test_what_a_codec_reads_is_where_its_sender_may_select),
        cmocka_unit_test(test_sealed_indices_that_no_list_has_are_refused),
        cmocka_unit_test(test_the_packet_of_another_rank_is_refused),
        cmocka_unit_test(test_a_damaged_value_is_refused),
        cmocka_unit_test(test_positions_beyond_the_part_of_their_sender_are_refused),
        cmocka_unit_test(test_counts_and_lengths_beyond_the_packet_are_refused),
        cmocka_unit_test(test_packets_may_take_as_much_as_the_limit_and_not_a_byte_more),
        cmocka_unit_test(test_what_thousands_of_ranks_may_send_is_refused_before_it_is_taken),
    };
    return cmocka_run_group_tests_name("packet", tests, NULL, NULL);
}
