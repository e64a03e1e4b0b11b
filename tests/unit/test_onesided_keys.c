/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of exported memory, over a verbs device that checks them (fake_rdma.h): each export has one of its own, which
 * ends with it. A peer that has learned it writes neither beyond the export nor later.
 */
#include "gdr_pair.h"
#include "onesided_pair.h"

enum { BYTES = 1 << 20, PART = 300000 };

static uint32_t last_key;   /* that a write has named */
static uint32_t forged_key; /* the next write names this one instead */
static uint64_t forged_by;  /* and an address so far behind its own */

static void forge(struct ibv_send_wr *wr)
{
    if (forged_key || forged_by) {
        wr->wr.rdma.rkey = forged_key ? forged_key : wr->wr.rdma.rkey;
        wr->wr.rdma.remote_addr += forged_by;
        forged_key = 0;
        forged_by = 0;
        return;
    }
    last_key = wr->wr.rdma.rkey;
}

static void set_up(void)
{
    gdr_set_up();
    fake_keys.checked = true;
    fake_keys.forge = forge;
}

TestSuite(onesided_keys, .init = set_up, .timeout = 60);

/* Engine 1 exports memory to engine 0, and queue pairs are up. */
static struct one open_keys(bool rc, unsigned access)
{
    struct one one = {0};
    open_gdr("off", "sys", "RCMODE", rc ? "1" : "0");
    warm_up();
    one.pair = pair;
    one_begin(&one, BYTES, access);
    return one;
}

static void close_keys(struct one *one)
{
    IS(uccl_remote_free(one->remote), 0);
    close_gdr();
    free(one->local);
    free(one->memory);
}

static int status_of(uccl_request *request)
{
    return uccl_wait(request, SOON_MS, NULL);
}

/* Writes until one was placed: after a failure queue pairs come back by and by. */
static uint32_t key_of_write(const struct one *one)
{
    uint64_t end_ms = now_ms() + SOON_MS;
    for (last_key = 0; last_key == 0;) {
        IS(status_of(post_write(one, 0, PART, 0)), 0);
        cr_assert_lt(now_ms(), end_ms, "nothing is placed");
    }
    return last_key;
}

/* Another export of the same memory. */
static struct one again(const struct one *one, size_t length)
{
    struct one other = *one;
    IS(uccl_export_mr(one->mr[1], one->memory, length, ALL, other.ref, &other.exported), 0);
    IS(uccl_import(one->pair.conn[0], other.ref, &other.remote), 0);
    return other;
}

Test(onesided_keys, each_export_has_its_own)
{
    struct one one = open_keys(true, ALL), other = again(&one, PART);
    uint32_t key = key_of_write(&one), other_key = key_of_write(&other);
    cr_assert_neq(key, other_key);
    IS(uccl_revoke(other.exported, -1), 0);
    cr_assert_not(fake_key_lives(other_key));
    cr_assert(fake_key_lives(key));
    IS(status_of(post_write(&other, 0, PART, 0)), UCCL_EACCESS);
    cr_assert_eq(key_of_write(&one), key, "the first one goes on");
    IS(uccl_remote_free(other.remote), 0);
    close_keys(&one);
}

/* A peer uses a key that it has learned: on RC the queue pair fails, on UC the write is lost. */
static void old_key(bool rc)
{
    struct one one = open_keys(rc, ALL), other = again(&one, BYTES);
    uint32_t key = key_of_write(&other);
    IS(uccl_revoke(other.exported, -1), 0);
    unsigned refused = fake_keys.refused;
    uint64_t end_ms = now_ms() + SOON_MS;
    memset(one.memory, 0, BYTES);
    for (forged_key = key; fake_keys.refused == refused;) {
        IS(status_of(post_write(&one, 0, PART, BYTES - PART)), 0);
        cr_assert_lt(now_ms(), end_ms);
    }
    cr_assert_eq(memcmp(one.memory + BYTES - PART, one.local, PART), 0, "an honest peer's bytes come another way");
    for (size_t i = 0; i < BYTES - PART; i++)
        cr_assert_eq(one.memory[i], 0);
    IS(status_of(post_write(&other, 0, PART, 0)), UCCL_EACCESS);
    key_of_write(&one);
    IS(uccl_remote_free(other.remote), 0);
    close_keys(&one);
}

Test(onesided_keys, an_old_key_writes_nothing_rc)
{
    old_key(true);
}

Test(onesided_keys, an_old_key_writes_nothing_uc)
{
    old_key(false);
}

Test(onesided_keys, a_key_reaches_no_further_than_its_export)
{
    struct one one = open_keys(true, ALL), other = again(&one, PART);
    unsigned refused = fake_keys.refused;
    uint64_t end_ms = now_ms() + SOON_MS;
    key_of_write(&other);
    memset(one.memory, 0, BYTES);
    for (forged_by = PART; fake_keys.refused == refused;) {
        IS(status_of(post_write(&other, 0, PART, 0)), 0);
        cr_assert_lt(now_ms(), end_ms);
    }
    for (size_t i = PART; i < BYTES; i++)
        cr_assert_eq(one.memory[i], 0, "byte %zu, beyond the export, in the same registration", i);
    IS(uccl_remote_free(other.remote), 0);
    close_keys(&one);
}

/* Nobody learns a key of memory that is only read. */
Test(onesided_keys, what_is_only_read_has_none)
{
    struct one one = open_keys(true, UCCL_ACCESS_READ);
    unsigned regions = fake_nic.mrs_alive;
    struct one other = one;
    IS(uccl_export_mr(one.mr[1], one.memory, PART, UCCL_ACCESS_READ, other.ref, &other.exported), 0);
    cr_assert_eq(fake_nic.mrs_alive, regions);
    IS(status_of(post_write(&one, 0, PART, 0)), UCCL_EACCESS);
    IS(status_of(post_read(&one, 0, PART, 0)), 0);
    cr_assert_eq(memcmp(one.local, one.memory, PART), 0);
    IS(uccl_revoke(other.exported, -1), 0);
    close_keys(&one);
}

/* The key by which answers come ends with the registration of the reader's memory. */
Test(onesided_keys, a_read_grants_for_its_time)
{
    struct one one = open_keys(true, ALL);
    uint64_t end_ms = now_ms() + SOON_MS;
    for (last_key = 0; last_key == 0;) {
        IS(status_of(post_read(&one, 0, PART, 0)), 0);
        cr_assert_lt(now_ms(), end_ms);
    }
    uint32_t key = last_key;
    cr_assert(fake_key_lives(key));
    IS(uccl_dereg_mr(one.mr[0]), 0);
    cr_assert_not(fake_key_lives(key));
    close_keys(&one);
}
