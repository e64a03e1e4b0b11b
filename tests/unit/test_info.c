/* SPDX-License-Identifier: Apache-2.0 */
/* What the library says about itself: error texts, version, counters, names of distances. */
#include "../../api/objects.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

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
        cr_assert_str_eq(uccl_strerror(error_rows[i].value), error_rows[i].text, "%s", error_rows[i].name);
    cr_assert_str_eq(uccl_strerror(UCCL_EPEERDEAD), "peer stopped answering");
}

/* A text that two errors share, or an empty one, helps nobody who reads it in a log. */
Test(info, error_texts_differ)
{
    for (int i = 0; i < ERROR_ROWS; i++) {
        cr_assert_neq(error_rows[i].text[0], '\0', "%s", error_rows[i].name);
        cr_assert(error_rows[i].value == 0 || error_rows[i].value == error_rows[i - 1].value - 1, "%s leaves a gap",
                  error_rows[i].name);
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
    snprintf(expected, sizeof expected, "%d.%d.%d", UCCL_VERSION_MAJOR, UCCL_VERSION_MINOR, UCCL_VERSION_PATCH);
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
#define COUNTER(field, text)                                                                                           \
    cr_assert_eq(offsetof(struct counters, field), index * sizeof(uint64_t));                                          \
    cr_assert_eq(uccl_counter_info(index++, &name, &doc), UCCL_OK);                                                    \
    cr_assert_str_eq(name, #field);                                                                                    \
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

/* ---- values of counters ---------------------------------------------------------------------- */

enum { THREADS = 3, COUNTERS = sizeof(struct counters) / sizeof(uint64_t) };

/* What a counter of a thread is made to be: no two counters have the same sum, whatever threads it is of. */
static uint64_t made_up(unsigned counter, unsigned thread)
{
    return (UINT64_C(1) << (40 + thread)) + counter * 1000 + thread;
}

/* An engine without running threads: nobody else counts. */
Test(info, each_counter_is_the_sum_of_its_own)
{
    struct counters counters[THREADS];
    struct engine_thread threads[THREADS] = {0};
    struct uccl_engine engine = {.threads = threads, .thread_count = THREADS};
    for (unsigned t = 0; t < THREADS; t++) {
        unsigned counter = 0;
        threads[t].counters = &counters[t];
#define COUNTER(field, doc) atomic_init(&counters[t].field, made_up(counter++, t));
#include "defs/counters.def"
#undef COUNTER
    }
    for (unsigned i = 0; i < COUNTERS; i++) {
        const char *name, *doc;
        uint64_t by_index = 0, by_name = 0, sum = 0;
        for (unsigned t = 0; t < THREADS; t++)
            sum += made_up(i, t);
        cr_assert_eq(uccl_counter_info(i, &name, &doc), UCCL_OK);
        cr_assert_eq(uccl_counter(&engine, i, &by_index), UCCL_OK);
        cr_assert_eq(uccl_counter_by_name(&engine, name, &by_name), UCCL_OK);
        cr_expect_eq(by_index, sum, "%s", name);
        cr_expect_eq(by_name, sum, "%s", name);
    }
}

/* ---- distances ------------------------------------------------------------------------------- */

Test(info, distance_names)
{
    static const struct {
        int distance;
        const char *name;
    } names[] = {
        {UCCL_DISTANCE_PIX, "PIX"}, {UCCL_DISTANCE_PXB, "PXB"},
        {UCCL_DISTANCE_PHB, "PHB"}, {UCCL_DISTANCE_NODE, "NODE"},
        {UCCL_DISTANCE_SYS, "SYS"}, {UCCL_DISTANCE_UNKNOWN, "unknown"},
        {UCCL_ENODEV, "unknown"},   {UCCL_DISTANCE_UNKNOWN + 1, "unknown"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        cr_expect_str_eq(uccl_distance_name(names[i].distance), names[i].name, "%d", names[i].distance);
}
