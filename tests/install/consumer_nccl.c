/* SPDX-License-Identifier: MIT
 *
 * One rank over NCCL, from a local bootstrap. Where no GPU can be used: a named error, and a
 * bootstrap that still works.
 */
#include <stdio.h>
#include <tamis/nccl.h>

int main(void) {
    tamis_comm *bootstrap = NULL, *comm = NULL;
    if (tamis_comm_create_local(1, NULL, &bootstrap) != TAMIS_OK)
        return 1;
    tamis_status status = tamis_comm_create_nccl(bootstrap, NULL, &comm);
    printf("NCCL: %s %s\n", tamis_status_name(status),
           status == TAMIS_OK ? tamis_comm_transport(comm) : tamis_last_error());
    int bad = status == TAMIS_OK ? tamis_comm_nranks(comm) != 1
                                 : comm != NULL || tamis_last_error()[0] == '\0' ||
                                       tamis_comm_status(bootstrap) != TAMIS_OK;
    tamis_comm_destroy(comm);
    tamis_comm_destroy(bootstrap);
    return bad;
}
