/* What reads JSON from outside: the scanner, the tree behind it, and the raw-text getters. */
#include <inferd/json.h>

#include <cjson/cJSON.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *text = (const char *)data;
    const struct json_limits loose = {.max_depth = 8, .allow_nul = true, .allow_duplicate = true};
    struct error err;
    struct cJSON *tree = NULL;
    json_check(text, size, &loose, &err);
    if (json_parse(text, size, NULL, &tree, &err) != 0) return 0;
    const char *start;
    size_t n;
    int64_t number;
    if (json_member(text, size, "seed", &start, &n)) json_raw_int(start, n, &number);
    cJSON_Delete(tree);
    return 0;
}
