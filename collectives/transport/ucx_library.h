/* SPDX-License-Identifier: MIT
 *
 * The functions of UCX, loaded when the first communicator over UCX is made: programs that use none
 * neither need UCX nor run its constructors.
 */
#ifndef TAM_TRANSPORT_UCX_LIBRARY_H
#define TAM_TRANSPORT_UCX_LIBRARY_H

#include "lib/base/base.h"

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#define TAM_UCX_FUNCTIONS(X)                                                                       \
    X(ucp_get_version_string)                                                                      \
    X(ucp_config_read)                                                                             \
    X(ucp_config_modify)                                                                           \
    X(ucp_config_release)                                                                          \
    X(ucp_init_version)                                                                            \
    X(ucp_cleanup)                                                                                 \
    X(ucp_worker_create)                                                                           \
    X(ucp_worker_destroy)                                                                          \
    X(ucp_worker_get_address)                                                                      \
    X(ucp_worker_release_address)                                                                  \
    X(ucp_worker_progress)                                                                         \
    X(ucp_worker_flush_nbx)                                                                        \
    X(ucp_ep_create)                                                                               \
    X(ucp_ep_close_nbx)                                                                            \
    X(ucp_tag_send_nbx)                                                                            \
    X(ucp_tag_recv_nbx)                                                                            \
    X(ucp_tag_probe_nb)                                                                            \
    X(ucp_tag_msg_recv_nbx)                                                                        \
    X(ucp_request_cancel)                                                                          \
    X(ucp_request_check_status)                                                                    \
    X(ucp_request_free)                                                                            \
    X(ucs_status_string)                                                                           \
    X(ucs_log_push_handler)                                                                        \
    X(ucs_debug_disable_signals)

/* This one's header is not always installed. */
void ucs_debug_disable_signals(void);

typedef struct tam_ucx_library {
#define TAM_UCX_MEMBER(name) __typeof__(&name) name;
    TAM_UCX_FUNCTIONS(TAM_UCX_MEMBER)
#undef TAM_UCX_MEMBER
} tam_ucx_library;

/** Load it, once for the process; it stays. UNSUPPORTED: there is none. Any thread. */
tamis_status tam_ucx_load(const tam_ucx_library **out);

/** Between these, what UCX says on this thread goes to the library's log, not to standard output.
 * They nest. */
void tam_ucx_enter(void);
void tam_ucx_exit(void);

#endif
