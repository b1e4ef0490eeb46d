#include "config.h"
#include "engines.h"

#include <inferd/collective.h>

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Sets offset and name, so that the positional initialiser behind it is the type. */
#define AT(field) .offset = offsetof(struct config, field), .name = #field

static const struct setting rows[] = {
    {AT(model), SETTING_STRING, .initial = "", .value = "PATH", .alias = "m", .group = "Model",
     .flags = SETTING_ENGINE | SETTING_MODEL | SETTING_TEXT, .help = "a .gguf file, or a folder with safetensors and tokenizer.json"},
    {AT(chat_template), SETTING_STRING, .initial = "", .value = "TEMPLATE", .group = "Model",
     .flags = SETTING_ENGINE | SETTING_TEXT,
     .help = "chat template to use in place of the model's own: a file in Jinja, the name of one of the model's own, or "
             "of a family: alpaca, chatml, command-r, deepseek-llm, gemma, llama-2, llama-3, mistral, phi-3, solar, "
             "vicuna, zephyr"},
    {AT(served_model_name), SETTING_STRING, .initial = "", .value = "NAMES", .group = "Model", .flags = SETTING_RELOAD,
     .help = "names that clients may use for the model, parted by commas, the first its own; empty: its file or folder name"},
    {AT(max_model_len), SETTING_INT, .initial = "0", .min = 0, .max = 16777216, .alias = "ctx", .group = "Model",
     .flags = SETTING_ENGINE,
     .help = "longest prompt and answer together, in tokens; 0: what the model and memory allow"},

    {AT(host), SETTING_STRING, .initial = "127.0.0.1", .value = "ADDRESSES", .group = "Listening", .flags = SETTING_PLACE,
     .help = "where to listen, several parted by commas: an IPv4 or IPv6 address, localhost, or unix:/path for a socket in the "
             "file system; 0.0.0.0 or :: for all, which wants a key; sockets that systemd hands over replace these"},
    {AT(port), SETTING_INT, .initial = "8080", .min = 0, .max = 65535, .group = "Listening", .flags = SETTING_PLACE,
     .help = "port to listen on; 0: any free one, which the log names"},
    {AT(unix_socket_mode), SETTING_STRING, .initial = "0660", .value = "MODE", .group = "Listening",
     .help = "permissions of a Unix socket's file, in octal"},
    {AT(admin_listen), SETTING_STRING, .initial = "", .value = "ADDRESS:PORT", .group = "Listening", .flags = SETTING_PLACE,
     .help = "a listener apart for /metrics, as 127.0.0.1:9090, [::1]:9090 or unix:/path: then the others have it no longer, "
             "and this one has probes and /version too, but answers no requests to the model; empty: none"},
    {AT(tls_certificate), SETTING_STRING, .initial = "", .value = "FILE", .group = "Listening", .flags = SETTING_PLACE | SETTING_RELOAD,
     .help = "certificate chain in PEM: every TCP address then speaks TLS alone, the admin's too"},
    {AT(tls_key), SETTING_STRING, .initial = "", .value = "FILE", .group = "Listening", .flags = SETTING_RELOAD,
     .help = "its private key in PEM, in a file that others cannot read"},
    {AT(tls_min_version), SETTING_CHOICE, .initial = "1.2", .choices = "1.2 1.3", .group = "Listening",
     .help = "oldest TLS version to agree to"},
    {AT(cors_origins), SETTING_STRING, .initial = "", .value = "ORIGINS", .group = "Listening", .flags = SETTING_RELOAD,
     .help = "web pages whose scripts may use this server, as https://chat.example.org, parted by commas; * for all; empty: "
             "none"},
    {AT(api_key), SETTING_STRING, .initial = "", .value = "KEY", .group = "Listening", .flags = SETTING_SECRET | SETTING_RELOAD,
     .help = "a key that clients must present; better as INFERD_API_KEY, since other users can see flags"},
    {AT(api_keys_file), SETTING_STRING, .initial = "", .value = "FILE", .group = "Listening", .flags = SETTING_RELOAD,
     .help = "file of named keys, as hashes, with scopes and limits (conf/api_keys.example; inferd key makes their lines); empty: "
             "the file api_keys in $CREDENTIALS_DIRECTORY, where there is one (LoadCredential=api_keys:FILE in a systemd unit, which copies it at a start only)"},
    {AT(insecure), SETTING_BOOL, .initial = "false", .group = "Listening", .flags = SETTING_RELOAD,
     .help = "allow an address that others can reach without any key"},

    {AT(device), SETTING_CHOICE, .initial = "auto", .choices = "auto cpu cuda cuda:N null", .group = "Machine", .flags = SETTING_ENGINE,
     .help = "where to compute: cuda is the first GPU, cuda:N the one with that number (from 0); auto takes the first GPU where one "
             "can be used, else the CPU; null computes nothing and makes answers up, to measure the server alone"},
    {AT(threads), SETTING_INT, .initial = "0", .min = 0, .max = 1024, .group = "Machine", .flags = SETTING_ENGINE,
     .help = "CPU threads that compute; 0: all that the process may use"},
    {AT(tensor_parallel), SETTING_INT, .initial = "1", .min = 1, .max = COLLECTIVE_MAX_RANKS, .alias = "tp", .group = "Machine",
     .flags = SETTING_ENGINE,
     .help = "ranks that share each layer, a GPU each (device cuda:N: that one and those behind it), or on a CPU a share of its "
             "threads; as many as the model's heads go to (inferd plan lists them)"},
    {AT(pipeline_parallel), SETTING_INT, .initial = "1", .min = 1, .max = COLLECTIVE_MAX_RANKS, .alias = "pp", .group = "Machine",
     .flags = SETTING_ENGINE,
     .help = "processes that share the layers, started together by mpirun, srun or a LeaderWorkerSet, one a node; the first alone listens"},
    {AT(replicas), SETTING_INT, .initial = "1", .min = 1, .max = ENGINES_MOST, .group = "Machine",
     .help = "engines of this model behind one address, each with its own devices (on a GPU tensor_parallel of them, one behind the other; "
             "on a CPU a share of threads and memory); the settings of KV memory and max_sequences are those of each"},
    {AT(rank_timeout), SETTING_SECONDS, .initial = "30", .min = 0.1, .max = 3600, .group = "Machine", .flags = SETTING_ENGINE,
     .help = "time that ranks and nodes wait for one of them before the device counts as lost"},
    {AT(cpu_variant), SETTING_CHOICE, .initial = "auto", .choices = "auto generic avx2 avx512 vnni amx", .group = "Machine",
     .flags = SETTING_ENGINE, .help = "CPU instructions to use"},
    {AT(weights), SETTING_CHOICE, .initial = "auto", .choices = "auto int8 int8-weight-only bf16", .group = "Machine",
     .flags = SETTING_ENGINE,
     .help = "the number format of the weights, made at load where the file has another; auto: the file's own"},
    {AT(memory_utilization), SETTING_NUMBER, .initial = "0.9", .min = 0.01, .max = 1, .group = "Machine",
     .flags = SETTING_ENGINE, .help = "share of the device's memory that may be used"},
    {AT(batch_invariant), SETTING_BOOL, .initial = "false", .group = "Machine", .flags = SETTING_ENGINE,
     .help = "on a GPU: the same bits for a request whatever else is computed with it, at the price of some speed; on a CPU it "
             "always is so"},
    {AT(cuda_graphs), SETTING_BOOL, .initial = "true", .group = "Machine", .flags = SETTING_ENGINE,
     .help = "on a GPU: steps that only make tokens are recorded at the start and each launched as a whole; off: operation by "
             "operation"},
    {AT(cuda_module), SETTING_STRING, .initial = "", .value = "FILE", .group = "Machine", .flags = SETTING_ENGINE,
     .help = "the module for GPUs; empty: inferd-cuda.so beside the executable, else where it was installed"},
    {AT(cache_folder), SETTING_STRING, .initial = "", .value = "FOLDER", .group = "Machine", .flags = SETTING_ENGINE,
     .help = "where a GPU's measured choices of algorithms are kept for the next start; empty: nowhere"},
    {AT(null_step_time), SETTING_SECONDS, .initial = "0", .min = 0, .max = 3600, .group = "Machine", .flags = SETTING_ENGINE,
     .help = "device null alone: how long a step takes; 0: as short as it can be"},

    {AT(kv_dtype), SETTING_CHOICE, .initial = "f16", .choices = "f16 bf16 int8", .alias = "kv", .group = "KV memory",
     .flags = SETTING_ENGINE, .help = "number format of the keys and values kept for each token"},
    {AT(kv_block_size), SETTING_INT, .initial = "16", .min = 8, .max = 256, .group = "KV memory",
     .flags = SETTING_ENGINE, .help = "tokens in one block, a power of two"},
    {AT(kv_tokens), SETTING_INT, .initial = "0", .min = 0, .max = 1073741824, .group = "KV memory", .flags = SETTING_ENGINE,
     .help = "tokens kept for all requests together; 0: chosen by max_sequences and memory_utilization"},
    {AT(prefix_cache), SETTING_BOOL, .initial = "true", .group = "KV memory", .flags = SETTING_ENGINE,
     .help = "keep computed tokens while there is room, so that prompts that begin alike are computed once"},

    {AT(max_sequences), SETTING_INT, .initial = "32", .min = 1, .max = ENGINE_MAX_SEQUENCES, .alias = "batch", .group = "Load",
     .help = "requests computed together; others wait"},
    {AT(max_batched_tokens), SETTING_INT, .initial = "512", .min = 1, .max = 65536, .group = "Load",
     .help = "tokens computed in one step; more is faster for long prompts and less even for running answers"},
    {AT(max_waiting), SETTING_INT, .initial = "256", .min = 0, .max = 1000000, .group = "Load", .flags = SETTING_RELOAD,
     .help = "requests that may wait; the next is answered 429"},
    {AT(max_waiting_tokens), SETTING_INT, .initial = "1048576", .min = 0, .max = 1099511627776, .group = "Load", .flags = SETTING_RELOAD,
     .help = "prompt tokens of all waiting requests together (n answers count n times); more are answered 429; "
             "0: no limit"},
    {AT(speculative_tokens), SETTING_INT, .initial = "0", .min = 0, .max = ENGINE_MAX_SPECULATIVE, .group = "Load",
     .flags = SETTING_ENGINE,
     .help = "tokens guessed ahead from what the text repeats, where a request does not say (its field of this name); the "
             "answer is the same, sooner if the guesses are right; 0: off"},
    {AT(scheduling), SETTING_CHOICE, .initial = "fcfs", .choices = "fcfs priority", .group = "Load",
     .flags = SETTING_ENGINE,
     .help = "who of one client's requests is next: in order of arrival (a priority other than 0 is refused then), or by "
             "their field priority, lower first"},
    {AT(priority_ageing), SETTING_SECONDS, .initial = "60", .min = 0, .max = 1000000, .group = "Load",
     .flags = SETTING_ENGINE,
     .help = "time of waiting that is worth one level of priority, so that nobody waits for ever; 0: never"},
    {AT(retry_after), SETTING_INT, .initial = "1", .min = 1, .max = 3600, .value = "SECONDS", .group = "Load", .flags = SETTING_RELOAD,
     .help = "the Retry-After that clients get with 429 and 503 while the speed of the queue is not known, in seconds"},
    {AT(retry_after_max), SETTING_INT, .initial = "60", .min = 1, .max = 86400, .value = "SECONDS", .group = "Load", .flags = SETTING_RELOAD,
     .help = "the longest Retry-After; else it is the time in which what waits now will have left, as measured"},

    {AT(max_n), SETTING_INT, .initial = "8", .min = 1, .max = 128, .group = "Requests", .flags = SETTING_RELOAD,
     .help = "most answers to one request (its field n)"},
    {AT(max_tokens_limit), SETTING_INT, .initial = "0", .min = 0, .max = 16777216, .group = "Requests", .flags = SETTING_RELOAD,
     .help = "most tokens that one answer may get: a request that asks for more, or does not say, gets as many and the "
             "finish_reason length; 0: as many as fit"},
    {AT(samplers), SETTING_STRING, .initial = ENGINE_SAMPLER_ORDER, .value = "NAMES", .group = "Requests", .flags = SETTING_RELOAD,
     .help = "the steps from a model's output to a token, in this order, for requests that do not name their own"},
    {AT(strict_requests), SETTING_BOOL, .initial = "false", .group = "Requests", .flags = SETTING_RELOAD,
     .help = "refuse requests with fields that inferd does not know"},
    {AT(queue_timeout), SETTING_SECONDS, .initial = "0", .min = 0, .max = 604800, .group = "Requests", .flags = SETTING_RELOAD,
     .help = "longest time a request may wait before it runs; beyond: 503; 0: no limit"},
    {AT(request_timeout), SETTING_SECONDS, .initial = "3600", .min = 0, .max = 604800, .group = "Requests", .flags = SETTING_RELOAD,
     .help = "longest time for one answer, waiting included; a request may ask for less (timeout, X-Request-Timeout); "
             "0: no limit"},
    {AT(sse_ping_interval), SETTING_SECONDS, .initial = "15", .min = 0, .max = 3600, .group = "Requests", .flags = SETTING_RELOAD,
     .help = "a stream that was silent so long gets a comment, so that nobody in between closes it; 0: never"},

    {AT(max_connections), SETTING_INT, .initial = "4096", .min = 1, .max = 100000, .group = "Connections",
     .help = "open connections at a time, at each address"},
    {AT(max_body_size), SETTING_SIZE, .initial = "8M", .min = 1024, .max = 1073741824, .group = "Connections", .flags = SETTING_RELOAD,
     .help = "largest body of a request; beyond: 413"},
    {AT(max_header_size), SETTING_SIZE, .initial = "16K", .min = 4096, .max = 1048576, .group = "Connections",
     .help = "largest head of a request, first line and headers together; beyond: 431"},
    {AT(header_timeout), SETTING_SECONDS, .initial = "10", .min = 0.1, .max = 3600, .group = "Connections", .flags = SETTING_RELOAD,
     .help = "time for the head of a request to arrive"},
    {AT(body_timeout), SETTING_SECONDS, .initial = "30", .min = 0.1, .max = 3600, .group = "Connections", .flags = SETTING_RELOAD,
     .help = "time for the body to arrive"},
    {AT(idle_timeout), SETTING_SECONDS, .initial = "120", .min = 0.1, .max = 86400, .group = "Connections",
     .help = "time that a connection is kept for a next request"},
    {AT(write_timeout), SETTING_SECONDS, .initial = "60", .min = 0.1, .max = 3600, .group = "Connections",
     .help = "time after which a client that reads nothing of its answer is given up"},

    {AT(config), SETTING_STRING, .initial = "", .value = "FILE", .alias = "c", .group = "General",
     .flags = SETTING_NOT_IN_FILE | SETTING_PLACE, .help = "settings file to read; environment and flags override it"},
    {AT(log_format), SETTING_CHOICE, .initial = "auto", .choices = "auto text json journald", .value = "FORMAT",
     .group = "General",
     .help = "how the log is written: lines of text or of JSON on standard error, or entries with fields in systemd's journal; "
             "auto: the journal where standard error leads there, else text"},
    {AT(content_log), SETTING_STRING, .initial = "", .value = "FILE", .group = "General",
     .help = "a file to which prompts and answers are written, as lines of JSON that only this user can read; empty: nowhere, "
             "and nothing else ever holds them"},
    {AT(content_log_max), SETTING_SIZE, .initial = "256M", .min = 4096, .max = 1099511627776, .group = "General",
     .help = "size at which that file is renamed to FILE.1, in place of the one before, and begun anew: both together take twice "
             "as much at most"},
    {AT(log_level), SETTING_CHOICE, .initial = "info", .choices = "error warn info debug", .value = "LEVEL",
     .group = "General", .flags = SETTING_RELOAD, .help = "what is worth a line of log"},
    {AT(stall_timeout), SETTING_SECONDS, .initial = "300", .min = 1, .max = 86400, .group = "General", .flags = SETTING_RELOAD,
     .help = "time without a finished step, with work to do, after which /readyz is 503"},
    {AT(stall_exit), SETTING_SECONDS, .initial = "600", .min = 0, .max = 86400, .group = "General", .flags = SETTING_RELOAD,
     .help = "such time after which, beyond stall_timeout, clients get an error and the process ends with code 4; 0: never"},
    {AT(drain_timeout), SETTING_SECONDS, .initial = "30", .min = 0, .max = 86400, .group = "General", .flags = SETTING_RELOAD,
     .help = "how long running requests may go on after SIGTERM"},
};

