/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters: which source wins, what is refused and in which words, what is only warned about.
 * Each test has an empty HOME and no UCCL_ variables, so that the machine's own do not matter; its
 * ~/.uccl.conf exists and is empty, so that /etc/uccl.conf does not either.
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/config.h"
#include "base/log.h"

enum { LINES_MAX = 100 };

static struct {
    enum uccl_log_level level;
    char text[1024];
} lines[LINES_MAX];
static int line_count;

static char home[64];
static char home_file[128];
static struct params params;

static void remember(void *user, enum uccl_log_level level, const char *text)
{
    (void)user;
    cr_assert_lt(line_count, LINES_MAX);
    lines[line_count].level = level;
    snprintf(lines[line_count++].text, sizeof lines[0].text, "%s", text);
}

static void write_file(const char *path, const char *content)
{
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file, "%s", path);
    cr_assert_geq(fputs(content, file), 0);
    cr_assert_eq(fclose(file), 0);
}

static void clear_environment(void)
{
    for (char **entry = environ; *entry;) {
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*entry, "="), *entry);
        if (strncmp(name, "UCCL_", 5) == 0 || strncmp(name, "NCCL_", 5) == 0) {
            unsetenv(name);
            entry = environ; /* it has moved */
        } else {
            entry++;
        }
    }
}

static void set_up(void)
{
    clear_environment();
    snprintf(home, sizeof home, "/tmp/uccl-test-config-XXXXXX");
    cr_assert_not_null(mkdtemp(home));
    snprintf(home_file, sizeof home_file, "%s/.uccl.conf", home);
    write_file(home_file, "");
    setenv("HOME", home, 1);
    uccl_set_log(remember, NULL);
}

static void tear_down(void)
{
    unlink(home_file);
    rmdir(home_file); /* one test makes a directory of it */
    rmdir(home);
}

TestSuite(config, .init = set_up, .fini = tear_down);

static unsigned index_of(const char *name)
{
    struct uccl_param_info info;
    for (unsigned i = 0; uccl_param_info(i, &info) == UCCL_OK; i++)
        if (strcmp(info.name, name) == 0)
            return i;
    cr_assert_fail("no parameter %s", name);
    return 0;
}

/* Value and source of a parameter, as a user sees them: "timely from setter". */
static const char *seen(const uccl_config *config, const char *name)
{
    static char both[1024];
    char value[300], source[300];
    int result =
        uccl_param_value(config, index_of(name), value, sizeof value, source, sizeof source);
    cr_assert_eq(result, UCCL_OK, "%s", name);
    snprintf(both, sizeof both, "%s from %s", value, source);
    return both;
}

static void expect_resolved(const uccl_config *config)
{
    cr_assert_eq(config_resolve(config, &params), UCCL_OK, "%s",
                 line_count ? lines[line_count - 1].text : "");
}

/* Refused with exactly one line at error level, which is `text`; the output is untouched. */
static void expect_refused(const uccl_config *config, const char *text)
{
    struct params before;
    memset(&params, 0x5a, sizeof params);
    before = params;
    line_count = 0;
    cr_assert_eq(config_resolve(config, &params), UCCL_EINVAL, "expected: %s", text);
    cr_assert_eq(memcmp(&params, &before, sizeof params), 0);
    cr_assert_eq(line_count, 1, "%d lines instead of: %s", line_count, text);
    cr_assert_eq(lines[0].level, UCCL_LOG_ERROR);
    cr_assert_str_eq(lines[0].text, text);
}

static uccl_config *new_config(void)
{
    uccl_config *config = NULL;
    cr_assert_eq(uccl_config_create(&config), UCCL_OK);
    return config;
}

/* ---- rows ---- */

