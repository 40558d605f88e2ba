/* SPDX-License-Identifier: MIT
 *
 * Options that do not go together, as a table: checks, tamis_refusal_list and docs/options.md are
 * made from it. A row applies to one call. For the policies within a scheme: lib/policy/scheme.c.
 */
#include "collectives/reducer/reducer.h"

#include <tamis/lists.h>

typedef bool (*holds)(const tamis_reducer *r);

static bool dense(const tamis_reducer *r) {
    return tam_scheme_dense(r->scheme);
}

static bool refuse_whole(const tamis_reducer *r) {
    return tam_scheme_whole(r->scheme);
}

static bool by_nodes(const tamis_reducer *r) {
    return r->config.ranks_per_node > 1;
}

static bool refuse_quantizes(const tamis_reducer *r) {
    return r->config.value_codec > TAMIS_VALUE_FLOAT32 || r->config.sum_codec > TAMIS_VALUE_FLOAT32;
}

static bool dense_and_sparse(const tamis_reducer *r) {
    return dense(r) && r->config.output == TAMIS_OUTPUT_SPARSE;
}

static bool dense_and_decay(const tamis_reducer *r) {
    return dense(r) && r->config.residual_decay != 1.0;
}

static bool dense_and_rounding(const tamis_reducer *r) {
    return dense(r) && refuse_quantizes(r);
}

static bool sums_otherwise(const tamis_reducer *r) {
    return r->config.sum_order != TAMIS_SUM_ORDER_TREE;
}

static bool sparse_and_order(const tamis_reducer *r) {
    return sums_otherwise(r) && !dense(r);
}

/* Who drives is settled later, by the same conditions (devices.c). */
static bool host_and_order(const tamis_reducer *r) {
    return sums_otherwise(r) && (r->config.device == TAMIS_DEVICE_CPU ||
                                 !r->comm->transport->stream || r->layout->nrow_segments > 0);
}

static bool sums_of_pairs(const tamis_reducer *r) {
    return r->scheme.exchange == TAM_EXCHANGE_PAIRS && r->config.sum_codec != TAMIS_VALUE_AUTO;
}

static bool balanced_pairs_and_rounding(const tamis_reducer *r) {
    return tam_scheme_balanced_pairs(r->scheme) && refuse_quantizes(r);
}

static bool balanced_pairs_and_codec(const tamis_reducer *r) {
    tamis_index_codec index_codec = r->config.index_codec;
    return tam_scheme_balanced_pairs(r->scheme) && index_codec != TAMIS_INDEX_AUTO &&
           index_codec != TAMIS_INDEX_U32;
}

static bool nodes_and_scheme(const tamis_reducer *r) {
    return by_nodes(r) &&
           (r->scheme.exchange != TAM_EXCHANGE_UNION || !tam_scheme_exact_count(r->scheme) ||
            r->scheme.ownership == TAM_OWN_ALL);
}

static bool nodes_and_rows(const tamis_reducer *r) {
    return by_nodes(r) && r->layout->nrow_segments > 0;
}

static bool dense_and_capacity(const tamis_reducer *r) {
    return dense(r) && r->config.rows_capacity > 0;
}

static bool update_and_dense(const tamis_reducer *r) {
    return r->config.update && dense(r);
}

static bool update_and_rows(const tamis_reducer *r) {
    return r->config.update && r->layout->nrow_segments > 0;
}

static bool update_and_nodes(const tamis_reducer *r) {
    return r->config.update && by_nodes(r);
}

static bool has_update(const tamis_reducer *r) {
    return r->config.update;
}

static bool slows_and_scheme(const tamis_reducer *r) {
    return r->config.slowdown > 0.0 && !tam_scheme_plain(r->scheme);
}

static bool slows_and_device(const tamis_reducer *r) {
    return r->config.slowdown > 0.0 && r->config.device != TAMIS_DEVICE_CPU;
}

static bool slows_and_nodes(const tamis_reducer *r) {
    return r->config.slowdown > 0.0 && r->config.ranks_per_node > 1;
}

static bool chooses(const tamis_reducer *r) {
    return tam_scheme_auto(r->scheme);
}

static bool sparse_output(const tamis_reducer *r) {
    return r->config.output == TAMIS_OUTPUT_SPARSE;
}

static bool sums(const tamis_reducer *r) {
    return r->config.op == TAMIS_OP_SUM;
}

static bool halves(const tamis_reducer *r) {
    return r->config.grad_dtype != TAMIS_DTYPE_FLOAT32;
}

static bool refuse_on_device(const tamis_reducer *r) {
    return r->config.device != TAMIS_DEVICE_CPU;
}

static bool has_rows(const tamis_reducer *r) {
    return r->layout->nrow_segments > 0;
}

static bool has_moments(const tamis_reducer *r) {
    return !r->config.update || r->first || r->second;
}

static bool in_graph(const tamis_reducer *r) {
    return r->in_graph;
}

static const char create[] = "tamis_reducer_create";
static const char start[] = "tamis_reducer_start";
static const char accumulate[] = "tamis_reducer_accumulate";
static const char local[] = "tamis_local_create";
static const char migrate[] = "tamis_reducer_migrate";
static const char set_density[] = "tamis_reducer_set_density";