struct settings config_settings(void) {
    return (struct settings){rows, sizeof rows / sizeof rows[0]};
}

int config_init(struct config *c, struct error *err) {
    return settings_init(config_settings(), c, err);
}

void config_free(struct config *c) {
    settings_free(config_settings(), c);
}

/* --- the environment ----------------------------------------------------------------------------------------- */

#define ENV_PREFIX "INFERD_"

/*
 * Kubernetes gives every container of a namespace INFERD_PORT=tcp://10.0.0.1:80 and the like when it has a Service
 * named inferd. Those are not meant for us.
 */
static bool is_service_link(const char *value) {
    return strncmp(value, "tcp://", 6) == 0 || strncmp(value, "udp://", 6) == 0 || strncmp(value, "sctp://", 7) == 0;
}

static int load_variable(struct config *c, const char *variable, struct buf *warnings, struct error *err) {
    struct settings t = config_settings();
    char shown[80], name[80];
    size_t shown_len = strcspn(variable, "=");
    if (variable[shown_len] != '=' || shown_len >= sizeof shown || is_service_link(variable + shown_len + 1)) {
        return 0;
    }
    const char *value = variable + shown_len + 1;
    snprintf(shown, sizeof shown, "%.*s", (int)shown_len, variable);
    size_t len = 0;
    for (const char *p = shown + strlen(ENV_PREFIX); *p; p++) {
        name[len++] = *p == '-' ? '?' : (char)tolower((unsigned char)*p);
    }
    const struct setting *s = NULL;
    for (size_t i = 0; i < t.n; i++) { /* by full name: aliases are for the command line */
        if (strlen(t.rows[i].name) == len && memcmp(t.rows[i].name, name, len) == 0) {
            s = &t.rows[i];
        }
    }
    if (!s) {
        const char *near = settings_nearest(t, name, len);
        if (near && warnings) {
            buf_printf(warnings, "the environment's %s is no setting and does nothing; was %s meant?\n", shown, near);
        }
        return 0;
    }
    if (setting_set(s, c, shown, value, err) != 0) {
        err->code = err->code == ERROR_INVALID ? ERROR_MODEL : err->code;
        return -1;
    }
    return 0;
}

