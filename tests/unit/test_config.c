/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters: their rows, which source wins, what is refused and in which words. */
#include "configured.h"

TestSuite(config, .init = config_set_up, .fini = config_tear_down);

/* ---- rows ---- */

Test(config, defaults_are_those_of_params_def)
{
    expect_resolved(NULL);
#define PARAM_U64(field, name, default_, min, max, unit, doc) cr_assert_eq(params.field, default_);
#define PARAM_BOOL(field, name, default_, doc) cr_assert_eq(params.field, default_);
#define PARAM_ENUM(field, name, default_, choices, doc)                                                                \
    cr_assert_eq(strncmp(choices, default_, strlen(default_)) == 0, params.field == 0, name);
#define PARAM_STR(field, name, default_, doc) cr_assert_str_eq(params.field, default_);
#include "defs/params.def"
#undef PARAM_U64
#undef PARAM_BOOL
#undef PARAM_ENUM
#undef PARAM_STR
    cr_assert_eq(line_count, 0);
    cr_assert_eq(params.cc, (unsigned)CC_SWIFT);
    cr_assert_eq(params.path_policy, (unsigned)PATH_RECYCLE);
    cr_assert_eq(params.log_level, (unsigned)UCCL_LOG_WARN);
}

Test(config, every_row_explains_itself)
{
    struct uccl_param_info info;
    unsigned count = 0;
    for (; uccl_param_info(count, &info) == UCCL_OK; count++) {
        char value[300], source[300];
        cr_assert_eq(strncmp(info.name, "UCCL_", 5), 0, "%s", info.name);
        cr_assert_gt(strlen(info.doc), 10, "%s", info.name);
        cr_assert_gt(strlen(info.range), 2, "%s", info.name);
        cr_assert_not_null(info.unit);
        /* the default as text is what a person may write, and what the value reads as */
        cr_assert_eq(uccl_param_value(NULL, count, value, sizeof value, source, sizeof source), 0);
        cr_assert_str_eq(value, info.default_, "%s", info.name);
        cr_assert_str_eq(source, "default");
    }
    cr_assert_gt(count, 30);
    cr_assert_eq(uccl_param_info(count + 1, &info), UCCL_EINVAL);
    cr_assert_eq(uccl_param_info(0, NULL), UCCL_EINVAL);
}

Test(config, info_of_known_rows)
{
    struct uccl_param_info info;
    cr_assert_eq(uccl_param_info(index_of("UCCL_SOCKET_BUFFER_KB"), &info), UCCL_OK);
    cr_assert_str_eq(info.default_, "4096");
    cr_assert_str_eq(info.range, "64..1048576");
    cr_assert_str_eq(info.unit, "KiB");
    cr_assert_eq(uccl_param_info(index_of("UCCL_CC"), &info), UCCL_OK);
    cr_assert_str_eq(info.range, "swift|timely|eqds");
    cr_assert_str_eq(info.unit, "");
}

Test(config, choices_have_the_values_of_their_enums)
{
    setenv("UCCL_UDP_IO", "mmsg", 1);
    setenv("UCCL_CC", "timely", 1);
    setenv("UCCL_PATH_POLICY", "rr", 1);
    setenv("UCCL_LEND", "no", 1);
    setenv("UCCL_BACKEND", "udp", 1);
    setenv("UCCL_LOG_LEVEL", "debug", 1);
    expect_resolved(NULL);
    cr_assert_eq(params.udp_io, (unsigned)UDP_IO_MMSG);
    cr_assert_eq(params.cc, (unsigned)CC_TIMELY);
    cr_assert_eq(params.path_policy, (unsigned)PATH_RR);
    cr_assert_eq(params.lend, (unsigned)LEND_NO);
    cr_assert_eq(params.backend, (unsigned)BACKEND_UDP);
    cr_assert_eq(params.log_level, (unsigned)UCCL_LOG_DEBUG);
    cr_assert_eq(log_level(), UCCL_LOG_WARN, "resolving is not opening");
}

/* ---- precedence ---- */

