/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tool's report arrives whole, or the tool says that it does not and ends with a status other than 0: standard
 * output that is closed, a full disk, a pipe that nobody reads, an interruption.
 */
#ifndef UCCL_OUTPUT_H
#define UCCL_OUTPUT_H

/*
 * First thing in main(), before a descriptor is opened: one that was closed would be given to a socket, which then
 * got what is printed. Ends the process where standard output is closed; looks at it whenever the process exits,
 * also by argp's --help. `who` begins messages and lives as long as the process.
 */
void output_begin(const char *who);

/* Ends the process if something printed so far was lost: no use in going on for minutes. */
void output_check(void);

#endif