static const char *environment_value(char *const *env, const char *name) {
    size_t len = strlen(name);
    for (; env && *env; env++) {
        if (strncmp(*env, name, len) == 0 && (*env)[len] == '=') {
            return *env + len + 1;
        }
    }
    return NULL;
}

/* A credential that the service manager may have handed over becomes api_keys_file. An access that fails for another reason than
 * absence is found by config_check. */
static int find_credential(struct config *c, const char *folder, const char *name, struct error *err) {
    struct buf path = BUF_INIT;
    buf_printf(&path, "%s/%s", folder, name);
    int rc = path.failed ? error_memory(err) : 0;
    if (rc == 0 && (access(path.data, F_OK) == 0 || errno != ENOENT)) {
        rc = setting_set(settings_find(config_settings(), "api_keys_file", 13), c, "$CREDENTIALS_DIRECTORY", path.data, err);
        err->code = rc != 0 && err->code == ERROR_INVALID ? ERROR_MODEL : err->code;
    }
    buf_free(&path);
    return rc;
}

/* By its own name, or as a file of the folder that inferd.service loads (systemd puts the folder's name before it). */
static int find_credentials(struct config *c, char *const *env, struct error *err) {
    static const char *const names[] = {"api_keys", "inferd_api_keys"};
    const char *folder = environment_value(env, "CREDENTIALS_DIRECTORY");
    int rc = 0;
    for (size_t i = 0; i < 2 && rc == 0 && folder && folder[0] && !c->api_keys_file[0]; i++) {
        rc = find_credential(c, folder, names[i], err);
    }
    return rc;
}

