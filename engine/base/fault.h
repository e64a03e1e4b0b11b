/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: the library's error for a failed system call, a text that names the limit which a process or machine has
 * reached, and the texts of the library's errors. Any thread; no state.
 */
#ifndef UCCL_FAULT_H
#define UCCL_FAULT_H

enum { FAULT_TEXT = 160 };

/* UCCL_ENOMEM: descriptors or memory ran out; else UCCL_EIO. `system_error` is an errno. */
int fault_error(int system_error);

/* "Too many open files (limit of open files: ulimit -n, 1024 now)". Returns `out`. */
const char *fault_text(int system_error, char out[FAULT_TEXT]);

/* The text of an error of the library; NULL: no such error. */
const char *fault_error_text(int error);

#endif
