/* The control of the emulator (emu.h): options, injections, counters, reports. */
#include "emu_launch.h"
#include "machine.h"
#include "runtime.h"

#include <algorithm>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

namespace emu {

uint64_t random_u64(Runtime &r) {
    uint64_t z = r.random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double now() {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

/* ---- options ---- */

static size_t parse_bytes(const char *text) {
    char *end;
    double v = strtod(text, &end);
    size_t unit = *end == 'K' ? size_t(1) << 10 : *end == 'M' ? size_t(1) << 20 : *end == 'G' ? size_t(1) << 30 : 1;
    return size_t(v * double(unit));
}

static const char *const call_names[EMU_CALLS] = {"malloc", "host_alloc",   "launch", "copy",
                                                  "sync",   "graph_launch", "create", "matmul", "collective"};

/* A broken INFERD_EMU is a mistake in a test: it ends the program. */
static void bad_environment(const std::string &item) {
    fprintf(stderr, "INFERD_EMU: \"%s\" is not understood\n", item.c_str());
    abort();
}

static void parse_injection(Runtime &r, const std::string &item, const std::string &value, bool stall) {
    char name[32];
    unsigned long long n, count = 1;
    double what;
    int got = sscanf(value.c_str(), "%31[a-z_]:%llu:%lf:%llu", name, &n, &what, &count);
    for (int c = 0; got >= 3 && n > 0 && count > 0 && c < EMU_CALLS; c++) {
        if (strcmp(name, call_names[c]) == 0) {
            r.injections.push_back(
                {emu_call(c), n, n + count - 1, stall ? cudaSuccess : cudaError_t(int(what)), stall ? what : 0});
            return;
        }
    }
    bad_environment(item);
}

static void parse_item(Runtime &r, const std::string &item) {
    emu_options &o = r.options;
    size_t eq = item.find('=');
    std::string key = item.substr(0, eq), value = eq == std::string::npos ? "" : item.substr(eq + 1);
    if (key == "fast" && value.empty()) {
        o.order = EMU_ORDER_EAGER;
        o.protect = o.poison = false;
    } else if (value.empty()) {
        bad_environment(item);
    } else if (key == "devices") {
        o.devices = atoi(value.c_str());
    } else if (key == "name") {
        snprintf(o.name, sizeof o.name, "%s", value.c_str());
    } else if (key == "sm") {
        o.sm_count = atoi(value.c_str());
    } else if (key == "compute") {
        o.compute = atoi(value.c_str());
    } else if (key == "memory") {
        o.memory_bytes = parse_bytes(value.c_str());
    } else if (key == "context") {
        o.context_bytes = parse_bytes(value.c_str());
    } else if (key == "driver") {
        o.driver_version = atoi(value.c_str());
    } else if (key == "order" && value == "random") {
        o.order = EMU_ORDER_RANDOM;
    } else if (key == "order" && value == "lazy") {
        o.order = EMU_ORDER_LAZY;
    } else if (key == "order" && value == "eager") {
        o.order = EMU_ORDER_EAGER;
    } else if (key == "seed") {
        o.seed = strtoull(value.c_str(), nullptr, 0);
    } else if (key == "protect") {
        o.protect = value != "0";
    } else if (key == "poison") {
        o.poison = value != "0";
    } else if (key == "align") {
        o.alignment = parse_bytes(value.c_str());
    } else if (key == "kernels") {
        o.no_kernels = value == "0";
    } else if (key == "peers") {
        o.peers = value == "0" ? EMU_PEERS_NONE : value == "lie" ? EMU_PEERS_LIE : value == "pcie" ? EMU_PEERS_PCIE : EMU_PEERS;
    } else if (key == "verbose") {
        o.verbose = value != "0";
    } else if (key == "inject") {
        parse_injection(r, item, value, false);
    } else if (key == "stall") {
        parse_injection(r, item, value, true);
    } else if (key == "trigger") {
        r.trigger = value;
    } else {
        bad_environment(item);
    }
}

static bool valid_options(const emu_options &o) {
    return o.devices >= 0 && o.devices <= EMU_MAX_DEVICES && o.sm_count > 0 && o.compute >= 80 &&
           (o.alignment == 16 || o.alignment == 256) && o.context_bytes <= o.memory_bytes && o.order >= 0 &&
           o.order <= EMU_ORDER_EAGER && memchr(o.name, 0, sizeof o.name);
}

void start_devices(Runtime &r) {
    r.random = r.options.seed;
    r.devices = std::vector<Device>(size_t(r.options.devices));
    for (size_t i = 0; i < r.devices.size(); i++) {
        r.devices[i].legacy.handle = cudaStreamLegacy;
        r.devices[i].legacy.device = int(i);
    }
}

/* The machine that runs kernels takes part in the same choices. */
static void set_machine(const emu_options &o) {
    emu_set_order_seed(o.order == EMU_ORDER_EAGER ? 0 : o.seed);
    emu_set_poison(o.poison);
}

Runtime::Runtime() {
    emu_default_options(&options);
    if (const char *text = getenv("INFERD_EMU")) {
        std::string all = text;
        for (size_t at = 0; at < all.size();) {
            size_t end = std::min(all.find(',', at), all.size());
            parse_item(*this, all.substr(at, end - at));
            at = end + 1;
        }
    }
    if (!valid_options(options)) {
        bad_environment(getenv("INFERD_EMU") ? getenv("INFERD_EMU") : "");
    }
    start_devices(*this);
    if (getenv("INFERD_EMU")) {
        set_machine(options);
    }
    arm_handler();
}

/* Never destroyed: threads may still use it when the program ends. */
Runtime &runtime() {
    static Runtime *r = new Runtime;
    return *r;
}

cudaError_t note(Runtime &r, cudaError_t code, const char *format, ...) {
    char text[1024];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    r.report = std::string(text) + " (" + cudaGetErrorName(code) + ")";
    if (r.options.verbose) {
        fprintf(stderr, "emulator: %s\n", r.report.c_str());
    }
    return code;
}

cudaError_t inject(Runtime &r, Lock &lock, emu_call call, cudaError_t *asynchronous) {
    r.counts.calls[call]++;
    if (r.injections.empty() || (!r.trigger.empty() && access(r.trigger.c_str(), F_OK) != 0)) {
        return cudaSuccess;
    }
    uint64_t n = ++r.seen[call];
    double stall = 0;
    cudaError_t code = cudaSuccess;
    for (const Injection &i : r.injections) {
        if (i.call == call && n >= i.first && n <= i.last) {
            stall += i.stall;
            code = i.code != cudaSuccess ? i.code : code;
        }
    }
    if (stall > 0) {
        lock.unlock();
        struct timespec t = {time_t(stall), long((stall - double(time_t(stall))) * 1e9)};
        nanosleep(&t, nullptr);
        lock.lock();
    }
    if (code == cudaSuccess) {
        return cudaSuccess;
    }
    if (is_sticky(code)) {
        if (asynchronous) {
            *asynchronous = code;
            return cudaSuccess;
        }
        here(r).sticky = code;
    }
    return fail(r, code, "injected into call %llu of %s", (unsigned long long)n, call_names[call]);
}

} // namespace emu

using namespace emu;

extern "C" {

void emu_default_options(struct emu_options *options) {
    *options = {};
    options->devices = 1;
    snprintf(options->name, sizeof options->name, "Emulated GPU");
    options->sm_count = 4;
    options->compute = 80;
    options->memory_bytes = size_t(2) << 30;
    options->context_bytes = size_t(16) << 20;
    options->driver_version = CUDART_VERSION;
    options->order = EMU_ORDER_RANDOM;
    options->seed = 1;
    options->protect = options->poison = true;
    options->alignment = 16;
}

void emu_get_options(struct emu_options *options) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    *options = r.options;
}

cudaError_t emu_configure(const struct emu_options *options) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    if (!valid_options(*options)) {
        return fail(r, cudaErrorInvalidValue, "emu_configure: nonsense");
    }
    for (size_t i = 0; i < r.devices.size(); i++) {
        while (r.devices[i].busy) {
            r.changed.wait(lock);
        }
        end_device(r, lock, int(i));
    }
    r.nccl = nullptr;
    r.execs.clear();
    r.graphs.clear();
    r.injections.clear();
    r.freed.clear();
    r.counts = {};
    r.report.clear();
    r.options = *options;
    start_devices(r);
    set_machine(r.options);
    use_first_device();
    return cudaSuccess;
}

void emu_inject(enum emu_call call, uint64_t n, uint64_t count, cudaError_t code) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    r.injections.push_back({call, r.seen[call] + n, r.seen[call] + n + count - 1, code, 0});
}

void emu_inject_stall(enum emu_call call, uint64_t n, double seconds) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    r.injections.push_back({call, r.seen[call] + n, r.seen[call] + n, cudaSuccess, seconds});
}

void emu_inject_clear(void) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    r.injections.clear();
}

void emu_get_counts(struct emu_counts *counts) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    *counts = r.counts;
    counts->allocations = r.allocations.size();
    counts->streams = r.streams.size();
    counts->events = r.events.size();
    counts->graphs = r.graphs.size() + r.execs.size();
    counts->pending = r.pending.size();
    for (const auto &a : r.allocations) {
        if (!a.second.host) {
            counts->device_bytes[a.second.device] += a.second.size;
        } else {
            counts->host_bytes += a.second.size;
        }
    }
}

void emu_reset_counts(void) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    r.counts = {};
}

void emu_get_report(char *text, size_t size) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    snprintf(text, size, "%s", r.report.c_str());
}

size_t emu_check_memory(void) {
    Runtime &r = runtime();
    Lock lock(r.mutex);
    return check_canaries(r);
}
}