int config_load(struct config *c, const struct options *flags, char *const *env, struct buf *warnings,
                struct error *err) {
    const char *path = flags ? options_value(flags, settings_find(config_settings(), "config", 6)) : NULL;
    if (!path) {
        path = environment_value(env, ENV_PREFIX "CONFIG");
    }
    if (path && path[0] && config_load_file(c, path, err) != 0) {
        return -1;
    }
    for (char *const *v = env; v && *v; v++) {
        if (strncmp(*v, ENV_PREFIX, strlen(ENV_PREFIX)) == 0 && load_variable(c, *v, warnings, err) != 0) {
            return -1;
        }
    }
    if (flags && options_apply(flags, config_settings(), c, err) != 0) {
        return -1;
    }
    return find_credentials(c, env, err);
}

/* --- printing ------------------------------------------------------------------------------------------------ */

void config_print(const struct config *c, struct buf *out) {
    struct settings t = config_settings();
    const char *group = "";
    buf_puts(out,
             "# Settings of inferd. A line is \"name = value\"; # and ; begin comments. Each setting is also a flag\n"
             "# (max_waiting: --max-waiting 64) and a variable (INFERD_MAX_WAITING=64). Flags come first, then the\n"
             "# environment, then this file. What is commented out shows the default. Settings marked (reload) are read\n"
             "# again on SIGHUP (systemctl reload), with the model kept in memory; others want a restart.\n"
             "#\n"
             "# Use it with: inferd serve --config FILE   Check it with: inferd serve --config FILE --check-config\n"
             "#\n"
             "# inferd.service reads /etc/inferd/inferd.conf, inferd@NAME.service /etc/inferd/NAME.conf: as user inferd, who must be\n"
             "# able to read the model (in /var/lib/inferd/models, say; not under /home). It sets INFERD_CACHE_FOLDER, passes on\n"
             "# the keys in /etc/inferd/credentials/api_keys if they are there, and lets the drain take as long as drain_timeout.\n"
             "# With inferd.socket, host and port are those of the socket. systemctl reload: what --help marks (reload).\n");
    for (size_t i = 0; i < t.n; i++) {
        const struct setting *s = &t.rows[i];
        if (s->flags & SETTING_NOT_IN_FILE) {
            continue;
        }
        if (strcmp(group, s->group) != 0) {
            group = s->group;
            buf_printf(out, "\n\n# --- %s ---\n", group);
        }
        struct buf about = BUF_INIT, range = BUF_INIT;
        buf_puts(&about, s->help);
        setting_range(s, &range);
        if (range.len > 0) {
            buf_printf(&about, " (%s)", range.data);
        }
        buf_puts(&about, s->flags & SETTING_RELOAD ? " (reload)" : "");
        buf_puts(out, "\n# ");
        if (about.failed || range.failed) {
            out->failed = true;
        } else {
            struct buf wrapped = BUF_INIT;
            wrap_text(&wrapped, about.data, 2, 0, 98);
            for (size_t k = 0; k < wrapped.len; k++) {
                buf_puts(out, wrapped.data[k] == '\n' ? "\n# " : "");
                if (wrapped.data[k] != '\n') {
                    buf_putc(out, wrapped.data[k]);
                }
            }
            out->failed |= wrapped.failed;
            buf_free(&wrapped);
        }
        bool hidden = (s->flags & SETTING_SECRET) && !setting_is_default(s, c);
        buf_printf(out, "\n%s%s =", setting_is_default(s, c) || hidden ? "#" : "", s->name);
        struct buf value = BUF_INIT;
        setting_print(s, c, &value);
        if (value.len > 0) {
            buf_printf(out, " %s", value.data);
        }
        out->failed |= value.failed;
        buf_putc(out, '\n');
        buf_free(&value);
        buf_free(&about);
        buf_free(&range);
    }
}