Test(config, defaults_are_those_of_params_def)
{
    expect_resolved(NULL);
#define PARAM_U64(field, name, default_, min, max, unit, doc) cr_assert_eq(params.field, default_);
#define PARAM_BOOL(field, name, default_, doc) cr_assert_eq(params.field, default_);
#define PARAM_ENUM(field, name, default_, choices, doc)                                            \
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
    cr_assert_eq(uccl_param_value(NULL, 0, value, sizeof value, source, sizeof source),
                 UCCL_EINVAL);
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

/* ---- NCCL_SOCKET_IFNAME ---- */

Test(config, nccl_ifname_stands_in)
{
    setenv("NCCL_SOCKET_IFNAME", "=eth1", 1);
    cr_assert_str_eq(seen(NULL, "UCCL_SOCKET_IFNAME"), "=eth1 from environment, NCCL_SOCKET_IFNAME");
    expect_resolved(NULL);
    cr_assert_str_eq(params.socket_ifname, "=eth1");

    write_file(home_file, "SOCKET_IFNAME=eth2\n");
    expect_resolved(NULL);
    cr_assert_str_eq(params.socket_ifname, "eth2", "the file comes first");

    setenv("UCCL_SOCKET_IFNAME", "eth3", 1);
    expect_resolved(NULL);
    cr_assert_str_eq(params.socket_ifname, "eth3");

    setenv("UCCL_SOCKET_IFNAME", "", 1);
    expect_resolved(NULL);
    cr_assert_str_eq(params.socket_ifname, "", "set, though empty");
}

Test(config, nccl_ifname_too_long_is_passed_over)
{
    char text[300];
    memset(text, 'e', sizeof text);
    text[256] = '\0';
    setenv("NCCL_SOCKET_IFNAME", text, 1);
    expect_resolved(NULL);
    cr_assert_str_eq(params.socket_ifname, "");
    cr_assert_eq(line_count, 1);
    cr_assert_not_null(strstr(lines[0].text, "NCCL_SOCKET_IFNAME"));
    cr_assert_not_null(strstr(lines[0].text, "allowed: text of at most 255 bytes"));
    text[255] = '\0';
    setenv("NCCL_SOCKET_IFNAME", text, 1);
    expect_resolved(NULL);
    cr_assert_str_eq(params.socket_ifname, text);
}

Test(config, names_that_stand_in_for_verbs_parameters)
{
    setenv("NCCL_IB_HCA", "^=mlx5_1:2", 1);
    setenv("NCCL_IB_SL", "3", 1);
    setenv("NCCL_IB_TC", "106", 1);
    setenv("NCCL_IB_GID_INDEX", "5", 1);
    expect_resolved(NULL);
    cr_assert_str_eq(params.ib_hca, "^=mlx5_1:2");
    cr_assert_eq(params.ib_sl, 3);
    cr_assert_eq(params.ib_tc, 106);
    cr_assert_eq(params.ib_gid_index, 5);

    setenv("UCCL_ROCE_GID_IDX", "4", 1);
    expect_resolved(NULL);
    cr_assert_eq(params.ib_gid_index, 4);
    cr_assert_eq(line_count, 0, "UCCL_ROCE_GID_IDX is no unknown name: %s", lines[0].text);
    setenv("UCCL_IB_GID_INDEX", "3", 1);
    expect_resolved(NULL);
    cr_assert_eq(params.ib_gid_index, 3);
}

Test(config, minus_one_stands_in_for_nothing)
{
    setenv("NCCL_IB_GID_INDEX", "-1", 1);
    cr_assert_str_eq(seen(NULL, "UCCL_IB_GID_INDEX"), "65535 from default");
    setenv("UCCL_ROCE_GID_IDX", "-1", 1);
    setenv("NCCL_IB_GID_INDEX", "7", 1);
    cr_assert_str_eq(seen(NULL, "UCCL_IB_GID_INDEX"), "7 from environment, NCCL_IB_GID_INDEX");
}

/* They are NCCL's, which may understand more: told once, by name and value, and passed over. */
Test(config, stand_ins_that_make_no_sense_are_passed_over)
{
    static const struct {
        const char *name, *value, *parameter, *allowed;
    } rows[] = {
        {"NCCL_IB_GID_INDEX", "", "UCCL_IB_GID_INDEX", "0..65535 index"},
        {"NCCL_IB_TC", "300", "UCCL_IB_TC", "0..255 class"},
        {"NCCL_IB_SL", "0x3", "UCCL_IB_SL", "0..15 level"},
        {"NCCL_IB_TIMEOUT", " 5", "UCCL_IB_TIMEOUT", "1..31 exponent"},
        {"NCCL_IB_RETRY_CNT", "-2", "UCCL_IB_RETRY_CNT", "0..7 times"},
        {"NCCL_NET_GDR_LEVEL", "NVL", "UCCL_GDR_LEVEL", "LOC|PIX|PXB|PHB|NODE|SYS|0|1|2|3|4|5"},
        {"NCCL_IB_PCI_RELAXED_ORDERING", "3", "UCCL_IB_RELAXED_ORDERING", "0|1|2"},
        {"NCCL_DMABUF_ENABLE", "off", "UCCL_GDR", "0|1"},
        {"NCCL_DEBUG", "error", "UCCL_LOG_LEVEL", "VERSION|WARN|INFO|ABORT|TRACE"},
    };
    struct params defaults;
    expect_resolved(NULL);
    defaults = params;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char expected[300], value[64], source[64];
        setenv(rows[i].name, rows[i].value, 1);
        line_count = 0;
        expect_resolved(NULL);
        cr_assert_eq(memcmp(&params, &defaults, sizeof params), 0, "%s", rows[i].name);
        snprintf(expected, sizeof expected, "%s=\"%s\" (environment), read for %s, is not understood and has no "
                                            "effect; allowed: %s",
                 rows[i].name, rows[i].value, rows[i].parameter, rows[i].allowed);
        cr_assert_eq(line_count, 1);
        cr_assert_eq(lines[0].level, UCCL_LOG_WARN);
        cr_assert_str_eq(lines[0].text, expected);
        cr_assert_eq(uccl_param_value(NULL, index_of(rows[i].parameter), value, sizeof value, source, sizeof source), 0);
        cr_assert_str_eq(source, "default");
        cr_assert_eq(line_count, 1, "once per process");
    }
    line_count = 0;
    setenv("UCCL_ROCE_GID_IDX", "0x3", 1);
    expect_refused(NULL, "parameter UCCL_IB_GID_INDEX: value \"0x3\" (environment, UCCL_ROCE_GID_IDX) is not allowed; "
                         "allowed: 0..65535 index");
    unsetenv("UCCL_ROCE_GID_IDX");
    setenv("UCCL_IB_GID_INDEX", "", 1);
    expect_refused(NULL, "parameter UCCL_IB_GID_INDEX: value \"\" (environment) is not allowed; allowed: 0..65535 index");
}

