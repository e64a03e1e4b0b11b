/* SPDX-License-Identifier: Apache-2.0 */
/* What the library says about itself: error texts, version, counter names. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "defs/counters.h"
#include "uccl/engine.h"

struct error_row {
    int value;
    const char *name;
    const char *text;
};

static const struct error_row error_rows[] = {
#define ROW(name, value, text) {value, #name, text},
    UCCL_ERROR_ROWS(ROW)
#undef ROW
};

enum { ERROR_ROWS = sizeof error_rows / sizeof error_rows[0] };

Test(info, strerror_of_each_error)
{
    for (int i = 0; i < ERROR_ROWS; i++)
        cr_assert_str_eq(uccl_strerror(error_rows[i].value), error_rows[i].text, "%s",
                         error_rows[i].name);
    cr_assert_str_eq(uccl_strerror(UCCL_EPEERDEAD), "peer stopped answering");
}

/* A text that two errors share, or an empty one, helps nobody who reads it in a log. */
Test(info, error_texts_differ)
{
    for (int i = 0; i < ERROR_ROWS; i++) {
        cr_assert_neq(error_rows[i].text[0], '\0', "%s", error_rows[i].name);
        cr_assert(error_rows[i].value == 0 || error_rows[i].value == error_rows[i - 1].value - 1,
                  "%s leaves a gap", error_rows[i].name);
        for (int j = 0; j < i; j++)
            cr_assert_str_neq(error_rows[i].text, error_rows[j].text);
    }
}

Test(info, strerror_of_unknown_codes)
{
    const int unknown[] = {1, 99, error_rows[ERROR_ROWS - 1].value - 1, -1000000};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++)
        cr_assert_str_eq(uccl_strerror(unknown[i]), "unknown error", "%d", unknown[i]);
}

Test(info, version_is_that_of_the_header)
{
    char expected[32];
    snprintf(expected, sizeof expected, "%d.%d.%d", UCCL_VERSION_MAJOR, UCCL_VERSION_MINOR,
             UCCL_VERSION_PATCH);
    cr_assert_str_eq(uccl_version(), expected);
}

Test(info, build_info_is_text)
{
    cr_assert_not_null(uccl_build_info());
    cr_assert_neq(uccl_build_info()[0], '\0');
}

/* Index k names the k-th counter of struct counters: uccl_counter() relies on the same order. */
Test(info, counters_in_the_order_of_the_struct)
{
    const char *name = NULL, *doc = NULL;
    unsigned index = 0;
#define COUNTER(field, text)                                                                       \
    cr_assert_eq(offsetof(struct counters, field), index * sizeof(uint64_t));                      \
    cr_assert_eq(uccl_counter_info(index++, &name, &doc), UCCL_OK);                                \
    cr_assert_str_eq(name, #field);                                                                \
    cr_assert_str_eq(doc, text);
#include "defs/counters.def"
#undef COUNTER
    cr_assert_eq(index * sizeof(uint64_t), sizeof(struct counters));
}

Test(info, counter_past_the_last_leaves_outputs)
{
    const char *name = "before", *doc = "before";
    unsigned last = (unsigned)(sizeof(struct counters) / sizeof(uint64_t)) - 1;
    cr_assert_eq(uccl_counter_info(last + 1, &name, &doc), UCCL_EINVAL);
    cr_assert_eq(uccl_counter_info(-1u, &name, &doc), UCCL_EINVAL);
    cr_assert_eq(uccl_counter_info(0, NULL, &doc), UCCL_EINVAL);
    cr_assert_eq(uccl_counter_info(0, &name, NULL), UCCL_EINVAL);
    cr_assert_str_eq(name, "before");
    cr_assert_str_eq(doc, "before");
    cr_assert_eq(uccl_counter_info(last, &name, &doc), UCCL_OK);
}
