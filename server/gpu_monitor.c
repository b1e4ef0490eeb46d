#include "gpu_monitor.h"

#include "gpu_library.h"

#include <errno.h>
#include <fcntl.h>
#include <inferd/clock.h>
#include <inferd/log.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FAILURES 2          /* in a row: one may be a hiccup */
#define CLOSE_WAIT_MS 1000  /* for a call into the driver that is under way */
#define MAX_XIDS_A_TURN 100 /* a driver that reports without end must not keep the thread from its work */

enum trouble { TROUBLE_NONE, TROUBLE_ERROR, TROUBLE_NODES };

/* Files that a process must be able to open to get at the GPU: gone when a container loses its devices, while what was
 * opened before still works for a time. */
#define NODES 2
struct nodes {
    char paths[NODES][128];
    bool could[NODES]; /* at the first look */
};

struct gpu_monitor {
    struct gpu_monitor_config config;
    struct gpu_library library;
    _Atomic double values[GPU_VALUES];
    atomic_uint_fast64_t turn_ns; /* clock_now_ns when the thread last was free of the driver, 0 before the first time */
    atomic_int trouble;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stop, gone; /* under the lock */
    pthread_t thread;

    /* the thread's own */
    void *device, *events;
    struct nodes nodes;
    unsigned int failures;
};

static void set(struct gpu_monitor *m, enum gpu_value what, double value) {
    atomic_store_explicit(&m->values[what], value, memory_order_relaxed);
}

static double get(const struct gpu_monitor *m, enum gpu_value what) {
    return atomic_load_explicit(&m->values[what], memory_order_relaxed);
}

/* ---- the thread ---------------------------------------------------------------------------------------------- */

static bool can_open(const char *path) {
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        close(fd);
    }
    return fd >= 0;
}

static void find_nodes(struct gpu_monitor *m) {
    unsigned int minor = 0;
    struct nodes *n = &m->nodes;
    snprintf(n->paths[0], sizeof n->paths[0], "%.100s/nvidiactl", m->config.dev);
    if (m->library.minor_number && m->library.minor_number(m->device, &minor) == NVML_SUCCESS) {
        snprintf(n->paths[1], sizeof n->paths[1], "%.100s/nvidia%u", m->config.dev, minor);
    }
    for (size_t i = 0; i < NODES; i++) {
        n->could[i] = n->paths[i][0] && can_open(n->paths[i]);
    }
}

/* The first node that could be opened and cannot any more, NULL if there is none. */
static const char *lost_node(const struct nodes *n) {
    for (size_t i = 0; i < NODES; i++) {
        if (n->could[i] && !can_open(n->paths[i]) && errno != EMFILE && errno != ENFILE) {
            return n->paths[i];
        }
    }
    return NULL;
}

static void take_xids(struct gpu_monitor *m) {
    struct nvml_event event = {0};
    for (int i = 0; m->events && i < MAX_XIDS_A_TURN && m->library.event_wait(m->events, &event, 0) == NVML_SUCCESS; i++) {
        if (event.type == NVML_EVENT_XID) {
            log_error("the driver reports Xid %llu of the GPU", event.data);
            set(m, GPU_LAST_XID, (double)event.data);
            set(m, GPU_XIDS, get(m, GPU_XIDS) + 1);
        }
    }
}

/* Values that not every GPU has: NaN, and counts as they were. */
static void take_figures(struct gpu_monitor *m) {
    const struct gpu_library *l = &m->library;
    struct nvml_utilization busy;
    unsigned int n;
    unsigned long long big;
    set(m, GPU_TEMPERATURE,
        l->temperature && l->temperature(m->device, NVML_TEMPERATURE_GPU, &n) == NVML_SUCCESS ? (double)n : NAN);
    set(m, GPU_POWER, l->power && l->power(m->device, &n) == NVML_SUCCESS ? (double)n / 1000 : NAN);
    set(m, GPU_BUSY,
        l->utilization && l->utilization(m->device, &busy) == NVML_SUCCESS ? (double)busy.gpu / 100 : NAN);
    if (l->energy && l->energy(m->device, &big) == NVML_SUCCESS) {
        set(m, GPU_ENERGY, (double)big / 1000);
    }
    if (l->ecc_errors && l->ecc_errors(m->device, NVML_ECC_CORRECTED, NVML_ECC_VOLATILE, &big) == NVML_SUCCESS) {
        set(m, GPU_ECC_CORRECTED, (double)big);
    }
    if (l->ecc_errors && l->ecc_errors(m->device, NVML_ECC_UNCORRECTED, NVML_ECC_VOLATILE, &big) == NVML_SUCCESS) {
        set(m, GPU_ECC_UNCORRECTED, (double)big);
    }
    if (l->throttle && l->throttle(m->device, &big) == NVML_SUCCESS) {
        set(m, GPU_THROTTLE, (double)big);
    }
}