/* The first that makes sense counts. */
Test(config, a_stand_in_that_makes_no_sense_hides_no_other)
{
    setenv("UCCL_ROCE_GID_IDX", "-1", 1);
    setenv("NCCL_IB_GID_INDEX", "3", 1);
    setenv("NCCL_IB_TC", "x", 1);
    setenv("NCCL_IB_SL", "2", 1);
    expect_resolved(NULL);
    cr_assert_eq(params.ib_gid_index, 3);
    cr_assert_eq(params.ib_tc, 0);
    cr_assert_eq(params.ib_sl, 2);
    setenv("UCCL_IB_TC", "8", 1);
    line_count = 0;
    expect_resolved(NULL);
    cr_assert_eq(params.ib_tc, 8);
    cr_assert_eq(line_count, 0, "of what does not count nothing is said: %s", lines[0].text);
}

Test(config, nccls_words_for_switches_and_levels)
{
    static const struct {
        const char *name, *value, *parameter, *seen;
    } rows[] = {
        {"NCCL_IB_PCI_RELAXED_ORDERING", "0", "UCCL_IB_RELAXED_ORDERING", "0"},
        {"NCCL_IB_PCI_RELAXED_ORDERING", "1", "UCCL_IB_RELAXED_ORDERING", "1"},
        {"NCCL_IB_PCI_RELAXED_ORDERING", "2", "UCCL_IB_RELAXED_ORDERING", "1"},
        {"NCCL_DMABUF_ENABLE", "0", "UCCL_GDR", "peermem"},
        {"NCCL_DMABUF_ENABLE", "1", "UCCL_GDR", "auto"},
        {"NCCL_DEBUG", "VERSION", "UCCL_LOG_LEVEL", "warn"},
        {"NCCL_DEBUG", "WARN", "UCCL_LOG_LEVEL", "warn"},
        {"NCCL_DEBUG", "INFO", "UCCL_LOG_LEVEL", "info"},
        {"NCCL_DEBUG", "info", "UCCL_LOG_LEVEL", "info"},
        {"NCCL_DEBUG", "ABORT", "UCCL_LOG_LEVEL", "info"},
        {"NCCL_DEBUG", "TRACE", "UCCL_LOG_LEVEL", "debug"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char expected[128];
        setenv(rows[i].name, rows[i].value, 1);
        snprintf(expected, sizeof expected, "%s from environment, %s", rows[i].seen, rows[i].name);
        cr_assert_str_eq(seen(NULL, rows[i].parameter), expected);
    }
    setenv("UCCL_LOG_LEVEL", "error", 1);
    setenv("UCCL_GDR", "off", 1);
    cr_assert_str_eq(seen(NULL, "UCCL_LOG_LEVEL"), "error from environment");
    cr_assert_str_eq(seen(NULL, "UCCL_GDR"), "off from environment");
    cr_assert_eq(line_count, 0);
}

Test(config, nccls_words_for_the_level)
{
    static const char *const theirs[] = {"LOC", "PIX", "PXB", "PHB", "NODE", "SYS", "0", "1", "2", "3", "4", "5"};
    static const unsigned ours[] = {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 5, 5};
    expect_resolved(NULL);
    cr_assert_eq(params.gdr_level, GDR_LEVEL_PXB);
    for (unsigned i = 0; i < sizeof ours / sizeof ours[0]; i++) {
        setenv("NCCL_NET_GDR_LEVEL", theirs[i], 1);
        expect_resolved(NULL);
        cr_assert_eq(params.gdr_level, ours[i], "%s", theirs[i]);
    }
    setenv("UCCL_GDR_LEVEL", "phb", 1);
    cr_assert_str_eq(seen(NULL, "UCCL_GDR_LEVEL"), "phb from environment");
}

Test(config, other_nccl_names_stand_in_for_nothing)
{
    setenv("NCCL_MTU", "9000", 1);
    expect_resolved(NULL);
    cr_assert_eq(params.mtu, 0);
    cr_assert_eq(line_count, 0);
}

/* ---- bad values ---- */

Test(config, refusal_says_name_value_source_and_range)
{
    setenv("UCCL_CC", "bbr", 1);
    expect_refused(NULL, "parameter UCCL_CC: value \"bbr\" (environment) is not allowed; "
                         "allowed: swift|timely|eqds");
    unsetenv("UCCL_CC");
    setenv("UCCL_SOCKET_BUFFER_KB", "63", 1);
    expect_refused(NULL, "parameter UCCL_SOCKET_BUFFER_KB: value \"63\" (environment) is not "
                         "allowed; allowed: 64..1048576 KiB");
    unsetenv("UCCL_SOCKET_BUFFER_KB");
    setenv("UCCL_PIN", "maybe", 1);
    expect_refused(NULL, "parameter UCCL_PIN: value \"maybe\" (environment) is not allowed; "
                         "allowed: 0|1|false|true|no|yes");
    unsetenv("UCCL_PIN");
    setenv("UCCL_CPUS", "2-", 1);
    expect_refused(NULL, "parameter UCCL_CPUS: value \"2-\" (environment) is not allowed; "
                         "allowed: numbers and ranges of them, such as 2-5,8, in text of at most 255 bytes");
    unsetenv("UCCL_CPUS");

    char expected[300];
    write_file(home_file, "# first line\nMTU = 65537\n");
    snprintf(expected, sizeof expected,
             "parameter UCCL_MTU: value \"65537\" (%s:2) is not allowed; allowed: 0..65536 bytes",
             home_file);
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
    } good[] = {{"0", false},   {"1", true},   {"false", false},
                {"true", true}, {"no", false}, {"yes", true}};
    const char *const bad[] = {"", "2", "on", "YES", "t", "0|1", "yes "};
    uccl_config *config = new_config();
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert_eq(uccl_config_set(config, "PIN", good[i].text), UCCL_OK, "%s", good[i].text);
        expect_resolved(config);
        cr_assert_eq(params.pin, good[i].value, "%s", good[i].text);
        cr_assert_str_eq(seen(config, "UCCL_PIN"),
                         good[i].value ? "1 from setter" : "0 from setter");
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

/* ---- names ---- */

Test(config, setter_takes_both_forms_of_a_name_and_no_other)
{
    uccl_config *config = new_config();
    cr_assert_eq(uccl_config_set(config, "UCCL_MTU", "1400"), UCCL_OK);
    cr_assert_eq(uccl_config_set(config, "MTU", "1401"), UCCL_OK);
    cr_assert_str_eq(seen(config, "UCCL_MTU"), "1401 from setter");
    cr_assert_eq(line_count, 0);
    cr_assert_eq(uccl_config_set(config, "mtu", "1402"), UCCL_EINVAL);
    cr_assert_str_eq(lines[0].text, "mtu (setter) is not a parameter; UCCL_MTU was probably meant; "
                                    "uccl_info --params shows all");
    cr_assert_eq(lines[0].level, UCCL_LOG_ERROR);
    cr_assert_eq(uccl_config_set(config, "UCCL_UCCL_MTU", "1402"), UCCL_EINVAL);
    cr_assert_eq(uccl_config_set(config, "", "1"), UCCL_EINVAL);
    cr_assert_eq(uccl_config_set(config, "UCCL_", "1"), UCCL_EINVAL);
    cr_assert_eq(uccl_config_set(config, "UCCL_CONF_FILE", "/x"), UCCL_EINVAL);
    cr_assert_eq(uccl_config_set(config, NULL, "1"), UCCL_EINVAL);
    cr_assert_eq(uccl_config_set(config, "MTU", NULL), UCCL_EINVAL);
    cr_assert_eq(uccl_config_set(NULL, "MTU", "1"), UCCL_EINVAL);
    cr_assert_eq(line_count, 8, "one line each");
    cr_assert_str_eq(seen(config, "UCCL_MTU"), "1401 from setter");
    uccl_config_destroy(config);
}

Test(config, unknown_name_in_environment_warns_once)
{
    setenv("UCCL_CWND_MAX", "1", 1);
    setenv("UCCL_ZZZZZZZZ", "1", 1);
    expect_resolved(NULL);
    cr_assert_eq(line_count, 2);
    int first = strncmp(lines[0].text, "UCCL_CWND", 9) == 0 ? 0 : 1;
    cr_assert_eq(lines[0].level, UCCL_LOG_WARN);
    cr_assert_str_eq(lines[first].text, "UCCL_CWND_MAX (environment) is not a parameter and has no "
                                        "effect; UCCL_CWND_MAX_KB was probably meant");
    cr_assert_str_eq(lines[!first].text,
                     "UCCL_ZZZZZZZZ (environment) is not a parameter and has no effect");
    expect_resolved(NULL);
    seen(NULL, "UCCL_MTU");
    cr_assert_eq(line_count, 2, "once per process");
    setenv("UCCL_YYYYYYYY", "1", 1);
    expect_resolved(NULL);
    cr_assert_eq(line_count, 3, "another name is news");
}

Test(config, likely_names)
{
    const struct {
        const char *wrong, *meant; /* NULL: none is close */
    } cases[] = {
        {"UCCL_CHUNK_SIZE", "UCCL_CHUNK_SIZE_KB"},
        {"UCCL_EAGRE_KB", "UCCL_EAGER_KB"},
        {"UCCL_DEADPEER_MS", "UCCL_DEAD_PEER_MS"},
        {"uccl_cc", "UCCL_CC"},
        {"UCCL_LOGLEVEL", "UCCL_LOG_LEVEL"},
        {"UCCL_MTU_BYTES", "UCCL_MTU"},
        {"UCCL_DD", NULL},
        {"UCCL_TRANSPORT", NULL},
    };
    uccl_config *config = new_config();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        line_count = 0;
        cr_assert_eq(uccl_config_set(config, cases[i].wrong, "1"), UCCL_EINVAL);
        const char *meant = strstr(lines[0].text, "; UCCL_");
        if (cases[i].meant) {
            cr_assert_not_null(meant, "%s", lines[0].text);
            size_t length = strlen(cases[i].meant);
            cr_assert_eq(strncmp(meant + 2, cases[i].meant, length), 0, "%s", lines[0].text);
            cr_assert_eq(meant[2 + length], ' ', "%s", lines[0].text);
        } else {
            cr_assert_null(meant, "%s", lines[0].text);
        }
    }
    uccl_config_destroy(config);
}

