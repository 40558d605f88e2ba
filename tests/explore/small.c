/* SPDX-License-Identifier: MIT
 *
 * The staged collectives once more, with pieces so small that a communicator needs little memory,
 * and that what ranks agree on travels as streams of its own.
 */
#define TAM_STAGED_CHUNK 256
#include "collectives/coll/staged_open.c"
