/* SPDX-License-Identifier: MIT
 *
 * tamis/_nccl.so: the library's transport over NCCL, for _core.
 */
#include "module.h"

#include <tamis/nccl.h>

TAMIS_API const tam_python_nccl tam_python_nccl_table = {
    .size = sizeof(tam_python_nccl),
    .version = TAMIS_VERSION,
    .open = tamis_comm_create_nccl,
};