static const struct row {
    tamis_refusal text;
    holds holds;
} rows[] = {
    {{0, create, "output sparse", "scheme dense", "every element travels; use output dense"},
     dense_and_sparse},
    {{0, create, "sum_codec", "exchange pairs", "it sends values, not sums; use auto"},
     sums_of_pairs},
    {{0, create, "a value_codec that quantizes", "scheme dense",
      "it has no residual to keep rounding errors; use scheme quantized"},
     dense_and_rounding},
    {{0, create, "sum_order transport", "a scheme other than dense",
      "selected entries are added by the tree over ranks; use sum_order tree"},
     sparse_and_order},
    {{0, create, "sum_order transport", "steps that the host drives",
      "only a CUDA device over nccl, without segments with rows, calls ncclAllReduce; use "
      "sum_order "
      "tree"},
     host_and_order},
    {{0, create, "residual_decay", "scheme dense", "it has no residual; use 1"}, dense_and_decay},
    {{0, create, "a value_codec that quantizes", "exchange balanced-pairs",
      "pairs are a 32-bit index and a float32; use float32"},
     balanced_pairs_and_rounding},
    {{0, create, "an index_codec", "exchange balanced-pairs",
      "pairs are a 32-bit index and a float32; use auto or u32"},
     balanced_pairs_and_codec},
    {{0, create, "rows_capacity", "scheme dense", "it has no residual to keep other rows; use 0"},
     dense_and_capacity},
    {{0, create, "ranks_per_node",
      "shared ownership, learned counts or an exchange other than union",
      "nodes need exact counts of exclusive owners; use tamis"},
     nodes_and_scheme},
    {{0, create, "ranks_per_node", "segments with rows",
      "use a separate reducer for these segments"},
     nodes_and_rows},
    {{0, create, "update", "scheme dense",
      "it has no residual to accumulate updates in; pass its result to the optimizer"},
     update_and_dense},
    {{0, create, "update", "segments with rows",
      "these are summed as gradients; use a separate reducer for them"},
     update_and_rows},
    {{0, create, "update", "ranks_per_node",
      "nodes sum gradients, not the updates of ranks; use ranks_per_node 0"},
     update_and_nodes},
    {{0, create, "slowdown", "a scheme without exclusive owners, an exact count or sums",
      "headers carry no times there; set the density"},
     slows_and_scheme},
    {{0, create, "slowdown", "device cuda",
      "the host does not see how long its steps wait; set the density"},
     slows_and_device},
    {{0, create, "slowdown", "ranks_per_node", "nodes carry no times; set the density"},
     slows_and_nodes},
    {{0, start, "step.before", "a reducer without update, or with moments",
      "it takes steps that are made; use rule step, or momentum with beta1 0"},
     has_moments},
    {{0, start, "step.before", "output sparse",
      "the result is applied to parameters; use output dense"},
     sparse_output},
    {{0, start, "step.before", "16-bit gradients", "parameters are float32; use float32"}, halves},
    {{0, start, "step.before", "device cuda",
      "its kernels take a step that is computed; use the gradient"},
     refuse_on_device},
    {{0, accumulate, "a micro-batch", "scheme dense",
      "it has no residual; add up micro-batches before start"},
     dense},
    {{0, accumulate, "a micro-batch", "ranks_per_node",
      "a residual holds only a shard of the node's sum; add up micro-batches before start"},
     by_nodes},
    {{0, accumulate, "a micro-batch", "update",
      "a step makes one pass over the whole gradient; add up micro-batches before start"},
     has_update},
    {{0, local, "local steps", "update", "every rank has an optimizer of its own; use none here"},
     has_update},
    {{0, local, "local steps", "exchange auto",
      "a dense bucket among sparse ones loses its part of a failed round; use scheme dense or "
      "union"},
     chooses},
    {{0, local, "local steps", "output sparse", "the outer step is dense; use output dense"},
     sparse_output},
    {{0, local, "local steps", "op sum", "the outer gradient is a mean; use op mean"}, sums},
    {{0, local, "local steps", "16-bit gradients", "the outer gradient is float32; use float32"},
     halves},
    {{0, local, "local steps", "device cuda", "the base is in host memory; use device cpu"},
     refuse_on_device},
    {{0, local, "local steps", "segments with rows", "an outer gradient has no rows; use none"},
     has_rows},
    {{0, local, "local steps", "ranks_per_node",
      "use a communicator of one rank of each node; the ranks of a node train as one"},
     by_nodes},
    {{0, migrate, "fewer ranks", "ranks_per_node",
      "the shards of a node whose rank is gone are lost for all; start again from saved states"},
     by_nodes},
    {{0, set_density, "another density", "scheme dense or quantized", "it sends everything"},
     refuse_whole},
    {{0, set_density, "another density", "a step in a CUDA graph of the caller",
      "the graph keeps the sizes of its messages; use another reducer for it"},
     in_graph},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

int tamis_refusal_list(size_t index, tamis_refusal *out) {
    if (!out)
        return 0;
    if (index >= ROWS)
        return tam_scheme_refusal(index - ROWS, out);
    tamis_refusal own = rows[index].text;
    own.size = sizeof own;
    return tam_struct_list("tamis_refusal", &own, sizeof own, out);
}

tamis_status tam_refuse(const tamis_reducer *r, const char *call) {
    for (size_t i = 0; i < ROWS; i++) {
        const tamis_refusal *t = &rows[i].text;
        if (strcmp(t->call, call) == 0 && rows[i].holds(r))
            return tam_fail(TAMIS_E_UNSUPPORTED, "%s: %s cannot be combined with %s: %s", t->call,
                            t->asked, t->with, t->why);
    }
    return TAMIS_OK;
}
