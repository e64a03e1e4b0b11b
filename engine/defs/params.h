/* SPDX-License-Identifier: Apache-2.0 */
/* The values of all parameters as a plain struct, one field per row of params.def. */
#ifndef UCCL_PARAMS_H
#define UCCL_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

enum { PARAM_STR_MAX = 255 };

struct params {
#define PARAM_U64(field, name, default_, min, max, unit, doc) uint64_t field;
#define PARAM_BOOL(field, name, default_, doc) bool field;
#define PARAM_ENUM(field, name, default_, choices, doc) unsigned field;
#define PARAM_STR(field, name, default_, doc) char field[PARAM_STR_MAX + 1];
#include "params.def"
#undef PARAM_U64
#undef PARAM_BOOL
#undef PARAM_ENUM
#undef PARAM_STR
};

/* The values of PARAM_ENUM rows, in the order of their choices. */
enum { BACKEND_AUTO, BACKEND_UDP, BACKEND_VERBS, BACKEND_TCP };
enum { UDP_IO_AUTO, UDP_IO_URING, UDP_IO_MMSG };
enum { CC_SWIFT, CC_TIMELY, CC_EQDS };
enum { PATH_RECYCLE, PATH_POW2, PATH_RR };
enum { GDR_AUTO, GDR_OFF, GDR_DMABUF, GDR_PEERMEM };
enum { GDR_LEVEL_LOC, GDR_LEVEL_PIX, GDR_LEVEL_PXB, GDR_LEVEL_PHB, GDR_LEVEL_NODE, GDR_LEVEL_SYS };
enum { LEND_AUTO, LEND_YES, LEND_NO };

#endif
