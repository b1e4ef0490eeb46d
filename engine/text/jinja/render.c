#include "text/jinja/render.h"

#include "base/checked.h"
#include "text/jinja/ast.h"
#include "text/jinja/eval.h"
#include "text/jinja/jinja.h"
#include "text/jinja/json.h"
#include "text/jinja/str.h"

#include <inferd/clock.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CLOCK_EVERY UINT64_C(4096) /* steps between looks at the clock */

void jj_fail(struct render *r, const char *fmt, ...) {
    if (r->failed) {
        return;
    }
    char what[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    r->failed = true;
    if (r->line) {
        error_set(r->err, ERROR_INVALID, "chat template line %u: %s", r->line, what);
    } else {
        error_set(r->err, ERROR_INVALID, "%s", what);
    }
}

static void *check_memory(struct render *r, void *p) {
    if (!p && !r->failed) {
        if (r->arena.limited) {
            jj_fail(r, "the template uses too much memory (more than %zu bytes)", r->arena.limit);
        } else {
            r->failed = true;
            error_memory(r->err);
        }
    }
    return p;
}

void *jj_alloc(struct render *r, size_t size) {
    return r->failed ? NULL : check_memory(r, jj_arena_alloc(&r->arena, size));
}

void *jj_array(struct render *r, size_t n, size_t size) {
    return r->failed ? NULL : check_memory(r, jj_arena_array(&r->arena, n, size));
}

void *jj_grow(struct render *r, void *p, size_t old_size, size_t new_size) {
    return r->failed ? NULL : check_memory(r, jj_arena_grow(&r->arena, p, old_size, new_size));
}

bool jj_steps_slow(struct render *r) {
    if (r->failed) {
        return false;
    }
    if (r->steps_left == 0) {
        jj_fail(r, "the template takes too many steps");
        return false;
    }
    if (clock_now_ns() > r->deadline_ns) {
        jj_fail(r, "the template takes too long");
        return false;
    }
    r->steps_to_clock = r->steps_left > CLOCK_EVERY ? r->steps_left - CLOCK_EVERY : 0;
    return true;
}

bool jj_enter(struct render *r) {
    if (r->failed) {
        return false;
    }
    if (r->depth >= JJ_MAX_EVAL_DEPTH) {
        jj_fail(r, "the template recurses too deep");
        return false;
    }
    r->depth++;
    return true;
}

/* base + per_byte * bytes, at most half of the range */
static size_t scaled(size_t base, size_t per_byte, size_t bytes) {
    size_t more, total;
    bool fits = checked_mul(per_byte, bytes, &more) && checked_add(base, more, &total);
    return fits ? total : SIZE_MAX / 2;
}

static void set_budget(struct render *r, const struct jinja_input *in) {
    size_t input = 0;
    const size_t sizes[] = {in->messages_len, in->tools_len, in->documents_len, in->kwargs_len};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        input = checked_add(input, sizes[i], &input) ? input : SIZE_MAX / 2;
    }
    const struct jinja_budget *b = &in->budget;
    r->steps_left = b->steps ? b->steps : scaled(JJ_STEPS_BASE, JJ_STEPS_PER_BYTE, input);
    r->output_limit = b->output ? b->output : scaled(JJ_OUTPUT_BASE, JJ_OUTPUT_PER_BYTE, input);
    jj_arena_init(&r->arena, b->memory ? b->memory : scaled(JJ_MEMORY_BASE, JJ_MEMORY_PER_BYTE, input));
    uint64_t now = clock_now_ns(), time = b->time_ns ? b->time_ns : JJ_TIME_NS;
    r->deadline_ns = time > UINT64_MAX - now ? UINT64_MAX : now + time;
    r->steps_to_clock = r->steps_left > CLOCK_EVERY ? r->steps_left - CLOCK_EVERY : 0;
}

static void set_json(struct render *r, uint32_t name, const char *json, size_t len, const char *what) {
    struct value none = NONE;
    r->globals[name] = json ? jj_read_json(r, json, len, what) : none;
}

/*
 * The roles of messages come from a fixed list, not from anybody's text, and templates build special tokens of them
 * ('<|' + message.role + '|>'): a known role counts as the template's own.
 */
