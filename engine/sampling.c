/* The defaults of a request's sampling, and the names of its stages. */
#include <inferd/engine.h>

#include <string.h>

static const char *const names[SAMPLER_STAGES] = {
    [SAMPLER_PENALTIES] = "penalties", [SAMPLER_DRY] = "dry",         [SAMPLER_TOP_N_SIGMA] = "top_n_sigma",
    [SAMPLER_TOP_K] = "top_k",         [SAMPLER_TYPICAL_P] = "typ_p", [SAMPLER_TOP_P] = "top_p",
    [SAMPLER_MIN_P] = "min_p",         [SAMPLER_XTC] = "xtc",         [SAMPLER_TEMPERATURE] = "temperature",
};

/* Also the names that the fields of a request have. */
static const struct {
    const char *name;
    enum sampler_stage stage;
} aliases[] = {{"typical_p", SAMPLER_TYPICAL_P}};

static int find_stage(const char *name, size_t len) {
    for (int i = 0; i < SAMPLER_STAGES; i++) {
        if (strlen(names[i]) == len && memcmp(names[i], name, len) == 0) {
            return i;
        }
    }
    for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
        if (strlen(aliases[i].name) == len && memcmp(aliases[i].name, name, len) == 0) {
            return (int)aliases[i].stage;
        }
    }
    return -1;
}

static bool is_separator(char c) {
    return c == ';' || c == ',' || c == ' ';
}

int engine_sampler_order(const char *text, size_t len, struct sampler_order *out, struct error *err) {
    struct sampler_order made = {0};
    for (size_t i = 0; i < len;) {
        size_t end = i;
        while (end < len && !is_separator(text[end])) {
            end++;
        }
        int stage = end > i ? find_stage(text + i, end - i) : -1;
        if (end > i && stage < 0) {
            return error_set_param(err, ERROR_INVALID, "samplers",
                                   "samplers may have penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc and "
                                   "temperature only");
        }
        for (size_t k = 0; k < made.n && stage >= 0; k++) {
            if (made.stages[k] == stage) {
                return error_set_param(err, ERROR_INVALID, "samplers", "samplers must not have %s twice", names[stage]);
            }
        }
        if (stage >= 0) {
            made.stages[made.n++] = (uint8_t)stage;
        }
        i = end + 1;
    }
    *out = made;
    return 0;
}

void engine_sampling_default(struct sampling *s) {
    /* those of DRY's author */
    static const struct meta_stop breakers[] = {{"\n", 1}, {":", 1}, {"\"", 1}, {"*", 1}};
    static const struct sampler_order order = {
        /* ENGINE_SAMPLER_ORDER */
        .n = SAMPLER_STAGES,
        .stages = {SAMPLER_PENALTIES, SAMPLER_DRY, SAMPLER_TEMPERATURE, SAMPLER_TOP_N_SIGMA, SAMPLER_MIN_P,
                   SAMPLER_TOP_K, SAMPLER_TYPICAL_P, SAMPLER_TOP_P, SAMPLER_XTC}};
    *s = (struct sampling){
        .temperature = 1,
        .top_p = 1,
        .repetition_penalty = 1,
        .repeat_last_n = -1,
        .typical_p = 1,
        .xtc_threshold = 0.1f,
        .dynatemp_exponent = 1,
        .dry_base = 1.75f,
        .dry_allowed_length = 2,
        .dry_penalty_last_n = -1,
        .dry_breakers = breakers,
        .n_dry_breakers = sizeof breakers / sizeof breakers[0],
        .mirostat_tau = 5,
        .mirostat_eta = 0.1f,
        .order = order,
        .n_logprobs = -1,
    };
}