/* Memory is what every GPU tells, or says that it does not have; so it shows whether the driver answers at all. */
static void look(struct gpu_monitor *m) {
    struct nvml_memory memory;
    int rc = m->library.memory(m->device, &memory);
    bool answers = rc == NVML_SUCCESS || rc == NVML_NOT_SUPPORTED;
    const char *node = answers ? lost_node(&m->nodes) : NULL;
    set(m, GPU_UP, answers && !node);
    if (rc == NVML_SUCCESS) {
        set(m, GPU_MEMORY_USED, (double)memory.used);
        set(m, GPU_MEMORY_TOTAL, (double)memory.total);
    }
    if (answers) {
        take_figures(m);
    }
    take_xids(m);
    if (answers && !node) {
        if (atomic_load(&m->trouble) != TROUBLE_NONE) {
            log_info("the GPU can be reached again");
        }
        m->failures = 0;
        atomic_store(&m->trouble, TROUBLE_NONE);
    } else if (++m->failures == FAILURES) {
        if (node) {
            log_error("%s cannot be opened any more: the GPU was taken from this container or process; it gets it back when "
                      "it is started again",
                      node);
        } else {
            log_error("the driver gives an error for the GPU: %s", gpu_library_error(&m->library, rc));
        }
        atomic_store(&m->trouble, node ? TROUBLE_NODES : TROUBLE_ERROR);
    }
}

static bool begin(struct gpu_monitor *m) {
    const struct gpu_library *l = &m->library;
    int rc = l->init();
    if (rc == NVML_SUCCESS) {
        rc = gpu_library_device(l, m->config.libcuda, m->config.ordinal, &m->device);
    }
    if (rc != NVML_SUCCESS) {
        log_warn("no figures of the GPU in the metrics: NVIDIA's management library says: %s", gpu_library_error(l, rc));
        return false;
    }
    if (l->event_set_create && l->event_register && l->event_wait && l->event_set_free &&
        l->event_set_create(&m->events) == NVML_SUCCESS &&
        l->event_register(m->device, NVML_EVENT_XID, m->events) != NVML_SUCCESS) {
        l->event_set_free(m->events);
        m->events = NULL;
    }
    find_nodes(m);
    return true;
}

/* False: told to stop. */
static bool pause_a_while(struct gpu_monitor *m) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + m->config.period_ms * (uint64_t)1000000;
    until.tv_sec += (time_t)(ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&m->lock);
    while (!m->stop && pthread_cond_timedwait(&m->changed, &m->lock, &until) != ETIMEDOUT) {
    }
    bool go_on = !m->stop;
    pthread_mutex_unlock(&m->lock);
    return go_on;
}

static void *watch(void *arg) {
    struct gpu_monitor *m = arg;
    pthread_setname_np(pthread_self(), "gpu monitor");
    if (begin(m)) {
        do {
            look(m);
            atomic_store(&m->turn_ns, clock_now_ns());
        } while (pause_a_while(m));
        if (m->events) {
            m->library.event_set_free(m->events);
        }
        m->library.shutdown();
    }
    pthread_mutex_lock(&m->lock);
    m->gone = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- the others ---------------------------------------------------------------------------------------------- */

int gpu_monitor_open(const struct gpu_monitor_config *config, struct gpu_monitor **out, struct error *err) {
    struct gpu_monitor *m = calloc(1, sizeof *m);
    if (!m) {
        return error_memory(err);
    }
    m->config = *config;
    if (gpu_library_load(config->library, &m->library, err) != 0) {
        free(m);
        return -1;
    }
    static const enum gpu_value unknown[] = {GPU_MEMORY_USED, GPU_MEMORY_TOTAL, GPU_TEMPERATURE, GPU_POWER, GPU_BUSY};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        set(m, unknown[i], NAN);
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&m->lock, NULL);
    sigset_t all, before;
    sigfillset(&all); /* signals are the loop's business */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&m->thread, NULL, watch, m);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0) {
        pthread_cond_destroy(&m->changed);
        pthread_mutex_destroy(&m->lock);
        gpu_library_unload(&m->library);
        free(m);
        return error_set(err, ERROR_IO, "a thread cannot be started: %s", strerror(rc));
    }
    *out = m;
    return 0;
}

/* What exit() does once a thread hangs in the driver: nothing but to write out what was printed. */
static void leave_at_once(int status, void *arg) {
    (void)arg;
    fflush(NULL);
    _exit(status);
}

bool gpu_monitor_close(struct gpu_monitor *m) {
    if (!m) {
        return true;
    }
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += CLOSE_WAIT_MS / 1000;
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_broadcast(&m->changed);
    while (!m->gone && pthread_cond_timedwait(&m->changed, &m->lock, &until) != ETIMEDOUT) {
    }
    bool gone = m->gone;
    pthread_mutex_unlock(&m->lock);
    if (!gone) {
        pthread_detach(m->thread);
        on_exit(leave_at_once, NULL);
        return false;
    }
    pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    gpu_library_unload(&m->library);
    free(m);
    return true;
}

/* Not before its first answer: waking up many GPUs takes long, and CUDA waits for the same. */
static bool hangs(const struct gpu_monitor *m) {
    uint64_t patience = (uint64_t)(m->config.period_ms + m->config.patience_ms) * 1000000, turn = atomic_load(&m->turn_ns);
    return turn != 0 && clock_now_ns() > turn + patience;
}

void gpu_monitor_read(const struct gpu_monitor *m, double out[GPU_VALUES]) {
    for (size_t i = 0; i < GPU_VALUES; i++) {
        out[i] = get(m, (enum gpu_value)i);
    }
    if (hangs(m)) {
        out[GPU_UP] = 0;
    }
}

const char *gpu_monitor_trouble(const struct gpu_monitor *m) {
    if (!m) {
        return NULL;
    }
    if (hangs(m)) {
        return "the GPU's driver does not answer";
    }
    switch ((enum trouble)atomic_load(&m->trouble)) {
    case TROUBLE_NONE:
        break;
    case TROUBLE_ERROR:
        return "the GPU's driver gives an error for it";
    case TROUBLE_NODES:
        return "the GPU's device nodes cannot be opened any more";
    }
    return NULL;
}