static void trust_roles(struct render *r, struct value messages) {
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    static const struct str role = {.bytes = "role", .len = 4, .ascii = true};
    for (size_t i = 0; messages.type == V_LIST && i < messages.u.seq->n && jj_steps(r, 1); i++) {
        struct value message = messages.u.seq->items[i];
        struct value v = message.type == V_DICT ? jj_dict_get_str(r, message.u.dict, &role) : MISSING;
        for (size_t k = 0; v.type == V_STR && k < sizeof roles / sizeof roles[0]; k++) {
            if (jj_str_equals(v.u.s, roles[k])) {
                /* nobody has seen the dict yet, so it may still change */
                jj_dict_set(r, (struct dict *)(uintptr_t)message.u.dict, value_str(&role),
                            value_str(jj_str_literal(r, roles[k])));
            }
        }
    }
}

static void set_string(struct render *r, uint32_t name, const char *s) {
    if (s) {
        r->globals[name] = value_str(jj_str_new(r, s, strlen(s), true));
    }
}

static void set_kwargs(struct render *r, const struct jinja_input *in) {
    if (!in->kwargs_json) {
        return;
    }
    struct value v = jj_read_json(r, in->kwargs_json, in->kwargs_len, "chat_template_kwargs");
    if (!r->failed && v.type != V_DICT) {
        jj_fail(r, "chat_template_kwargs: expected an object");
    }
    for (size_t i = 0; !r->failed && i < v.u.dict->n; i++) {
        const struct dict_entry *e = &v.u.dict->entries[i];
        uint32_t name = jj_names_find(&r->template->names, e->key.u.s->bytes, e->key.u.s->len);
        if (name != UINT32_MAX) { /* else the template cannot ask for it */
            r->globals[name] = e->value;
        }
    }
}

static void set_variables(struct render *r, const struct jinja_input *in) {
    size_t n = r->template->names.n;
    r->globals = jj_array(r, n, sizeof *r->globals);
    if (!r->globals) {
        return;
    }
    memset(r->globals, 0, n * sizeof *r->globals); /* V_MISSING */
    if (in->messages_json) {
        set_json(r, NAME_MESSAGES, in->messages_json, in->messages_len, "messages");
        trust_roles(r, r->globals[NAME_MESSAGES]);
        set_json(r, NAME_TOOLS, in->tools_json, in->tools_len, "tools");
        set_json(r, NAME_DOCUMENTS, in->documents_json, in->documents_len, "documents");
        r->globals[NAME_ADD_GENERATION_PROMPT] = value_bool(in->add_generation_prompt);
    }
    set_string(r, NAME_BOS_TOKEN, in->bos_token);
    set_string(r, NAME_EOS_TOKEN, in->eos_token);
    set_kwargs(r, in);
}

/* Both bufs or neither. */
static int hand_out(const struct sb *b, struct buf *out, struct buf *trusted, struct error *err) {
    size_t before = out->len;
    if (b->len == 0) {
        return 0;
    }
    if (!buf_reserve(out, b->len) || !buf_reserve(trusted, b->len)) {
        return error_memory(err);
    }
    buf_append(out, b->bytes, b->len);
    if (b->marks) {
        buf_append(trusted, b->marks, b->len);
    } else {
        memset(trusted->data + trusted->len, b->trusted, b->len);
        trusted->len += b->len;
        trusted->data[trusted->len] = '\0';
    }
    return out->len == before + b->len ? 0 : error_memory(err);
}

int jinja_render(const struct jinja *t, const struct jinja_input *in, struct buf *out, struct buf *trusted,
                 struct error *err) {
    struct render r = {.template = t, .now = in->now, .err = err};
    struct sb b;
    set_budget(&r, in);
    set_variables(&r, in);
    jj_sb_init(&b, &r);
    b.is_output = true;
    r.out = &b;
    if (!r.failed) {
        jj_hide(&r, &t->hidden);
    }
    jj_exec(&r, &t->body);
    int rc = r.failed ? -1 : hand_out(&b, out, trusted, err);
    jj_arena_free(&r.arena);
    return rc;
}
