/* SPDX-License-Identifier: MIT */
#include "collectives/exchange/union_reduce.h"

void tam_union_reduce_close(void *self, bool in_flight) {
    tam_union_reduce *u = self;
    if (!u)
        return;
    tam_sparse_close(&u->sparse, in_flight);
    tam_value_sum_close(&u->sum, in_flight);
    tam_free(u);
}

static tam_value_sum choose_sum(const tam_bucket_view *v) {
    bool inter = v->node_shard->nlocal > 1;
    tamis_value_codec up = tam_value_codec_resolve(v->config->value_codec);
    tamis_value_codec down = tam_sum_codec_resolve(v->config->sum_codec, up);
    return (tam_value_sum){.up = tam_value_codec_of(up),
                           .down = tam_value_codec_of(down),
                           .nranks = v->nranks,
                           .first = v->node_shard->local,
                           .stride = v->node_shard->nlocal,
                           .way = v->encoded && !inter   ? TAM_SUM_STAGED
                                  : v->gathers && !inter ? TAM_SUM_BY_ALL
                                                         : TAM_SUM_BY_OWNERS};
}

tamis_status tam_union_reduce_open(tam_bucket_view *view, const tam_packets *packets, size_t most,
                                   tam_union_reduce **out) {
    tam_union_reduce *u = tam_alloc(sizeof *u);
    if (!u)
        return tam_fail(TAMIS_E_NOMEM, "no memory for an exchange");
    u->sum = choose_sum(view);
    u->sparse.view = view;
    u->sparse.packets = *packets;
    u->sparse.most = most;
    u->sparse.quantizes = tam_value_sum_quantizes(&u->sum);
    u->sparse.way = tam_sparse_way(view, !u->sparse.quantizes);
    tamis_status status = tam_sparse_open(&u->sparse);
    if (status == TAMIS_OK)
        status = tam_value_sum_open(&u->sum, most);
    if (status != TAMIS_OK) {
        tam_union_reduce_close(u, false);
        return status;
    }
    size_t gathers = u->sum.gathers;
    view->gather_max = gathers > view->gather_max ? gathers : view->gather_max;
    *out = u;
    return TAMIS_OK;
}

/* The counters are summed as if they were more values. */
static tamis_status union_reduce_sum(tam_union_reduce *u, tam_link *link, size_t count) {
    tam_sparse *s = &u->sparse;
    float *behind = s->values + count;
    size_t bytes = s->ncounters * sizeof behind[0];
    if (s->way != TAM_COUNTERS_WITH_VALUES)
        return tam_value_sum_run(&u->sum, link, s->values, count, s->errors);
    memcpy(behind, s->counters, bytes);
    TAM_TRY(tam_value_sum_run(&u->sum, link, s->values, count + s->ncounters, NULL));
    memcpy(s->counters, behind, bytes);
    tam_sparse_report_counters(s);
    return TAMIS_OK;
}

tamis_status tam_union_reduce_run(tam_union_reduce *u, tam_link *link, size_t count) {
    tam_sparse *s = &u->sparse;
    tam_bucket_view *v = s->view;
    TAM_TRY(v->device->gather(v->kernels, v->acc, s->indices, count, s->values));
    v->out.sent_sum = tam_sparse_squares(s->values, count);
    TAM_TRY(union_reduce_sum(u, link, count));
    if (s->errors)
        v->out.sent_sum -= tam_sparse_squares(s->errors, count);
    tam_sparse_report(s, count, (tam_entries){s->indices, s->errors, count});
    return TAMIS_OK;
}