Test(config, a_flood_of_unknown_names_is_bounded)
{
    for (int i = 0; i < 90; i++) {
        char name[400];
        snprintf(name, sizeof name, "UCCL_%d_%0300d", i, 0);
        setenv(name, "1", 1);
    }
    expect_resolved(NULL);
    cr_assert_eq(line_count, 64);
    expect_resolved(NULL);
    cr_assert_eq(line_count, 64);
}

/* ---- the file ---- */

Test(config, file_syntax)
{
    write_file(home_file, "# comment\n"
                          "\n"
                          "   \t\r\n"
                          "UCCL_MTU=1400\n"
                          "  ACK_EVERY \t=  9  # comment\r\n"
                          "\t# comment = 1\n"
                          "SOCKET_IFNAME = eth0,a#b =c \n"
                          "PIN=yes\n"
                          "PIN=no\n"
                          "IN_ORDER=0"); /* no newline at the end */
    expect_resolved(NULL);
    cr_assert_eq(line_count, 0, "%s", lines[0].text);
    cr_assert_eq(params.mtu, 1400);
    cr_assert_eq(params.ack_every, 9);
    cr_assert_str_eq(params.socket_ifname, "eth0,a#b =c");
    cr_assert_eq(params.pin, false, "the later line counts");
    cr_assert_eq(params.in_order, false);
}

