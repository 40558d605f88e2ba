/* SPDX-License-Identifier: MIT
 *
 * The header and its initialisers, from C++17.
 */
#include <cstdio>
#include <memory>
#include <tamis/stats.h>
#include <tamis/tamis.h>

int main() {
    tamis_comm *raw = nullptr;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    if (tamis_comm_create_local(1, &config, &raw) != TAMIS_OK)
        return 1;
    std::unique_ptr<tamis_comm, decltype(&tamis_comm_destroy)> comm(raw, tamis_comm_destroy);
    tamis_reducer_config reducer = TAMIS_REDUCER_CONFIG_INIT;
    tamis_step step = TAMIS_STEP_INIT;
    tamis_stats stats = TAMIS_STATS_INIT;
    std::printf("tamis %d, transport %s, density %g\n", tamis_version(),
                tamis_comm_transport(comm.get()), reducer.density);
    return tamis_comm_nranks(comm.get()) != 1 || step.size != sizeof step ||
           stats.size != sizeof stats;
}