Test(config, setter_over_environment_over_file_over_default)
{
    uccl_config *config = new_config();
    cr_assert_str_eq(seen(config, "UCCL_ACK_EVERY"), "4 from default");

    char from_file[200];
    write_file(home_file, "ACK_EVERY=5\n");
    snprintf(from_file, sizeof from_file, "5 from %s", home_file);
    cr_assert_str_eq(seen(config, "UCCL_ACK_EVERY"), from_file);
    expect_resolved(config);
    cr_assert_eq(params.ack_every, 5);

    setenv("UCCL_ACK_EVERY", "6", 1);
    cr_assert_str_eq(seen(config, "UCCL_ACK_EVERY"), "6 from environment");
    expect_resolved(config);
    cr_assert_eq(params.ack_every, 6);

    cr_assert_eq(uccl_config_set(config, "UCCL_ACK_EVERY", "7"), UCCL_OK);
    cr_assert_str_eq(seen(config, "UCCL_ACK_EVERY"), "7 from setter");
    expect_resolved(config);
    cr_assert_eq(params.ack_every, 7);

    expect_resolved(NULL);
    cr_assert_eq(params.ack_every, 6, "the setter's set was not given");
    uccl_config_destroy(config);
}

/* Only the value that wins has to be right. */
Test(config, a_bad_value_that_loses_is_no_error)
{
    uccl_config *config = new_config();
    write_file(home_file, "CC=nonsense\n");
    setenv("UCCL_CC", "nonsense", 1);
    cr_assert_eq(uccl_config_set(config, "CC", "timely"), UCCL_OK);
    expect_resolved(config);
    cr_assert_eq(params.cc, (unsigned)CC_TIMELY);
    cr_assert_eq(line_count, 0);
    uccl_config_destroy(config);
}

Test(config, named_file_instead_of_the_one_at_home)
{
    char path[160], expected[200];
    snprintf(path, sizeof path, "%s/named.conf", home);
    write_file(path, "UCCL_MTU=9000\n");
    write_file(home_file, "UCCL_MTU=1500\nUCCL_ACK_EVERY=9\n");
    setenv("UCCL_CONF_FILE", path, 1);
    snprintf(expected, sizeof expected, "9000 from %s", path);
    cr_assert_str_eq(seen(NULL, "UCCL_MTU"), expected);
    cr_assert_str_eq(seen(NULL, "UCCL_ACK_EVERY"), "4 from default", "one file only is read");
    cr_assert_eq(line_count, 0, "UCCL_CONF_FILE is a known name");
    unlink(path);
}

Test(config, named_file_that_cannot_be_read_is_an_error)
{
    char value[8], source[8];
    setenv("UCCL_CONF_FILE", "/nowhere/uccl.conf", 1);
    expect_refused(NULL, "configuration file \"/nowhere/uccl.conf\" (environment, UCCL_CONF_FILE) "
                         "cannot be read: No such file or directory");
    cr_assert_eq(uccl_param_value(NULL, 0, value, sizeof value, source, sizeof source), UCCL_EINVAL);
    setenv("UCCL_CONF_FILE", "/tmp", 1);
    expect_refused(NULL, "configuration file \"/tmp\" (environment, UCCL_CONF_FILE) "
                         "cannot be read: Is a directory");
    setenv("UCCL_CONF_FILE", "", 1);
    expect_refused(NULL, "configuration file \"\" (environment, UCCL_CONF_FILE) "
                         "cannot be read: No such file or directory");
}

Test(config, file_at_home_that_cannot_be_read_warns_once)
{
    unlink(home_file);
    cr_assert_eq(mkdir(home_file, 0700), 0);
    expect_resolved(NULL);
    expect_resolved(NULL);
    cr_assert_eq(line_count, 1);
    cr_assert_eq(lines[0].level, UCCL_LOG_WARN);
    cr_assert_not_null(strstr(lines[0].text, home_file), "%s", lines[0].text);
    cr_assert_not_null(strstr(lines[0].text, "Is a directory"), "%s", lines[0].text);
}

Test(config, no_home_no_file)
{
    unsetenv("HOME");
    expect_resolved(NULL);
    cr_assert_eq(line_count, 0);
}

/* ---- bad values ---- */

static void expect_env_refused(const char *name, const char *value, const char *text)
{
    setenv(name, value, 1);
    expect_refused(NULL, text);
    unsetenv(name);
}

Test(config, refusal_says_name_value_source_and_range)
{
    expect_env_refused("UCCL_CC", "bbr",
                       "parameter UCCL_CC: value \"bbr\" (environment) is not allowed; "
                       "allowed: swift|timely|eqds");
    expect_env_refused("UCCL_SOCKET_BUFFER_KB", "63",
                       "parameter UCCL_SOCKET_BUFFER_KB: value \"63\" (environment) is not "
                       "allowed; allowed: 64..1048576 KiB");
    expect_env_refused("UCCL_PIN", "maybe",
                       "parameter UCCL_PIN: value \"maybe\" (environment) is not allowed; "
                       "allowed: 0|1|false|true|no|yes");
    expect_env_refused("UCCL_CPUS", "2-",
                       "parameter UCCL_CPUS: value \"2-\" (environment) is not allowed; "
                       "allowed: numbers and ranges of them, such as 2-5,8, in text of at most 255 bytes");

    char expected[300];
    write_file(home_file, "# first line\nMTU = 65537\n");
    snprintf(expected, sizeof expected,
             "parameter UCCL_MTU: value \"65537\" (%s:2) is not allowed; allowed: 0..65536 bytes", home_file);
    expect_refused(NULL, expected);
}

