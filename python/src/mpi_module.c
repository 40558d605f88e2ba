/* SPDX-License-Identifier: MIT
 *
 * tamis/_mpi.so: the library's transport over MPI, for _core. The code that initialises MPI
 * finalises it: the program (mpi4py, say), or this module.
 *
 * Python and _core load this RTLD_LOCAL. Open MPI's plug-ins do not list its libraries as needed
 * and find them only in the global scope. From 3.0 on MPI_Init itself puts libmpi there (tried with
 * Debian's 4.1.4), so this module need not.
 *
 * One failure cannot be reported: MPI_Init_thread ends the process if it fails, for example under
 * the launcher of another MPI, and no error handler can be set before it.
 */
#include "lib/base/base.h"
#include "module.h"

#include <pthread.h>
#include <tamis/mpi.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `own`, init and finalize */
static bool own;
static pid_t process; /* that initialised MPI: a child that was forked may not finalise it */

static int mpi_module_state(void) {
    int initialized = 0, finalized = 0;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    if (finalized)
        return TAM_PYTHON_MPI_FINALIZED;
    if (!initialized)
        return TAM_PYTHON_MPI_ABSENT;
    return own ? TAM_PYTHON_MPI_OWN : TAM_PYTHON_MPI_FOREIGN;
}

static tamis_status mpi_module_begin(void) {
    int level;
    if (mpi_module_state() != TAM_PYTHON_MPI_ABSENT)
        return TAMIS_OK;
    int code = MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    if (code != MPI_SUCCESS)
        return tam_fail(TAMIS_E_TRANSPORT, "MPI_Init_thread returned %d", code);
    own = true;
    process = getpid();
    return TAMIS_OK;
}

static tamis_status open_mpi(const tamis_comm_config *config, tamis_comm **out) {
    pthread_mutex_lock(&lock);
    tamis_status status = mpi_module_begin();
    pthread_mutex_unlock(&lock);
    TAM_TRY(status);
    return tamis_comm_create_mpi(MPI_COMM_WORLD, config, out);
}

static int state_mpi(void) {
    pthread_mutex_lock(&lock);
    int now = mpi_module_state();
    pthread_mutex_unlock(&lock);
    return now;
}

static tamis_status finalize_mpi(void) {
    pthread_mutex_lock(&lock);
    bool finalizes = mpi_module_state() == TAM_PYTHON_MPI_OWN && process == getpid();
    int code = finalizes ? MPI_Finalize() : MPI_SUCCESS;
    pthread_mutex_unlock(&lock);
    if (code == MPI_SUCCESS)
        return TAMIS_OK;
    return tam_fail(TAMIS_E_TRANSPORT, "MPI_Finalize returned %d", code);
}

TAMIS_API const tam_python_mpi tam_python_mpi_table = {
    .size = sizeof(tam_python_mpi),
    .version = TAMIS_VERSION,
    .open = open_mpi,
    .state = state_mpi,
    .finalize = finalize_mpi,
};
