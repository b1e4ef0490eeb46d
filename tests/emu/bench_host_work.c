/*
 * The host's work for a decode step on the CUDA backend: the engine thread's CPU time with an emulated device that does
 * nothing (kernels=0), by sequences, with graphs and without.
 *
 *     bench_host_work MODULE MODEL [WEIGHTS]
 *
 * "ours" leaves out what the emulator's runtime takes for its calls, and holds the part of a launch that is in the header
 * of kernels, some tenths of a microsecond each. What a driver takes is not in it: the calls are counted beside.
 */
#include "harness.h"

#include "emu.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STEPS = 200, ROUNDS = 5, MOST = 256, PROMPT = 8, ANSWER = ROUNDS * STEPS + 400 };

struct reading {
    uint64_t cpu_ns, steps;
    struct emu_counts counts;
};

/* The CPU clock of the thread named "engine", as Linux numbers clocks of threads. */
static clockid_t engine_clock(void) {
    DIR *tasks = opendir("/proc/self/task");
    clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", d->d_name);
        FILE *f = fopen(path, "r");
        if (f && fgets(name, sizeof name, f) && strcmp(name, "engine\n") == 0) {
            clock = (clockid_t)(~(unsigned)atoi(d->d_name) << 3 | 6);
        }
        if (f) {
            fclose(f);
        }
    }
    if (tasks) {
        closedir(tasks);
    }
    return clock;
}

static uint64_t engine_cpu_ns(void) {
    static clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
    struct timespec t;
    if (clock == CLOCK_PROCESS_CPUTIME_ID || clock_gettime(clock, &t) != 0) { /* another engine since */
        clock = engine_clock();
        clock_gettime(clock, &t);
    }
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void read_all(struct engine *e, struct reading *out) {
    struct engine_stats s;
    engine_get_stats(e, &s);
    emu_get_counts(&out->counts);
    out->steps = s.steps;
    out->cpu_ns = engine_cpu_ns();
}

/* Take events until so many steps were done. */
static void run_to(struct engine *e, uint64_t steps) {
    static struct engine_event event;
    struct engine_stats s;
    do {
        if (engine_wait(e, &event, 1000) && event.kind == ENGINE_EVENT_ERROR) {
            printf("FAIL %s\n", event.error.message);
            exit(1);
        }
        engine_get_stats(e, &s);
    } while (s.steps < steps);
}

static void measure(struct engine *e, size_t batch, bool graphs) {
    static uint64_t id = 1;
    struct reading a, b;
    double best = 0, ours = 0, calls[3] = {0};
    uint64_t first = id;
    for (size_t i = 0; i < batch; i++, id++) {
        struct engine_request r = plain_request(id, PROMPT, ANSWER);
        r.ignore_eos = true;
        r.sampling.temperature = 0.7f;
        r.sampling.top_p = 0.95f;
        submit(e, &r);
    }
    read_all(e, &a);
    run_to(e, a.steps + 100); /* prompts are computed */
    for (int round = 0; round < ROUNDS; round++) {
        read_all(e, &a);
        run_to(e, a.steps + STEPS);
        read_all(e, &b);
        double n = 1000.0 * (double)(b.steps - a.steps), all = (double)(b.cpu_ns - a.cpu_ns) / n;
        double own = all - (double)(b.counts.calls_ns - a.counts.calls_ns) / n;
        if (round == 0 || own < ours) {
            best = all;
            ours = own;
            n /= 1000.0;
            calls[0] = (double)(b.counts.calls[EMU_CALL_LAUNCH] + b.counts.calls[EMU_CALL_MATMUL] - a.counts.calls[EMU_CALL_LAUNCH] -
                                a.counts.calls[EMU_CALL_MATMUL]) /
                       n;
            calls[1] = (double)(b.counts.calls[EMU_CALL_GRAPH_LAUNCH] - a.counts.calls[EMU_CALL_GRAPH_LAUNCH]) / n;
            calls[2] = (double)(b.counts.calls[EMU_CALL_COPY] - a.counts.calls[EMU_CALL_COPY]) / n;
        }
    }
    printf("%-6s %5zu %10.1f %10.1f %10.1f %8.1f %8.1f\n", graphs ? "on" : "off", batch, ours, best, calls[0], calls[1], calls[2]);
    fflush(stdout);
    for (uint64_t i = first; i < id; i++) {
        engine_cancel(e, i);
    }
    static struct engine_event event;
    for (size_t ends = 0; ends < batch;) {
        ends += engine_wait(e, &event, 1000) && (event.kind == ENGINE_EVENT_DONE || event.kind == ENGINE_EVENT_ERROR);
    }
}

int main(int argc, char **argv) {
    static const size_t batches[] = {1, 8, 32, 128, MOST};
    struct emu_options o;
    if (argc < 3) {
        printf("bench_host_work MODULE MODEL [WEIGHTS]\n");
        return 2;
    }
    emu_default_options(&o);
    o.order = EMU_ORDER_EAGER;
    o.protect = o.poison = false;
    o.no_kernels = true;
    o.sm_count = 108;
    o.memory_bytes = (size_t)80 << 30;
    if (emu_configure(&o) != cudaSuccess) {
        return 1;
    }
    fill_prompts();
    printf("graphs batch    ours/us     all/us   launches   graphs   copies   (of a step; least of %d rounds of %d steps)\n", ROUNDS, STEPS);
    for (int graphs = 1; graphs >= 0; graphs--) {
        struct engine_config c = test_config(argv[2], MOST, 512, (size_t)MOST * (PROMPT + ANSWER + 16));
        c.device = "cuda";
        c.cuda_module = argv[1];
        c.cuda_graphs = graphs;
        c.batch_invariant = false;
        c.weights = argc > 3 ? argv[3] : "int8";
        c.max_model_len = PROMPT + ANSWER + 16;
        struct engine *e = open_config(&c);
        for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
            measure(e, batches[i], graphs);
        }
        engine_close(e);
    }
    return 0;
}