/* --- meaning ------------------------------------------------------------------------------------------------- */

size_t config_seats(const struct config *c) {
    return c->max_sequences * c->replicas; /* both are bounded in the table: no overflow */
}

void config_engine(const struct config *c, struct engine_config *out) {
    engine_config_default(out);
    out->model = c->model;
    out->chat_template = c->chat_template[0] ? c->chat_template : NULL;
    out->device = c->device;
    out->cpu_variant = strcmp(c->cpu_variant, "auto") == 0 ? NULL : c->cpu_variant;
    out->weights = c->weights;
    out->kv_dtype = c->kv_dtype;
    out->threads = c->threads;
    out->tensor_parallel = c->tensor_parallel;
    out->pipeline_parallel = c->pipeline_parallel;
    out->rank_timeout = c->rank_timeout;
    out->max_model_len = c->max_model_len;
    out->max_sequences = c->max_sequences;
    out->max_batched_tokens = c->max_batched_tokens;
    out->max_waiting = c->max_waiting;
    out->scheduling = c->scheduling;
    out->priority_ageing = c->priority_ageing;
    out->prefix_cache = c->prefix_cache;
    out->max_waiting_tokens = c->max_waiting_tokens;
    out->speculative_tokens = c->speculative_tokens;
    out->kv_block_size = c->kv_block_size;
    out->memory_utilization = c->memory_utilization;
    out->kv_tokens = c->kv_tokens;
    out->batch_invariant = c->batch_invariant;
    out->cuda_graphs = c->cuda_graphs;
    out->cuda_module = c->cuda_module[0] ? c->cuda_module : NULL;
    out->cache_folder = c->cache_folder[0] ? c->cache_folder : NULL;
    out->null_step_ns = (uint64_t)(c->null_step_time * 1e9 + 0.5);
}

