/* SPDX-License-Identifier: MIT
 *
 * Do the program, this library and the launcher mean the same MPI? A machine often has several.
 * Otherwise a handle of one MPI is an address to another, and the first call ends in SIGSEGV; and
 * every process of a launcher that MPI does not know is rank 0 of 1.
 */
#include "collectives/transport/mpi_comm.h"
#include <stdlib.h>
#include <string.h>

/* -- which MPI -------------------------------------------------------------------------------- */

/* How those that share MPICH's handles name themselves in MPI_Get_library_version. */
static const struct {
    const char *text, *name;
} libraries[] = {
    {"Open MPI", "Open MPI"}, {"MPICH", "MPICH"},       {"Intel(R) MPI", "MPICH"},
    {"MVAPICH", "MPICH"},     {"ParaStation", "MPICH"},
};

/* MPI_MAX_LIBRARY_VERSION_STRING is that of the mpi.h here, 256 in Open MPI's, where the MPI that
 * runs may be MPICH, which writes up to 8192. */
enum { VERSION_BYTES = 16384 };

static const char *running(void) {
    char version[VERSION_BYTES] = "";
    int length;
    MPI_Get_library_version(version, &length);
    for (size_t i = 0; i < sizeof libraries / sizeof libraries[0]; i++)
        if (strstr(version, libraries[i].text))
            return libraries[i].name;
    return ""; /* not compared */
}

static bool mpi_world_differ(const char *a, const char *b) {
    return *a && *b && strcmp(a, b) != 0;
}

tamis_status tam_mpi_meant(const char *program) {
    const char *library = TAMIS_MPI_BUILT_WITH, *present = running();
    bool neutral = library[0] == '\0' || strstr(library, "ABI"); /* any MPI may stand behind it */
    if (mpi_world_differ(program, library))
        return tam_fail(TAMIS_E_UNSUPPORTED,
                        "tamis_comm_create_mpi: the program was compiled with the mpi.h of %s, "
                        "libtamis with that of %s; build both with the same mpicc",
                        program, library);
    if (!neutral && mpi_world_differ(library, present))
        return tam_fail(
            TAMIS_E_UNSUPPORTED,
            "tamis_comm_create_mpi: libtamis was built with %s, but the process runs "
            "with %s (ldd shows which libmpi is loaded); build both with the same mpicc",
            library, present);
    return TAMIS_OK;
}

tamis_status tam_mpi_ready(int *level) {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    if (initialized)
        MPI_Finalized(&finalized);
    if (!initialized || finalized)
        return tam_fail(TAMIS_E_STATE, "tamis_comm_create_mpi: MPI is %s",
                        finalized ? "already finalised" : "not initialised; call MPI_Init_thread");
    MPI_Query_thread(level);
    return TAMIS_OK;
}

/* -- whose processes -------------------------------------------------------------------------- */

/* What launchers tell each process. A launcher may run inside another: the first that is set
 * counts. Not SLURM_NTASKS: a shell in an allocation has it, too. */
static const char *const announced[] = {
    "OMPI_COMM_WORLD_SIZE", /* mpirun of Open MPI */
    "PMI_SIZE",             /* of MPICH and Intel MPI; srun --mpi=pmi2 */
    "SLURM_STEP_NUM_TASKS", /* srun */
    "WORLD_SIZE",           /* torchrun */
};

void tam_mpi_warn_of_one(void) {
    int nranks = 0;
    MPI_Comm spawner = MPI_COMM_NULL;
    const char *text = NULL;
    size_t n = sizeof announced / sizeof announced[0], i = 0;
    MPI_Comm_size(MPI_COMM_WORLD, &nranks);
    MPI_Comm_get_parent(&spawner);
    while (i < n && !(text = getenv(announced[i])))
        i++;
    if (nranks != 1 || spawner != MPI_COMM_NULL || !text || strtol(text, NULL, 10) < 2)
        return;
    tam_log(TAM_WARN,
            "tamis_comm_create_mpi: MPI has this process alone, but its launcher started %s "
            "(%s): each would train by itself; start them with the mpirun of the same MPI, or srun "
            "--mpi=pmix",
            text, announced[i]);
}
