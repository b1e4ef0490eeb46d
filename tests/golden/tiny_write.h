/* The models of make_tiny.py, rebuilt from their formula and written as a folder of safetensors. */
#ifndef TEST_TINY_WRITE_H
#define TEST_TINY_WRITE_H

#include "../unit/gguf_build.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const cJSON *get(const cJSON *object, const char *key) {
    return cJSON_GetObjectItemCaseSensitive(object, key);
}

/* make_tiny.py's `values` */
static float value(uint64_t tensor, uint64_t i, int exponent) {
    uint64_t z = ((tensor << 32) + i) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    return ldexpf((float)(int8_t)(z >> 56), exponent);
}

/* Exact for the values here: at most 8 significant bits, magnitudes of 2^-9 to 2. */
static uint16_t half_of(float x) {
    int e;
    float m = frexpf(fabsf(x), &e); /* x = m * 2^e, m in [0.5, 1) */
    uint16_t sign = x < 0 ? 0x8000 : 0;
    return x == 0 ? sign : (uint16_t)(sign | (e + 14) << 10 | ((int)ldexpf(m, 11) & 1023));
}

static void put_value(struct buf *b, int type, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    switch (type) {
    case 0:
        put_le(b, bits, 4);
        break;
    case 1:
        put_le(b, half_of(x), 2);
        break;
    default:
        put_le(b, bits >> 16, 2);
    }
}

static bool write_model(const char *folder, const cJSON *c) {
    static const char *const types[] = {"F32", "F16", "BF16"};
    struct buf header = BUF_INIT, data = BUF_INIT, file = BUF_INIT;
    uint64_t k = 1;
    const cJSON *t;
    buf_putc(&header, '{');
    cJSON_ArrayForEach(t, get(c, "tensors")) {
        const char *name = cJSON_GetArrayItem(t, 0)->valuestring;
        char *shape = cJSON_PrintUnformatted(cJSON_GetArrayItem(t, 1));
        int exponent = cJSON_GetArrayItem(t, 2)->valueint, type = (int)(k % 3);
        float add = (float)cJSON_GetArrayItem(t, 3)->valuedouble;
        size_t n = 1, begin = data.len;
        const cJSON *dim;
        cJSON_ArrayForEach(dim, cJSON_GetArrayItem(t, 1)) {
            n *= (size_t)dim->valueint;
        }
        for (size_t i = 0; i < n; i++) {
            put_value(&data, add != 0 ? 0 : type, value(k, i, exponent) + add);
        }
        buf_printf(&header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%zu,%zu]}", k == 1 ? "" : ",",
                   name, types[add != 0 ? 0 : type], shape, begin, data.len);
        free(shape);
        k++;
    }
    buf_putc(&header, '}');
    while (header.len % 8 != 0) {
        buf_putc(&header, ' ');
    }
    put_u64(&file, header.len);
    buf_append(&file, header.data, header.len);
    buf_append(&file, data.data, data.len);
    char *config = cJSON_PrintUnformatted(get(c, "config"));
    bool ok = write_file(folder, "model.safetensors", file.data, file.len) &&
              write_file(folder, "config.json", config, strlen(config));
    free(config);
    buf_free(&header);
    buf_free(&data);
    buf_free(&file);
    return ok;
}

static char *read_file(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    char *data = malloc(1 << 20);
    *len = f && data ? fread(data, 1, 1 << 20, f) : 0;
    if (f) {
        fclose(f);
    }
    return data;
}

#endif
