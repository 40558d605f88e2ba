/* SPDX-License-Identifier: MIT
 *
 * Flight recorders of all ranks (docs/flight.md), merged: who is behind, who is missing, which
 * collective differs.
 */
#ifndef TAMIS_BENCH_INFO_FLIGHT_H
#define TAMIS_BENCH_INFO_FLIGHT_H

/** Read FOLDER/flight-*.jsonl, and print a table and one sentence for each communicator.
 * @param  trace  file for a trace that Perfetto shows; "": none
 * @return 0; 1 where nothing could be read */
int info_flight(const char *folder, const char *trace);

#endif
