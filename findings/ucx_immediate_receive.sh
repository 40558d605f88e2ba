#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# UCX, ucp_tag_recv_nbx with UCP_OP_ATTR_FIELD_RECV_INFO: how long is a message that had already come?
#
# Versions     libucx-cu12 of PyPI: 1.15.0.post2 and 1.16.0.post2 (Debian 12 has 1.13.1, which does as
#              1.15)
# One guesses  that param.recv_info.tag_info holds sender and length whenever the receive is complete:
#              ucp.h names it as relevant for this function, and no other way is left to ask, as there
#              is no request
# Seen         up to 1.15 a receive that completes at once leaves tag_info as it was, here zeros, and
#              calls no callback; from 1.16 on it is filled. A receive that completes later tells its
#              callback in all of them
# So           with versions before 1.16 set UCP_OP_ATTR_FLAG_NO_IMM_CMPL: then the callback always
#              comes, possibly before ucp_tag_recv_nbx returns
#
# Needs Python 3 with pip, gcc, unzip. Ends with 0 if that is still so.
set -euo pipefail

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/receive.c" <<'END_OF_PROGRAM'
#include <stdio.h>
#include <ucp/api/ucp.h>

static void received(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *arg) {
    (void)request, (void)status;
    *(size_t *)arg = info->length;
}

int main(void) {
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG};
    ucp_worker_params_t threads = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                   .thread_mode = UCS_THREAD_MODE_SINGLE};
    char sent[56] = "a message", got[200];
    ucp_config_t *config;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    ucp_ep_h self;
    size_t length, by_callback = 0;
    if (ucp_config_read(NULL, NULL, &config) || ucp_init(&params, config, &context) ||
        ucp_worker_create(context, &threads, &worker) ||
        ucp_worker_get_address(worker, &address, &length))
        return 1;
    ucp_ep_params_t to = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS, .address = address};
    if (ucp_ep_create(worker, &to, &self))
        return 1;
    ucp_tag_recv_info_t info = {0, 0};
    ucp_request_param_t none = {0};
    ucp_request_param_t how = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK |
                                               UCP_OP_ATTR_FIELD_USER_DATA |
                                               UCP_OP_ATTR_FIELD_RECV_INFO,
                               .cb.recv = received,
                               .user_data = &by_callback,
                               .recv_info.tag_info = &info};
    void *send = ucp_tag_send_nbx(self, sent, sizeof sent, 7, &none);
    for (int i = 0; i < 1000; i++)
        ucp_worker_progress(worker);
    void *receive = ucp_tag_recv_nbx(worker, got, sizeof got, 7, (ucp_tag_t)-1, &how);
    printf("request %s, tag_info.length %zu, callback %zu\n", receive ? "yes" : "none", info.length,
           by_callback);
    return send != NULL;
}
END_OF_PROGRAM

fails=0
try() { # version, what it prints
    mkdir "$dir/$1"
    python3 -m pip download -q --no-deps -d "$dir/$1" "libucx-cu12==$1" >/dev/null
    unzip -q "$dir/$1"/*.whl -d "$dir/$1"
    gcc -I"$dir/$1/libucx/include" "$dir/receive.c" -o "$dir/$1/receive" -L"$dir/$1/libucx/lib" -lucp -lucs
    seen=$(UCX_TLS=self LD_LIBRARY_PATH="$dir/$1/libucx/lib" "$dir/$1/receive" 2>/dev/null)
    echo "$1: $seen"
    [ "$seen" = "$2" ] || fails=1
}
try 1.15.0.post2 "request none, tag_info.length 0, callback 0"
try 1.16.0.post2 "request none, tag_info.length 56, callback 0"
exit $fails
