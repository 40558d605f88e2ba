#include <stdio.h>
#include <tamis/tamis.h>
int main(void) {
    tamis_comm *comm;
    if (tamis_comm_create_local(1, NULL, &comm) != TAMIS_OK)
        return 1;
    printf("%s, %d ranks\n", tamis_comm_transport(comm), tamis_comm_nranks(comm));
    tamis_comm_destroy(comm);
    return tamis_version() != TAMIS_VERSION;
}
