/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: what the failure of a system call means to a user (the library's error, and a text that says what to change
 * where the process or the machine has run out of something), and the texts of the library's own. Any thread; no state.
 */
#ifndef UCCL_FAULT_H
#define UCCL_FAULT_H

enum { FAULT_TEXT = 160 };

/* UCCL_ENOMEM where descriptors or memory ran out, else UCCL_EIO. `system_error` is an errno. */
int fault_error(int system_error);

/* "Too many open files (limit of open files: ulimit -n, 1024 now)". Returns `out`. */
const char *fault_text(int system_error, char out[FAULT_TEXT]);

/* The text of one of the library's errors; NULL: it is none. */
const char *fault_error_text(int error);

#endif