/* What is allowed comes after the value in the message: a long value must not push it out. */
Test(config, refusal_of_a_long_value_still_says_what_is_allowed)
{
    char text[2000];
    memset(text, '0', sizeof text);
    text[sizeof text - 1] = '\0';
    setenv("UCCL_MTU", text, 1);
    cr_assert_eq(config_resolve(NULL, &params), UCCL_EINVAL);
    cr_assert_eq(line_count, 1);
    cr_assert_not_null(strstr(lines[0].text, "allowed: 0..65536 bytes"), "%s", lines[0].text);
}

Test(config, setter_refuses_at_once_and_keeps_the_old_value)
{
    uccl_config *config = new_config();
    cr_assert_eq(uccl_config_set(config, "MTU", "1400"), UCCL_OK);
    cr_assert_eq(uccl_config_set(config, "MTU", "1400x"), UCCL_EINVAL);
    cr_assert_eq(line_count, 1);
    cr_assert_eq(lines[0].level, UCCL_LOG_ERROR);
    cr_assert_str_eq(lines[0].text, "parameter UCCL_MTU: value \"1400x\" (setter) is not allowed; "
                                    "allowed: 0..65536 bytes");
    cr_assert_str_eq(seen(config, "UCCL_MTU"), "1400 from setter");
    uccl_config_destroy(config);
}

Test(config, numbers_are_strictly_decimal)
{
    const char *const bad[] = {"",
                               " ",
                               "+1500",
                               "-1500",
                               "0x5dc",
                               "1500 ",
                               " 1500",
                               "1500k",
                               "1e3",
                               "1.5",
                               "18446744073709551616",
                               "18446744073709553116",
                               "99999999999999999999999",
                               "65537"};
    uccl_config *config = new_config();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(uccl_config_set(config, "MTU", bad[i]), UCCL_EINVAL, "\"%s\"", bad[i]);
    cr_assert_eq(line_count, (int)(sizeof bad / sizeof bad[0]), "one line each");
    cr_assert_str_eq(seen(config, "UCCL_MTU"), "0 from default");
    cr_assert_eq(uccl_config_set(config, "MTU", "0001500"), UCCL_OK);
    cr_assert_str_eq(seen(config, "UCCL_MTU"), "1500 from setter", "one spelling");
    uccl_config_destroy(config);
}

Test(config, both_ends_of_a_range_are_allowed)
{
    uccl_config *config = new_config();
    cr_assert_eq(uccl_config_set(config, "NUM_ENGINES", "0"), UCCL_OK);
    cr_assert_eq(uccl_config_set(config, "NUM_ENGINES", "64"), UCCL_OK);
    cr_assert_eq(uccl_config_set(config, "NUM_ENGINES", "65"), UCCL_EINVAL);
    cr_assert_eq(uccl_config_set(config, "ACK_EVERY", "1"), UCCL_OK);
    cr_assert_eq(uccl_config_set(config, "ACK_EVERY", "0"), UCCL_EINVAL);
    uccl_config_destroy(config);
}

Test(config, booleans)
{
    const struct {
        const char *text;
        bool value;
    } good[] = {{"0", false}, {"1", true}, {"false", false}, {"true", true}, {"no", false}, {"yes", true}};
    const char *const bad[] = {"", "2", "on", "YES", "t", "0|1", "yes "};
    uccl_config *config = new_config();
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert_eq(uccl_config_set(config, "PIN", good[i].text), UCCL_OK, "%s", good[i].text);
        expect_resolved(config);
        cr_assert_eq(params.pin, good[i].value, "%s", good[i].text);
        cr_assert_str_eq(seen(config, "UCCL_PIN"), good[i].value ? "1 from setter" : "0 from setter");
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(uccl_config_set(config, "PIN", bad[i]), UCCL_EINVAL, "\"%s\"", bad[i]);
    uccl_config_destroy(config);
}

