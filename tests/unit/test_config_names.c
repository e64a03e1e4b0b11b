/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters by other names: misspelt ones, those of other libraries, and the file, which has them in lines. */
#include "configured.h"

TestSuite(config_names, .init = config_set_up, .fini = config_tear_down);

/* ---- NCCL_SOCKET_IFNAME ---- */

Test(config_names, nccl_ifname_stands_in)
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

Test(config_names, nccl_ifname_too_long_is_passed_over)
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

Test(config_names, names_that_stand_in_for_verbs_parameters)
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

Test(config_names, minus_one_stands_in_for_nothing)
{
    setenv("NCCL_IB_GID_INDEX", "-1", 1);
    cr_assert_str_eq(seen(NULL, "UCCL_IB_GID_INDEX"), "65535 from default");
    setenv("UCCL_ROCE_GID_IDX", "-1", 1);
    setenv("NCCL_IB_GID_INDEX", "7", 1);
    cr_assert_str_eq(seen(NULL, "UCCL_IB_GID_INDEX"), "7 from environment, NCCL_IB_GID_INDEX");
}

/* They are NCCL's, which may understand more: told once, by name and value, and passed over. */
Test(config_names, stand_ins_that_make_no_sense_are_passed_over)
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
        snprintf(expected, sizeof expected,
                 "%s=\"%s\" (environment), read for %s, is not understood and has no "
                 "effect; allowed: %s",
                 rows[i].name, rows[i].value, rows[i].parameter, rows[i].allowed);
        cr_assert_eq(line_count, 1);
        cr_assert_eq(lines[0].level, UCCL_LOG_WARN);
        cr_assert_str_eq(lines[0].text, expected);
        cr_assert_eq(uccl_param_value(NULL, index_of(rows[i].parameter), value, sizeof value, source, sizeof source),
                     0);
        cr_assert_str_eq(source, "default");
        cr_assert_eq(line_count, 1, "once per process");
    }
    line_count = 0;
    setenv("UCCL_ROCE_GID_IDX", "0x3", 1);
    expect_refused(NULL, "parameter UCCL_IB_GID_INDEX: value \"0x3\" (environment, UCCL_ROCE_GID_IDX) is not allowed; "
                         "allowed: 0..65535 index");
    unsetenv("UCCL_ROCE_GID_IDX");
    setenv("UCCL_IB_GID_INDEX", "", 1);
    expect_refused(NULL,
                   "parameter UCCL_IB_GID_INDEX: value \"\" (environment) is not allowed; allowed: 0..65535 index");
}

/* The first that makes sense counts. */
Test(config_names, a_stand_in_that_makes_no_sense_hides_no_other)
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

Test(config_names, nccls_words_for_switches_and_levels)
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

Test(config_names, nccls_words_for_the_level)
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

Test(config_names, other_nccl_names_stand_in_for_nothing)
{
    setenv("NCCL_MTU", "9000", 1);
    expect_resolved(NULL);
    cr_assert_eq(params.mtu, 0);
    cr_assert_eq(line_count, 0);
}

/* ---- names ---- */

Test(config_names, setter_takes_both_forms_of_a_name_and_no_other)
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

Test(config_names, unknown_name_in_environment_warns_once)
{
    setenv("UCCL_CWND_MAX", "1", 1);
    setenv("UCCL_ZZZZZZZZ", "1", 1);
    expect_resolved(NULL);
    cr_assert_eq(line_count, 2);
    int first = strncmp(lines[0].text, "UCCL_CWND", 9) == 0 ? 0 : 1;
    cr_assert_eq(lines[0].level, UCCL_LOG_WARN);
    cr_assert_str_eq(lines[first].text, "UCCL_CWND_MAX (environment) is not a parameter and has no "
                                        "effect; UCCL_CWND_MAX_KB was probably meant");
    cr_assert_str_eq(lines[!first].text, "UCCL_ZZZZZZZZ (environment) is not a parameter and has no effect");
    expect_resolved(NULL);
    seen(NULL, "UCCL_MTU");
    cr_assert_eq(line_count, 2, "once per process");
    setenv("UCCL_YYYYYYYY", "1", 1);
    expect_resolved(NULL);
    cr_assert_eq(line_count, 3, "another name is news");
}

Test(config_names, likely_names)
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

Test(config_names, a_flood_of_unknown_names_is_bounded)
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

Test(config_names, file_syntax)
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

Test(config_names, unknown_name_in_the_file_warns_once_with_its_line)
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
    snprintf(expected, sizeof expected, "UCCL_CONF_FILE (%s:3) is not a parameter and has no effect", home_file);
    cr_assert_str_eq(lines[1].text, expected);
}

Test(config_names, line_that_sets_nothing_is_an_error)
{
    char expected[300];
    write_file(home_file, "MTU=1400\nACK_EVERY 9\n");
    snprintf(expected, sizeof expected, "%s:2: expected NAME=VALUE, found \"ACK_EVERY 9\"", home_file);
    expect_refused(NULL, expected);
    write_file(home_file, " = 9\n");
    snprintf(expected, sizeof expected, "%s:1: expected NAME=VALUE, found \"= 9\"", home_file);
    expect_refused(NULL, expected);
}

Test(config_names, lines_and_values_have_limits)
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
    snprintf(expected, sizeof expected, "%s:1: the value of UCCL_SOCKET_IFNAME is longer than 255 bytes", home_file);
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
