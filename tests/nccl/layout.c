/* SPDX-License-Identifier: Apache-2.0 */
/* The declarations of plugins/nccl/nccl_*.h against the measured layouts (layout.def). TAP, a line per structure. */
#include "nccl_net.h"
#include "nccl_tuner.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum row_kind { ROW_FIELD, ROW_SIZE, ROW_ALIGNMENT };

struct row {
    enum row_kind kind;
    const char *structure, *field;
    size_t want_offset, want, offset, is;
};

#define FIELD(type, field, offset, size)                                                                               \
    {ROW_FIELD, #type, #field, offset, size, offsetof(struct type, field), sizeof(((struct type *)NULL)->field)},
#define SIZE(type, bytes) {ROW_SIZE, #type, "its size", 0, bytes, 0, sizeof(struct type)},
#define ALIGNMENT(type, bytes) {ROW_ALIGNMENT, #type, "its alignment", 0, bytes, 0, _Alignof(struct type)},
static const struct row ROWS[] = {
#include "layout.def"
};
#undef FIELD
#undef SIZE
#undef ALIGNMENT

/* A result and a device type are as wide as an int. */
_Static_assert(sizeof(enum nccl_result) == 4 && sizeof(enum nccl_net_device_type) == 4, "enums of another size");

int main(void)
{
    unsigned tests = 0, wrong = 0;
    bool ok = true;
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        const struct row *row = &ROWS[i];
        if (row->offset != row->want_offset || row->is != row->want) {
            printf("# %s, %s: %zu bytes at %zu, measured %zu at %zu\n", row->structure, row->field, row->is,
                   row->offset, row->want, row->want_offset);
            ok = false;
        }
        if (row->kind == ROW_ALIGNMENT) { /* the last of a structure */
            printf("%sok %u - %s\n", ok ? "" : "not ", ++tests, row->structure);
            wrong += !ok;
            ok = true;
        }
    }
    printf("1..%u\n", tests);
    return wrong != 0;
}
