/* SPDX-License-Identifier: MIT
 *
 * What must hold in each execution, whatever has happened (tests/explore/check.c):
 *
 *     every call returns a second after its deadline at the latest; a failure has a sentence, loses
 *     the communicator, and leaves in the residual all that was given
 *     a result is what the residuals of the ranks hold at its indices, to the last bit, and the
 *     same on all ranks
 *     ranks that go on agree on the earliest step that one of them is at; then parameters are
 *     equal,
 *     and each residual holds what its rank gave and was not applied
 */
#ifndef EXPLORE_PROGRAM_H
#define EXPLORE_PROGRAM_H

#include "tests/explore/net.h"

/** Make a call of the library. */
#define CALL(self, call) (check_begin(self, #call), check_end(self, call))
void check_begin(actor *self, const char *call);
tamis_status check_end(actor *self, tamis_status status);

/** A step has begun; it was applied; the reducer may have gone back, also in a call that failed;
 * all ranks have returned to a step. */
void check_started(actor *self, const float *given);
void check_applied(actor *self, const float *result);
void check_back(actor *self);
void check_returned(actor *self, uint64_t step);

/** The residual is what it must be. */
void check_residual(actor *self, const char *when);

#endif
