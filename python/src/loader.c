/* SPDX-License-Identifier: MIT
 *
 * The shared objects that link MPI and NCCL, loaded by path when first needed, and never unloaded.
 */
#include "core.h"

#include "module.h"

#include <dlfcn.h>

typedef struct library {
    const char *name, *symbol, *remedy;
    size_t size;
    PyObject *path;    /* str, once loaded */
    const void *table; /* NULL: not loaded */
} library;

static library mpi = {"MPI",
                      TAM_PYTHON_MPI_SYMBOL,
                      "Install the MPI that it was built with, or use another transport.",
                      sizeof(tam_python_mpi),
                      NULL,
                      NULL};
static library nccl = {"NCCL",
                       TAM_PYTHON_NCCL_SYMBOL,
                       "Install the NCCL that it was built with, or use another transport.",
                       sizeof(tam_python_nccl),
                       NULL,
                       NULL};

static struct {
    unsigned open; /* communicators */
    bool lost;     /* one of them was lost */
} over_mpi;

/* Both tables begin with these. */
typedef struct head {
    size_t size;
    int version;
} head;

static bool check_table(const library *lib, const head *table, const char *path) {
    if (table && table->size == lib->size && table->version == tamis_version())
        return true;
    tam_py_raise_own(TAMIS_E_UNSUPPORTED, "Install all parts of tamis from the same build.",
                     table ? "%s was built from a different version of tamis than tamis._core"
                           : "%s is not the module of tamis for %s",
                     path, lib->name);
    return false;
}

static bool open_library(library *lib, const char *path) {
    void *handle;
    Py_BEGIN_ALLOW_THREADS handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    Py_END_ALLOW_THREADS if (!handle) {
        const char *words = dlerror();
        tam_py_raise_own(TAMIS_E_UNSUPPORTED, lib->remedy,
                         "the module of tamis for %s could not be loaded: %s", lib->name,
                         words ? words : path);
        return false;
    }
    const void *table = dlsym(handle, lib->symbol);
    if (!check_table(lib, table, path))
        return false;
    lib->table = table;
    return true;
}

static bool loader_load(library *lib, PyObject *module) {
    PyObject *owner;
    const char *path;
    if (lib->table && PyUnicode_Check(module) && PyUnicode_Compare(lib->path, module) == 0)
        return true;
    if (lib->table) {
        tam_py_raise_own(TAMIS_E_STATE, "Give the same path as before.",
                         "the module of tamis for %s was already loaded from %R, not from %R",
                         lib->name, lib->path, module);
        return false;
    }
    if (!tam_py_as_text(module, "module", &owner, &path))
        return false;
    bool loaded = open_library(lib, path);
    Py_DECREF(owner);
    if (loaded) {
        Py_INCREF(module);
        lib->path = module;
    }
    return loaded;
}

/* -- MPI -------------------------------------------------------------------------------------- */

PyObject *tam_py_loader_mpi(PyObject *none, PyObject *args, PyObject *keywords) {
    static char *names[] = {"module", "timeout_ms", NULL};
    PyObject *module, *timeout = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    tamis_comm *handle;
    tamis_status status;
    (void)none;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O:Comm.mpi", names, &module, &timeout) ||
        (timeout && !tam_py_as_u32(timeout, "timeout_ms", &config.timeout_ms)) ||
        !loader_load(&mpi, module))
        return NULL;
    const tam_python_mpi *table = mpi.table;
    over_mpi.open++;
    Py_BEGIN_ALLOW_THREADS status = table->open(&config, &handle);
    Py_END_ALLOW_THREADS if (status != TAMIS_OK) {
        tam_py_loader_mpi_closed(status);
        return tam_py_raise(status);
    }
    PyObject *comm = (PyObject *)tam_py_comm_wrap(handle);
    if (!comm)
        tam_py_loader_mpi_closed(TAMIS_OK);
    return comm;
}

void tam_py_loader_mpi_opened(void) {
    over_mpi.open++;
}

void tam_py_loader_mpi_closed(tamis_status last) {
    over_mpi.open--;
    over_mpi.lost = over_mpi.lost || tamis_status_loss(last) == TAMIS_LOST_COMM;
}

static int mpi_state(void) {
    const tam_python_mpi *table = mpi.table;
    return table ? table->state() : TAM_PYTHON_MPI_ABSENT;
}

PyObject *tam_py_loader_mpi_state(PyObject *module, PyObject *none) {
    static const char *const names[] = {"absent", "foreign", "own", "finalized"};
    (void)module, (void)none;
    return PyUnicode_FromString(names[mpi_state() & 3]);
}

/* MPI_Finalize may hang after a communicator was lost, or while one is still open. */
PyObject *tam_py_loader_mpi_finalize(PyObject *module, PyObject *none) {
    tamis_status status;
    (void)module, (void)none;
    if (mpi_state() != TAM_PYTHON_MPI_OWN || over_mpi.open > 0 || over_mpi.lost)
        Py_RETURN_NONE;
    const tam_python_mpi *table = mpi.table;
    Py_BEGIN_ALLOW_THREADS status = table->finalize();
    Py_END_ALLOW_THREADS if (status != TAMIS_OK) return tam_py_raise(status);
    Py_RETURN_NONE;
}

/* -- NCCL ------------------------------------------------------------------------------------- */

static PyObject *open_nccl(tam_py_comm *bootstrap, const tamis_comm_config *config) {
    const tam_python_nccl *table = nccl.table;
    tamis_comm *handle;
    tamis_status status;
    if (!tam_py_comm_enter(bootstrap, "Comm.nccl"))
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = table->open(bootstrap->handle, config, &handle);
    Py_END_ALLOW_THREADS tam_py_comm_leave(bootstrap);
    return status == TAMIS_OK ? (PyObject *)tam_py_comm_wrap(handle) : tam_py_raise(status);
}

PyObject *tam_py_loader_nccl(PyObject *none, PyObject *args, PyObject *keywords) {
    static char *names[] = {"module", "bootstrap", "timeout_ms", NULL};
    PyObject *module, *bootstrap, *timeout = NULL;
    tamis_comm_config config = TAMIS_COMM_CONFIG_INIT;
    (void)none;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!|O:Comm.nccl", names, &module,
                                     tam_py_comm_type, &bootstrap, &timeout) ||
        (timeout && !tam_py_as_u32(timeout, "timeout_ms", &config.timeout_ms)) ||
        !loader_load(&nccl, module))
        return NULL;
    return open_nccl((tam_py_comm *)bootstrap, &config);
}
