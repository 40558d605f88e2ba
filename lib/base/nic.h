/* SPDX-License-Identifier: MIT
 *
 * What this host's network carries, as the kernel shows it.
 */
#ifndef TAM_BASE_NIC_H
#define TAM_BASE_NIC_H

/**
 * The speed of all active ports of InfiniBand and RoCE together; without any, of the fastest
 * Ethernet device that is up.
 *
 * @param  sys  [in]  "/sys"
 * @return            10^9 bits a second in one direction; 0: no device says (virtual ones often do
 *                    not)
 */
double tam_nic_gbit(const char *sys);

#endif
