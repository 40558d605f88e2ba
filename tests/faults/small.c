/* SPDX-License-Identifier: MIT
 *
 * The staged collectives once more, with pieces so small that short vectors need several, which
 * travel as streams of their own.
 */
#define TAM_STAGED_CHUNK 512
#include "collectives/coll/staged_open.c"
