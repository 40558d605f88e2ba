/* SPDX-License-Identifier: MIT
 *
 * The flight recorder of a communicator: where its events are written, and when.
 */
#include "collectives/transport/comm.h"

#include <errno.h>
#include <tamis/stats.h>
#include <unistd.h>

void tam_comm_record(tamis_comm *comm, tam_flight_kind kind, uint64_t step, tamis_status status) {
    const tam_event e = {.kind = kind, .step = step + 1, .status = status};
    tam_flight_record(comm->recorded.flight, &e);
}

static tamis_status write_to(const tamis_comm *comm, const char *folder) {
    int error = tam_flight_write(comm->recorded.flight, folder);
    return error == 0 ? TAMIS_OK
                      : tam_fail(TAMIS_E_IO, "rank %u cannot write its flight recorder to %s: %s",
                                 comm->rank, folder, strerror(error));
}

void tam_comm_flight_lost(const tamis_comm *comm, tamis_status status) {
    const tam_event e = {.kind = TAM_FLIGHT_LOST, .status = status};
    const char *folder = tam_setting_text(TAM_SETTING_FLIGHT);
    tam_flight_record(comm->recorded.flight, &e);
    if (folder[0] == '\0')
        return;
    int error = tam_flight_write(comm->recorded.flight, folder);
    if (error != 0)
        tam_log(TAM_WARN, "rank %u cannot write its flight recorder to %s: %s", comm->rank, folder,
                strerror(error));
}

void tam_comm_flight_check(const tamis_comm *comm) {
    const char *folder = tam_setting_text(TAM_SETTING_FLIGHT);
    if (folder[0] != '\0' && access(folder, W_OK | X_OK) != 0)
        tam_log(TAM_WARN,
                "rank %u will not be able to write its flight recorder to %s (TAMIS_FLIGHT): %s",
                comm->rank, folder, strerror(errno));
}

tamis_status tamis_comm_write_flight(const tamis_comm *comm, const char *folder) {
    if (!comm)
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_write_flight: comm is NULL");
    const char *to = folder ? folder : tam_setting_text(TAM_SETTING_FLIGHT);
    if (to[0] == '\0')
        return tam_fail(TAMIS_E_ARGUMENT, "tamis_comm_write_flight: %s",
                        folder ? "folder is empty" : "folder is NULL and TAMIS_FLIGHT is not set");
    int kept = errno; /* of what a signal interrupted */
    tamis_status status = write_to(comm, to);
    errno = kept;
    return status;
}