Test(config, unknown_name_in_the_file_warns_once_with_its_line)
{
    char expected[300];
    write_file(home_file, "MTU=1400\nCHUNK_WINDOWS=64\nUCCL_CONF_FILE=/x\n");
    expect_resolved(NULL);
    expect_resolved(NULL);
    cr_assert_eq(params.mtu, 1400);
    cr_assert_eq(params.chunk_window, 1024);
    cr_assert_eq(line_count, 2);
    snprintf(expected, sizeof expected,
             "CHUNK_WINDOWS (%s:2) is not a parameter and has no effect; UCCL_CHUNK_WINDOW was "
             "probably meant",
             home_file);
    cr_assert_str_eq(lines[0].text, expected);
    cr_assert_eq(lines[0].level, UCCL_LOG_WARN);
    snprintf(expected, sizeof expected,
             "UCCL_CONF_FILE (%s:3) is not a parameter and has no effect", home_file);
    cr_assert_str_eq(lines[1].text, expected);
}

Test(config, line_that_sets_nothing_is_an_error)
{
    char expected[300];
    write_file(home_file, "MTU=1400\nACK_EVERY 9\n");
    snprintf(expected, sizeof expected, "%s:2: expected NAME=VALUE, found \"ACK_EVERY 9\"",
             home_file);
    expect_refused(NULL, expected);
    write_file(home_file, " = 9\n");
    snprintf(expected, sizeof expected, "%s:1: expected NAME=VALUE, found \"= 9\"", home_file);
    expect_refused(NULL, expected);
}

