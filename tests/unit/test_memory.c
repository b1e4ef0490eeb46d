#include "memory.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct kv_plan_input usual = {
    .available = (size_t)8 << 30,
    .utilization = 0.5,
    .weight_bytes = (size_t)1 << 30,
    .workspace_bytes = (size_t)100 << 20,
    .token_bytes = 1 << 15,
    .block_size = 16,
    .context_length = 8192,
    .max_sequences = 4,
};

static struct kv_plan plan(const struct kv_plan_input *in) {
    struct kv_plan p;
    struct error err;
    cr_assert_eq(kv_plan_make(in, &p, &err), 0, "%s", err.message);
    cr_assert_geq(p.n_blocks * in->block_size, p.max_model_len);
    double used = (double)(p.n_blocks * in->block_size * in->token_bytes + in->weight_bytes + in->workspace_bytes);
    cr_assert_leq(used, (double)in->available * in->utilization);
    return p;
}

static struct error fails(const struct kv_plan_input *in, enum error_code code) {
    struct kv_plan p;
    struct error err;
    cr_assert_eq(kv_plan_make(in, &p, &err), -1);
    cr_assert_eq(err.code, code, "%s", err.message);
    return err;
}

Test(memory, kv_is_what_the_sequences_can_use) {
    struct kv_plan_input in = usual;
    struct kv_plan p = plan(&in);
    cr_assert_eq(p.max_model_len, 8192);
    cr_assert_eq(p.n_blocks * 16, 4 * 4096, "four sequences of the usual length");
    in.max_sequences = 1;
    cr_assert_eq(plan(&in).n_blocks * 16, 8192, "one whole context");
    in.context_length = 1000;
    in.max_sequences = 3;
    cr_assert_eq(plan(&in).n_blocks, 188, "3 * 1000 tokens, rounded up to blocks");
}

Test(memory, kv_is_cut_to_the_budget_and_the_context_with_it) {
    struct kv_plan_input in = usual;
    in.context_length = 1 << 20;
    in.max_sequences = 100;
    struct kv_plan p = plan(&in);
    size_t affordable = ((size_t)4 << 30) - in.weight_bytes - in.workspace_bytes;
    cr_assert_eq(p.n_blocks, affordable / in.token_bytes / 16);
    cr_assert_eq(p.max_model_len, p.n_blocks * 16);
    in.available = (size_t)64 << 30;
    cr_assert_eq(plan(&in).n_blocks * 16 * in.token_bytes, KV_PLAN_MOST_BYTES, "never more than a few GiB unasked");
}

Test(memory, what_was_asked_for_is_given_or_refused_with_numbers) {
    struct kv_plan_input in = usual;
    in.kv_tokens = 1000;
    cr_assert_eq(plan(&in).n_blocks, 63);
    cr_assert_eq(plan(&in).max_model_len, 1008);
    in.max_model_len = 2000;
    fails(&in, ERROR_DOES_NOT_FIT);
    in.kv_tokens = 0;
    cr_assert_eq(plan(&in).max_model_len, 2000);
    in.max_model_len = 8193;
    cr_assert_str_eq(fails(&in, ERROR_INVALID).param, "max_model_len");
    in.max_model_len = 8192;
    in.token_bytes = 1 << 20;
    cr_assert(strstr(fails(&in, ERROR_DOES_NOT_FIT).message, "8192 tokens 8192 MiB"));
    in = usual;
    in.kv_tokens = 1 << 20;
    fails(&in, ERROR_DOES_NOT_FIT);
    in = usual;
    in.weight_bytes = (size_t)5 << 30;
    cr_assert(strstr(fails(&in, ERROR_DOES_NOT_FIT).message, "5120 MiB"));
}

static void put(const char *folder, const char *name, const char *content) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = '\0';
        mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f, "%s", path);
    fputs(content, f);
    fclose(f);
}

Test(memory, the_tightest_cgroup_counts) {
    char root[] = "/tmp/inferd-test-XXXXXX", proc[64], cgroup[64], command[128];
    size_t bytes;
    struct error err;
    cr_assert_not_null(mkdtemp(root));
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(cgroup, sizeof cgroup, "%s/cgroup", root);
    cr_assert_eq(memory_available_at(proc, cgroup, &bytes, &err), -1);
    put(proc, "meminfo", "MemTotal:       99 kB\nMemFree:        7 kB\nMemAvailable:   4000 kB\n");
    cr_assert_eq(memory_available_at(proc, cgroup, &bytes, &err), 0);
    cr_assert_eq(bytes, 4000 * 1024);
    put(proc, "self/cgroup", "0::/a/b\n");
    put(cgroup, "a/memory.max", "3000000\n");
    put(cgroup, "a/memory.current", "1000000\n");
    put(cgroup, "a/memory.stat", "anon 600000\nfile 400000\nfile_mapped 5\n");
    put(cgroup, "a/b/memory.max", "max\n");
    cr_assert_eq(memory_available_at(proc, cgroup, &bytes, &err), 0);
    cr_assert_eq(bytes, 3000000 - 600000, "the parent's limit; file pages can be given up");
    put(cgroup, "a/b/memory.max", "500\n");
    put(cgroup, "a/b/memory.current", "700\n");
    cr_assert_eq(memory_available_at(proc, cgroup, &bytes, &err), 0);
    cr_assert_eq(bytes, 0);
    snprintf(command, sizeof command, "rm -r %s", root);
    cr_assert_eq(system(command), 0);
}

Test(memory, this_machine_has_some) {
    size_t bytes;
    struct error err;
    cr_assert_eq(memory_available(&bytes, &err), 0, "%s", err.message);
    cr_assert_gt(bytes, (size_t)1 << 20);
}