Test(config, choices_match_whole_words)
{
    const char *const bad[] = {"", "swif", "swiftt", "Swift", "swift|timely|eqds", "|", "timely|"};
    uccl_config *config = new_config();
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(uccl_config_set(config, "CC", bad[i]), UCCL_EINVAL, "\"%s\"", bad[i]);
    uccl_config_destroy(config);
}

/* ---- rules between parameters ---- */

static void expect_power_of_two(const char *name, const char *bad, const char *good, const char *range)
{
    char expected[300];
    uccl_config *config = new_config();
    cr_assert_eq(uccl_config_set(config, name, bad), UCCL_OK, "alone it is in range");
    snprintf(expected, sizeof expected,
             "parameter %s: value \"%s\" (setter) is not allowed; allowed: a power of two in %s", name, bad, range);
    expect_refused(config, expected);
    cr_assert_eq(uccl_config_set(config, name, good), UCCL_OK);
    expect_resolved(config);
    uccl_config_destroy(config);
}

Test(config, powers_of_two)
{
    expect_power_of_two("UCCL_CHUNK_WINDOW", "1000", "64", "64..16384 chunks");
    expect_power_of_two("UCCL_MSG_WINDOW", "65535", "65536", "16..65536 messages");
    expect_power_of_two("UCCL_RING_ENTRIES", "24", "16", "16..1048576 entries");
}

Test(config, shortest_timeout_is_not_above_the_longest)
{
    uccl_config *config = new_config();
    setenv("UCCL_RTO_MAX_US", "3999", 1);
    expect_refused(config, "parameters UCCL_RTO_MIN_US=10000 (default) and UCCL_RTO_MAX_US=3999 "
                           "(environment) do not go together; allowed: UCCL_RTO_MIN_US <= "
                           "UCCL_RTO_MAX_US");
    cr_assert_eq(uccl_config_set(config, "RTO_MIN_US", "3999"), UCCL_OK);
    expect_resolved(config);
    cr_assert_eq(params.rto_min_us, 3999);
    uccl_config_destroy(config);
}

/* Today the ranges see to it; a row that changes must keep it or meet the rule. */
Test(config, two_eager_messages_fit_into_the_window)
{
    uccl_config *config = new_config();
    cr_assert_eq(uccl_config_set(config, "EAGER_KB", "64"), UCCL_OK);
    cr_assert_eq(uccl_config_set(config, "EAGER_WINDOW_KB", "128"), UCCL_OK);
    expect_resolved(config);
    cr_assert_leq(params.eager_kb * 1024, params.eager_window_kb * 1024 / 2);
    cr_assert_eq(uccl_config_set(config, "EAGER_KB", "65"), UCCL_EINVAL);
    cr_assert_eq(uccl_config_set(config, "EAGER_WINDOW_KB", "127"), UCCL_EINVAL);
    uccl_config_destroy(config);
}

/* ---- outputs and arguments ---- */

Test(config, value_is_cut_at_the_size_given)
{
    char value[4] = "...", source[4] = "...";
    unsigned index = index_of("UCCL_CC");
    cr_assert_eq(uccl_param_value(NULL, index, value, sizeof value, source, sizeof source), 0);
    cr_assert_str_eq(value, "swi");
    cr_assert_str_eq(source, "def");
    cr_assert_eq(uccl_param_value(NULL, index, NULL, 0, NULL, 0), UCCL_OK);
    cr_assert_eq(uccl_param_value(NULL, index, NULL, 4, source, 4), UCCL_EINVAL);
    cr_assert_eq(uccl_param_value(NULL, index, value, 4, NULL, 4), UCCL_EINVAL);
}

Test(config, value_not_allowed_leaves_outputs)
{
    char value[8] = "before", source[8] = "before";
    setenv("UCCL_CC", "bbr", 1);
    cr_assert_eq(uccl_param_value(NULL, index_of("UCCL_CC"), value, 8, source, 8), UCCL_EINVAL);
    cr_assert_eq(uccl_param_value(NULL, 100000, value, 8, source, 8), UCCL_EINVAL);
    cr_assert_str_eq(value, "before");
    cr_assert_str_eq(source, "before");
    cr_assert_eq(line_count, 1);
    cr_assert_eq(uccl_param_value(NULL, index_of("UCCL_MTU"), value, 8, source, 8), UCCL_OK,
                 "the others can still be asked for");
}

Test(config, create_and_destroy_take_null)
{
    cr_assert_eq(uccl_config_create(NULL), UCCL_EINVAL);
    uccl_config_destroy(NULL);
}
