/* SPDX-License-Identifier: MIT
 *
 * The CPU as a device. Calls never fail after open and never allocate.
 */
#ifndef TAM_CPU_CPU_H
#define TAM_CPU_CPU_H

#include "lib/contracts/device.h"

extern const tam_device tam_device_cpu;

/** Whether `threads` has an effect: built with OpenMP. */
bool tam_cpu_threaded(void);

#endif