Test(config, lines_and_values_have_limits)
{
    char line[1200], expected[300];
    memset(line, 'e', sizeof line);
    memcpy(line, "SOCKET_IFNAME=", 14);
    strcpy(line + 14 + 255, "\n");
    write_file(home_file, line);
    expect_resolved(NULL);
    cr_assert_eq(strlen(params.socket_ifname), 255);

    strcpy(line + 14 + 255, "e\n");
    write_file(home_file, line);
    snprintf(expected, sizeof expected,
             "%s:1: the value of UCCL_SOCKET_IFNAME is longer than 255 bytes", home_file);
    expect_refused(NULL, expected);

    memset(line, '#', sizeof line);
    strcpy(line + 1023, "\n");
    write_file(home_file, line);
    expect_resolved(NULL);
    strcpy(line + 1023, "#\n");
    write_file(home_file, line);
    snprintf(expected, sizeof expected, "%s:1: not a text line of at most 1023 bytes", home_file);
    expect_refused(NULL, expected);

    setenv("UCCL_CONF_FILE", "/dev/zero", 1);
    expect_refused(NULL, "/dev/zero:1: not a text line of at most 1023 bytes");
}

/* ---- rules between parameters ---- */

static void expect_power_of_two(const char *name, const char *bad, const char *good,
                                const char *range)
{
    char expected[300];
    uccl_config *config = new_config();
    cr_assert_eq(uccl_config_set(config, name, bad), UCCL_OK, "alone it is in range");
    snprintf(expected, sizeof expected,
             "parameter %s: value \"%s\" (setter) is not allowed; allowed: a power of two in %s",
             name, bad, range);
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