const char *config_null_warning(const struct config *c) {
    return strcmp(c->device, "null") == 0
               ? "the device is \"null\": nothing is computed, and every answer is made up of arbitrary tokens"
               : NULL;
}

int config_samplers(const struct config *c, struct sampler_order *out, struct error *err) {
    if (engine_sampler_order(c->samplers, strlen(c->samplers), out, err) < 0) {
        err->code = ERROR_MODEL;
        return -1;
    }
    return 0;
}

void config_engine_refused(struct error *err) {
    if (err->code == ERROR_INVALID) {
        err->code = ERROR_MODEL;
    }
}

enum log_format config_log_format(const struct config *c) {
    switch (c->log_format[0]) {
    case 't':
        return LOG_FORMAT_TEXT;
    case 'j':
        return c->log_format[1] == 's' ? LOG_FORMAT_JSON : LOG_FORMAT_JOURNALD;
    default:
        return LOG_FORMAT_AUTO;
    }
}

enum log_level config_log_level(const struct config *c) {
    switch (c->log_level[0]) {
    case 'e':
        return LOG_LEVEL_ERROR;
    case 'w':
        return LOG_LEVEL_WARN;
    case 'd':
        return LOG_LEVEL_DEBUG;
    default:
        return LOG_LEVEL_INFO;
    }
}
