/* This process as the system sees it: the process_* numbers that Prometheus clients tell. Any thread. */
#ifndef INFERD_PROCESS_STATS_H
#define INFERD_PROCESS_STATS_H

struct process_stats {
    double start_time; /* Unix time, to 10 ms; the same at each call */
    double cpu_seconds;
    double resident_bytes, virtual_bytes;
    double virtual_max_bytes; /* 2^64 - 1: no limit */
    double open_fds, max_fds;
    double threads;
};

/* What /proc does not tell (it may be hidden) is 0. */
void process_stats_read(struct process_stats *out);

#endif
