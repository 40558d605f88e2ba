/* SPDX-License-Identifier: MIT
 *
 * The tests that every row of the device contract passes, on the CPU, on a GPU and in the
 * emulation: against plain oracles, and bit for bit against the CPU's row.
 */
#ifndef TEST_DEVICE_BODY_H
#define TEST_DEVICE_BODY_H

#include "lib/contracts/device.h"

/**
 * @param  longest  the longest vector tried; at least 1000. The CPU uses 400,000.
 * @return          number of failed tests
 */
int device_body(const tam_device *row, uint32_t longest);

/** Its parts: device_selections.c, device_passes.c, device_types.c, device_updates.c. */
int device_selections(void);
int device_passes(void);
int device_types(void);
int device_divisions(void); /* in device_types.c */
int device_updates(void);

#endif
